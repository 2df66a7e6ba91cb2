//! The bytes of a tensor: on the heap, in a slot, or in sealed memory.

use std::{mem, sync::Arc};

use crate::{
    arena::{self, Allocation},
    heap::{Block, HeapPool},
    memory::SealedMemory,
    sys::{Chunk, Line},
};

/// Alignment of each tensor in a slot and on the heap, in bytes: a cache line, and the alignment that SIMD
/// kernels and Arrow expect.
pub const ALIGNMENT: usize = 64;

/// Bytes that begin at a multiple of [`ALIGNMENT`], except those of a [part](Buffer::part). The buffer owns them, or
/// shares them and copies them before it changes them.
#[derive(Debug)]
pub struct Buffer {
    storage: Storage,
    len: usize,
}

#[derive(Debug)]
enum Storage {
    Heap(Vec<Line>),
    /// Memory that is given back to its pool on drop.
    Pooled(Block, HeapPool),
    Slot(Chunk),
    /// Read-only memory, and the offset of the first byte, a multiple of [`ALIGNMENT`].
    Sealed(Arc<SealedMemory>, usize),
    /// Bytes of another buffer, and the offset of the first one.
    Part(Arc<Buffer>, usize),
}

impl Buffer {
    /// Allocates `len` zero bytes: in the [arena] that is active on this thread, otherwise on
    /// the heap. Returns `None` if there is no memory.
    pub fn zeroed(len: usize) -> Option<Self> {
        match arena::allocate(len) {
            Some(allocation) => {
                let mut buffer = Self::from_allocation(allocation, len);
                buffer.as_bytes_mut().fill(0);
                Some(buffer)
            }
            None => Self::on_heap(len),
        }
    }

    /// As [`zeroed`](Self::zeroed), for a caller that writes every byte: reused memory keeps its old content.
    pub fn for_overwrite(len: usize) -> Option<Self> {
        match arena::allocate(len) {
            Some(allocation) => Some(Self::from_allocation(allocation, len)),
            None => Self::on_heap(len),
        }
    }

    /// As [`for_overwrite`](Self::for_overwrite), in the arena of the batch whose samples this thread loads. Returns
    /// `None` if it loads none, or if the arena has no room.
    pub fn of_batch(len: usize) -> Option<Self> {
        arena::allocate_while_loading(len).map(|allocation| Self::from_allocation(allocation, len))
    }

    /// Returns a buffer of the `len` bytes of `whole` from `start` on, without copying them.
    ///
    /// # Panics
    /// Panics if `whole` does not have these bytes.
    pub fn part(whole: &Arc<Self>, start: usize, len: usize) -> Self {
        assert!(start <= whole.len && len <= whole.len - start, "a part is inside of its buffer");
        Self { storage: Storage::Part(Arc::clone(whole), start), len }
    }

    /// Returns the buffer of which this one is a [`part`](Self::part), and where the part begins.
    #[inline] // called for each sample
    pub fn whole(&self) -> Option<(&Arc<Self>, usize)> {
        match &self.storage {
            Storage::Part(whole, start) => Some((whole, *start)),
            _ => None,
        }
    }

    fn from_allocation(allocation: Allocation, len: usize) -> Self {
        match allocation {
            Allocation::Slot(chunk) => Self::in_slot(chunk),
            Allocation::Heap(block, pool) => Self { storage: Storage::Pooled(block, pool), len },
        }
    }

    /// Allocates `len` zero bytes on the heap. Returns `None` if there is no memory.
    pub fn on_heap(len: usize) -> Option<Self> {
        // The allocator zeroes them, which costs nothing for large buffers: their pages are fresh.
        let lines = bytemuck::allocation::try_zeroed_vec(len.div_ceil(ALIGNMENT)).ok()?;
        Some(Self { storage: Storage::Heap(lines), len })
    }

    pub(crate) fn in_slot(chunk: Chunk) -> Self {
        let len = chunk.as_bytes().len();
        Self { storage: Storage::Slot(chunk), len }
    }

    /// Returns `len` bytes of sealed memory from `start` on, which is a multiple of [`ALIGNMENT`]; `None` if
    /// the memory is too short.
    pub(crate) fn in_sealed(memory: Arc<SealedMemory>, start: usize, len: usize) -> Option<Self> {
        debug_assert_eq!(start % ALIGNMENT, 0);
        memory.bytes().get(start..start.checked_add(len)?)?;
        if len == 0 {
            // Empty memory has no mapping, and therefore no aligned address.
            return Some(Self::copy_of(&[]));
        }
        Some(Self { storage: Storage::Sealed(memory, start), len })
    }

