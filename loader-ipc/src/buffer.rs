//! The bytes behind a tensor: on the heap, in a slot, or in sealed memory.

use std::{mem, sync::Arc};

use crate::{
    arena::{self, Place},
    heap::{Block, HeapPool},
    memory::SealedMemory,
    sys::{Chunk, Line},
};

/// Tensors start on a multiple of this many bytes, in a slot and on the heap: a cache line, and what SIMD kernels and Arrow ask
/// for.
pub const ALIGNMENT: usize = 64;

/// Owned bytes whose first one lies on a multiple of [`ALIGNMENT`].
#[derive(Debug)]
pub struct Buffer {
    storage: Storage,
    len: usize,
}

#[derive(Debug)]
enum Storage {
    Heap(Vec<Line>),
    /// Memory that goes back to where it came from.
    Pooled(Block, HeapPool),
    Slot(Chunk),
    /// From this byte on, in memory that nobody can write; [`ALIGNMENT`] is kept by who made it.
    Sealed(Arc<SealedMemory>, usize),
}

impl Buffer {
    /// `len` zero bytes: in the slot whose batch this thread is collating, else on the heap; `None` when there is no memory.
    pub fn zeroed(len: usize) -> Option<Self> {
        match arena::allocate(len) {
            Some(place) => {
                let mut buffer = Self::at(place, len);
                buffer.as_bytes_mut().fill(0);
                Some(buffer)
            }
            None => Self::on_heap(len),
        }
    }

    /// Like [`zeroed`](Self::zeroed) for a caller that writes every byte: used memory keeps its old content.
    pub fn for_overwrite(len: usize) -> Option<Self> {
        match arena::allocate(len) {
            Some(place) => Some(Self::at(place, len)),
            None => Self::on_heap(len),
        }
    }

    fn at(place: Place, len: usize) -> Self {
        match place {
            Place::Slot(chunk) => Self::in_slot(chunk),
            Place::Heap(block, pool) => Self { storage: Storage::Pooled(block, pool), len },
        }
    }

    /// `len` zero bytes on the heap; `None` when there is no memory.
    pub fn on_heap(len: usize) -> Option<Self> {
        // Zeroed by the allocator: large ones are fresh pages and cost nothing here.
        let lines = bytemuck::allocation::try_zeroed_vec(len.div_ceil(ALIGNMENT)).ok()?;
        Some(Self { storage: Storage::Heap(lines), len })
    }

    pub(crate) fn in_slot(chunk: Chunk) -> Self {
        let len = chunk.as_bytes().len();
        Self { storage: Storage::Slot(chunk), len }
    }

    /// `len` bytes of sealed memory from `start` on, a multiple of [`ALIGNMENT`]; `None` when there are not so many.
    pub(crate) fn in_sealed(memory: Arc<SealedMemory>, start: usize, len: usize) -> Option<Self> {
        debug_assert_eq!(start % ALIGNMENT, 0);
        memory.bytes().get(start..start.checked_add(len)?)?;
        if len == 0 {
            // Memory without bytes has no mapping, and so no aligned address.
            return Some(Self::copy_of(&[]));
        }
        Some(Self { storage: Storage::Sealed(memory, start), len })
    }

    pub(crate) fn chunk(&self) -> Option<&Chunk> {
        match &self.storage {
            Storage::Slot(chunk) => Some(chunk),
            Storage::Heap(_) | Storage::Pooled(..) | Storage::Sealed(..) => None,
        }
    }

    /// True when the bytes lie in a slot of shared memory.
    pub fn is_shared(&self) -> bool {
        self.chunk().is_some()
    }

    /// True when the bytes lie in page-locked memory.
    pub fn is_pinned(&self) -> bool {
        match &self.storage {
            Storage::Slot(chunk) => chunk.is_pinned(),
            Storage::Pooled(block, _) => block.is_pinned(),
            Storage::Heap(_) | Storage::Sealed(..) => false,
        }
    }

