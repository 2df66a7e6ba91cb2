//! Writes a batch into its slot: the worker builds tensors there while it collates, and encodes the rest of
//! the batch behind them. [`lent`](crate::lent) reads the batch in main.
//!
//! The arena is thread-local, so that `Tensor::zeros` in any collate function allocates in shared memory. It
//! is active only while [`Arena::within`] runs; a tensor that is made outside of collation (a cached sample)
//! is copied when the batch is encoded. Alternative considered: an arena argument. Rejected because every
//! collate function and `Tensor` constructor would need it. For the same reason this module and
//! [`buffer`](crate::buffer) import each other: a buffer is allocated in the active arena, and an arena holds
//! buffers.
//!
//! While a dataset loads the samples of a batch, only [`Buffer::of_batch`] allocates in the arena, for samples that are
//! written directly into the memory of the batch. Alternative considered: an arena that is active then too. Rejected
//! because each tensor that the dataset makes and drops would take a part of the slot.

use std::{cell::RefCell, collections::BTreeMap, mem, sync::Arc, thread::LocalKey};

use serde::{Deserialize, Serialize};

use crate::{
    buffer::{ALIGNMENT, Buffer},
    codec::{self, CodecError},
    heap::{Block, HeapPool},
    sys::{Chunk, Loan, end_if_forked},
};

/// The memory in which a batch is built: a slot, or the heap.
#[derive(Debug)]
pub struct Arena {
    /// [`Arena::within`] swaps this with the content of the thread-local `CURRENT` while it runs. Boxed,
    /// because it is moved for each sample.
    backing: Option<Box<Backing>>,
}

#[derive(Debug)]
enum Backing {
    Slot(SlotArena),
    Heap(HeapPool),
}

/// Memory for one buffer.
#[derive(Debug)]
pub(crate) enum Allocation {
    Slot(Chunk),
    Heap(Block, HeapPool),
}

#[derive(Debug)]
struct SlotArena {
    loan: Loan,
    /// Number of bytes allocated. While a batch is being encoded, this may exceed the slot's length: the
    /// batch then needs a slot of this length.
    used: usize,
    is_encoding: bool,
    /// Offsets of the buffers that the encoding has copied into the slot, by address and length, so that
    /// clones of a tensor are copied once. The map holds each buffer until the batch is encoded, so that no
    /// other buffer can get its address.
    copied: BTreeMap<(usize, usize), (u64, Arc<Buffer>)>,
}

/// Range of a slot that holds the encoding of its batch, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Encoded {
    /// First byte.
    pub start: u64,
    /// Number of bytes.
    pub len: u64,
}

/// Reasons why a batch cannot be encoded into its slot.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EncodeError {
    /// The slot is too small. The batch is intact.
    #[error("the batch needs a slot of {needed} bytes")]
    TooLarge {
        /// Sufficient size of a slot, in bytes.
        needed: usize,
    },
    /// The `Serialize` implementation of the batch failed.
    #[error("the batch cannot be encoded: {0}")]
    Codec(#[from] CodecError),
}

/// Where a thread has the arena that its buffers use.
type Shared = LocalKey<RefCell<Option<Box<Backing>>>>;

thread_local! {
    /// The active arena.
    static CURRENT: RefCell<Option<Box<Backing>>> = const { RefCell::new(None) };
    /// The arena of the batch whose samples a dataset loads.
    static LOADING: RefCell<Option<Box<Backing>>> = const { RefCell::new(None) };
}

impl Arena {
    /// Creates an arena that fills one slot from its first byte.
    pub fn in_slot(loan: Loan) -> Self {
        let slot = SlotArena { loan, used: 0, is_encoding: false, copied: BTreeMap::new() };
        Self { backing: Some(Box::new(Backing::Slot(slot))) }
    }

    /// Creates an arena without slot, for loading without workers: tensors are on the heap, in memory of
    /// `pool`.
    pub fn on_heap(pool: &HeapPool) -> Self {
        Self { backing: Some(Box::new(Backing::Heap(pool.clone()))) }
    }

    /// Runs `collate`, during which this thread allocates buffers in this arena, or on the heap if they do
    /// not fit.
    pub fn within<R>(&mut self, collate: impl FnOnce() -> R) -> R {
        self.with_backing_in(&CURRENT, collate)
    }

    /// Runs `load`, during which [`Buffer::of_batch`] allocates in this arena.
    pub fn within_load<R>(&mut self, load: impl FnOnce() -> R) -> R {
        self.with_backing_in(&LOADING, load)
    }