    pub(crate) fn chunk(&self) -> Option<&Chunk> {
        match &self.storage {
            Storage::Slot(chunk) => Some(chunk),
            Storage::Heap(_) | Storage::Pooled(..) | Storage::Sealed(..) | Storage::Part(..) => None,
        }
    }

    /// True if the bytes are in a slot of shared memory.
    pub fn is_shared(&self) -> bool {
        self.chunk().is_some()
    }

    /// True if the bytes are in page-locked memory.
    pub fn is_pinned(&self) -> bool {
        match &self.storage {
            Storage::Slot(chunk) => chunk.is_pinned(),
            Storage::Pooled(block, _) => block.is_pinned(),
            Storage::Heap(_) | Storage::Sealed(..) | Storage::Part(..) => false,
        }
    }

    /// Returns the bytes.
    #[inline] // called for each sample
    pub fn as_bytes(&self) -> &[u8] {
        match &self.storage {
            Storage::Heap(lines) => &bytemuck::cast_slice(lines)[..self.len],
            Storage::Pooled(block, _) => &bytemuck::cast_slice(block.lines())[..self.len],
            Storage::Slot(chunk) => chunk.as_bytes(),
            Storage::Sealed(memory, start) => &memory.bytes()[*start..*start + self.len],
            Storage::Part(whole, start) => &whole.as_bytes()[*start..*start + self.len],
        }
    }

    /// Returns the bytes, for writing. Bytes of another buffer, and bytes that another process may read, in sealed
    /// memory or in a frozen slot, are first copied to the heap.
    ///
    /// Alternative considered: an error, as for a tensor with several handles. Rejected because a program
    /// that changes its batches would then fail with workers, but not without.
    // Called for each sample. Without inlining, the call took a third of the time of a small sample.
    #[inline(always)]
    pub fn as_bytes_mut(&mut self) -> &mut [u8] {
        let is_read_elsewhere = match &self.storage {
            Storage::Heap(_) | Storage::Pooled(..) => false,
            Storage::Slot(chunk) => chunk.is_frozen(),
            Storage::Sealed(..) | Storage::Part(..) => true,
        };
        if is_read_elsewhere {
            self.copy_to_heap();
        }
        match &mut self.storage {
            Storage::Heap(lines) => &mut bytemuck::cast_slice_mut(lines)[..self.len],
            Storage::Pooled(block, _) => &mut bytemuck::cast_slice_mut(block.lines_mut())[..self.len],
            Storage::Slot(chunk) => chunk.as_bytes_mut(),
            Storage::Sealed(..) | Storage::Part(..) => unreachable!("shared bytes were copied to the heap"),
        }
    }

    #[cold]
    fn copy_to_heap(&mut self) {
        *self = Self::copy_of(self.as_bytes());
    }

    /// Copies `bytes` to the heap.
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
    fn a_part_is_copied_before_it_is_changed() {
        let whole = Arc::new(Buffer::copy_of(&[1, 2, 3, 4]));
        let mut part = Buffer::part(&whole, 1, 2);
        assert_eq!(part.as_bytes(), [2, 3]);
        let (of, start) = part.whole().unwrap();
        assert!(Arc::ptr_eq(of, &whole) && start == 1);
        part.as_bytes_mut()[0] = 9;
        assert_eq!((part.as_bytes(), whole.as_bytes()), ([9, 3].as_slice(), [1, 2, 3, 4].as_slice()));
        assert!(part.whole().is_none());
    }

    #[test]
    fn while_samples_are_loaded_only_buffers_of_the_batch_are_in_the_arena() {
        let pool = HeapPool::default();
        let mut arena = arena::Arena::on_heap(&pool);
        assert!(Buffer::of_batch(100).is_none());
        let (of_batch, other) =
            arena.within_load(|| (Buffer::of_batch(100).unwrap(), Buffer::zeroed(100).unwrap()));
        assert!(Buffer::of_batch(100).is_none() && arena.within(|| Buffer::of_batch(100)).is_none());
        assert_eq!(of_batch.as_bytes().len(), 100);
        drop(other);
        assert_eq!(format!("{pool:?}"), "HeapPool { small: 0, large: 0 }");
        drop(of_batch);
        assert_eq!(format!("{pool:?}"), "HeapPool { small: 1, large: 0 }");
    }

    #[test]
    #[cfg_attr(miri, ignore = "filling megabytes takes minutes under Miri")]
    fn buffers_are_reused_for_about_the_same_size() {
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