    /// The bytes.
    #[inline] // for each sample of a batch
    pub fn as_bytes(&self) -> &[u8] {
        match &self.storage {
            Storage::Heap(lines) => &bytemuck::cast_slice(lines)[..self.len],
            Storage::Pooled(block, _) => &bytemuck::cast_slice(block.lines())[..self.len],
            Storage::Slot(chunk) => chunk.as_bytes(),
            Storage::Sealed(memory, start) => &memory.bytes()[*start..*start + self.len],
        }
    }

    /// The bytes, for writing. Bytes that another process reads, in sealed memory or in a frozen slot, are
    /// first copied to the heap.
    ///
    /// Alternative considered: an error, as for a tensor with several handles. Rejected because a program
    /// that changes its batches would then fail with workers, but not without.
    #[inline(always)] // once per sample of a batch; left to the compiler, the call took a third of a small sample's time
    pub fn as_bytes_mut(&mut self) -> &mut [u8] {
        let is_read_elsewhere = match &self.storage {
            Storage::Heap(_) | Storage::Pooled(..) => false,
            Storage::Slot(chunk) => chunk.is_frozen(),
            Storage::Sealed(..) => true,
        };
        if is_read_elsewhere {
            self.copy_to_heap();
        }
        match &mut self.storage {
            Storage::Heap(lines) => &mut bytemuck::cast_slice_mut(lines)[..self.len],
            Storage::Pooled(block, _) => &mut bytemuck::cast_slice_mut(block.lines_mut())[..self.len],
            Storage::Slot(chunk) => chunk.as_bytes_mut(),
            Storage::Sealed(..) => unreachable!("it was copied to the heap"),
        }
    }

    #[cold]
    fn copy_to_heap(&mut self) {
        *self = Self::copy_of(self.as_bytes());
    }

    /// A copy of `bytes` on the heap.
    pub fn copy_of(bytes: &[u8]) -> Self {
        let mut lines = bytemuck::allocation::zeroed_vec::<Line>(bytes.len().div_ceil(ALIGNMENT));
        bytemuck::cast_slice_mut(&mut lines)[..bytes.len()].copy_from_slice(bytes);
        Self { storage: Storage::Heap(lines), len: bytes.len() }
    }
}

impl Drop for Storage {
    fn drop(&mut self) {
        if let Self::Pooled(block, pool) = self {
            pool.give_back(mem::take(block));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heap_buffers_are_aligned_and_zero() {
        for len in [0, 1, 63, 64, 65, 1000] {
            let buffer = Buffer::zeroed(len).unwrap();
            assert_eq!(buffer.as_bytes(), vec![0; len]);
            assert_eq!(buffer.as_bytes().as_ptr() as usize % ALIGNMENT, 0);
            assert!(!buffer.is_shared());
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "its megabytes take minutes there")]
    fn buffers_are_used_again_for_such_as_need_nearly_as_much() {
        let pool = HeapPool::default();
        let mut arena = arena::Arena::on_heap(&pool);
        let large = arena.within(|| Buffer::zeroed(1 << 20).unwrap());
        let address = large.as_bytes().as_ptr();
        drop(large);
        let mut again = arena.within(|| Buffer::for_overwrite((1 << 20) - 100).unwrap());
        assert_eq!(again.as_bytes().as_ptr(), address);
        again.as_bytes_mut().fill(7);
        drop(again);
        assert!(arena.within(|| Buffer::zeroed(1 << 20).unwrap()).as_bytes().iter().all(|&byte| byte == 0));
        assert_ne!(
            arena.within(|| Buffer::zeroed(1 << 18).unwrap()).as_bytes().as_ptr(),
            address,
            "far too large"
        );
        let small = arena.within(|| Buffer::zeroed(100).unwrap());
        let address = small.as_bytes().as_ptr();
        drop(small);
        assert_eq!(arena.within(|| Buffer::for_overwrite(70).unwrap()).as_bytes().as_ptr(), address);
        assert_eq!(format!("{pool:?}"), "HeapPool { small: 1, large: 2 }");
    }
}