    #[inline]
    fn with_backing_in<R>(&mut self, shared: &'static Shared, call: impl FnOnce() -> R) -> R {
        /// Moves the backing back into the arena, even when `call` panics.
        struct Restore<'a>(&'a mut Option<Box<Backing>>, &'static Shared);
        impl Drop for Restore<'_> {
            fn drop(&mut self) {
                self.1.with_borrow_mut(|shared| mem::swap(shared, self.0));
            }
        }
        shared.with_borrow_mut(|shared| mem::swap(shared, &mut self.backing));
        let _restore = Restore(&mut self.backing, shared);
        call()
    }

    /// Encodes `batch` into the slot. Tensors that are in the slot already stay where they are, other tensors
    /// are copied into the slot, and the rest of the batch follows. A tensor and its clones are stored once.
    ///
    /// # Errors
    /// [`EncodeError::TooLarge`] if the slot is too small: encode the batch again into a slot of the size
    /// that the error names. [`EncodeError::Codec`] if the batch cannot be serialised.
    ///
    /// # Panics
    /// If this arena has no slot.
    pub fn encode<B: Serialize>(&mut self, batch: &B) -> Result<Encoded, EncodeError> {
        let slot = self.slot();
        // Freezes the tensors, so that main does not see a change that user code makes later to a tensor that
        // it has kept.
        slot.loan.freeze();
        slot.is_encoding = true;
        let before = slot.used;
        let bytes = self.within(|| codec::encode(batch));
        // The batch's `Serialize` is user code, which may have forked, and only the worker may write to the
        // slot.
        end_if_forked();
        let slot = self.slot();
        slot.is_encoding = false;
        slot.copied.clear();
        let bytes = bytes?;
        match slot.put(&bytes) {
            Some(start) => Ok(Encoded { start, len: bytes.len() as u64 }),
            None => Err(EncodeError::TooLarge { needed: mem::replace(&mut slot.used, before) }),
        }
    }
}

impl Arena {
    fn slot(&mut self) -> &mut SlotArena {
        match self.backing.as_deref_mut() {
            Some(Backing::Slot(slot)) => slot,
            _ => panic!("an arena without slot cannot encode a batch"),
        }
    }
}

impl SlotArena {
    fn allocate(&mut self, len: usize) -> Option<Chunk> {
        let start = self.used.next_multiple_of(ALIGNMENT);
        self.used = start.checked_add(len)?;
        self.loan.take(start..self.used).ok()
    }

    /// Appends `bytes`. Returns their offset; `None` if the slot is too small.
    fn put(&mut self, bytes: &[u8]) -> Option<u64> {
        let start = self.used.next_multiple_of(ALIGNMENT);
        self.used = start.checked_add(bytes.len())?;
        self.loan.put(start, bytes).ok()?;
        Some(start as u64)
    }
}

/// Allocates `len` bytes in the arena that is active on this thread. Returns `None` if no arena is active, if
/// a batch is being encoded, or if there is no room.
pub(crate) fn allocate(len: usize) -> Option<Allocation> {
    allocate_in(&CURRENT, len)
}

/// Allocates `len` bytes in the arena of the batch whose samples this thread loads. Returns `None` if it loads none, or
/// if there is no room.
pub(crate) fn allocate_while_loading(len: usize) -> Option<Allocation> {
    allocate_in(&LOADING, len)
}

#[inline]
fn allocate_in(shared: &'static Shared, len: usize) -> Option<Allocation> {
    shared.with_borrow_mut(|backing| match backing.as_deref_mut()? {
        Backing::Heap(pool) => Some(Allocation::Heap(pool.take(len.div_ceil(ALIGNMENT))?, pool.clone())),
        Backing::Slot(slot) if slot.is_encoding => None,
        Backing::Slot(slot) => {
            let before = slot.used;
            let chunk = slot.allocate(len);
            if chunk.is_none() {
                // The caller allocates on the heap, and the buffer is counted when the batch is encoded.
                slot.used = before;
            }
            chunk.map(Allocation::Slot)
        }
    })
}

/// Returns true while this thread encodes a batch into a slot.
pub fn is_encoding() -> bool {
    CURRENT.with_borrow(|current| matches!(current.as_deref(), Some(Backing::Slot(slot)) if slot.is_encoding))
}

/// Returns the offset of the first `len` bytes of `buffer` in the slot that this thread is encoding into.
/// Copies them there, once per batch, if they are elsewhere. Returns `None` if no batch is being encoded: the
/// caller must serialise the bytes themselves.
pub fn ensure_in_slot(buffer: &Arc<Buffer>, len: usize) -> Option<u64> {
    CURRENT.with_borrow_mut(|current| {
        let Some(Backing::Slot(arena)) = current.as_deref_mut() else { return None };
        if !arena.is_encoding {
            return None;
        }
        if let Some(chunk) = buffer.chunk().filter(|chunk| arena.loan.owns(chunk)) {
            return Some(chunk.offset() as u64);
        }
        let key = (Arc::as_ptr(buffer).addr(), len);
        if let Some((offset, _)) = arena.copied.get(&key) {
            return Some(*offset);
        }
        // If the slot is full, `put` only counts, for the size that `Arena::encode` reports. The offset is
        // then never used.
        let offset = arena.used.next_multiple_of(ALIGNMENT) as u64;
        arena.put(&buffer.as_bytes()[..len]);
        arena.copied.insert(key, (offset, Arc::clone(buffer)));
        Some(offset)
    })
}
