//! The worker's half of a batch's way through a slot: tensors are made in the slot while the batch is collated, and what is
//! not a tensor is encoded behind them. The main half is [`lent`](crate::lent).
//!
//! Two ways were weighed. An explicit arena argument would have to pass through every user's collation and every `Tensor`
//! constructor; a thread-local one is invisible and lets `Tensor::zeros` in a closure land in shared memory. The second won;
//! the price is that a tensor made outside of collation (a cached sample) must be told apart, which [`Arena::within`] does by
//! being on only while collation runs.

use std::{cell::RefCell, collections::BTreeMap, mem, sync::Arc};

use serde::{Deserialize, Serialize};

use crate::{
    buffer::{ALIGNMENT, Buffer},
    codec::{self, CodecError},
    heap::{Block, HeapPool},
    sys::{Chunk, Loan, end_if_forked},
};

/// Where a batch is put together: a slot, or the heap.
#[derive(Debug)]
pub struct Arena {
    /// Moved to the thread while it collates, which happens for each sample; boxed, so that this is quick.
    here: Option<Box<Room>>,
}

#[derive(Debug)]
enum Room {
    Slot(SlotArena),
    Heap(HeapPool),
}

/// Memory for one buffer.
#[derive(Debug)]
pub(crate) enum Place {
    Slot(Chunk),
    Heap(Block, HeapPool),
}

#[derive(Debug)]
struct SlotArena {
    loan: Loan,
    /// Bytes handed out, counting on when the slot is full: then it says how large a slot must be.
    used: usize,
    encoding: bool,
    /// Where the encoding has put buffers that did not lie in the slot, by their address and length: clones are copied once. Each
    /// buffer is held until the batch is encoded, so that no other buffer can get its address.
    copied: BTreeMap<(usize, usize), (u64, Arc<Buffer>)>,
}

/// Where in its slot the encoding of a batch lies, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Encoded {
    /// First byte.
    pub start: u64,
    /// Number of bytes.
    pub len: u64,
}

/// Why a batch could not be encoded into its slot.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EncodeError {
    /// The slot is too small; nothing of the batch is lost.
    #[error("the batch needs a slot of {needed} bytes")]
    TooLarge {
        /// Bytes that would do.
        needed: usize,
    },
    /// The batch's own `Serialize` failed.
    #[error("the batch cannot be encoded: {0}")]
    Codec(#[from] CodecError),
}

thread_local! {
    static CURRENT: RefCell<Option<Box<Room>>> = const { RefCell::new(None) };
}

impl Arena {
    /// An arena that fills one slot from its first byte.
    pub fn in_slot(loan: Loan) -> Self {
        let slot = SlotArena { loan, used: 0, encoding: false, copied: BTreeMap::new() };
        Self { here: Some(Box::new(Room::Slot(slot))) }
    }

    /// No slot: tensors are made on the heap, in memory of `pool`. For loading without workers.
    pub fn on_heap(pool: &HeapPool) -> Self {
        Self { here: Some(Box::new(Room::Heap(pool.clone()))) }
    }

    /// Runs `collate` with this arena as the place where this thread's new buffers go. What does not fit goes to the heap.
    pub fn within<R>(&mut self, collate: impl FnOnce() -> R) -> R {
        /// Takes the arena back, also when `collate` panics.
        struct Restore<'a>(&'a mut Option<Box<Room>>);
        impl Drop for Restore<'_> {
            fn drop(&mut self) {
                CURRENT.with_borrow_mut(|current| mem::swap(current, self.0));
            }
        }
        CURRENT.with_borrow_mut(|current| mem::swap(current, &mut self.here));
        let _restore = Restore(&mut self.here);
        collate()
    }

    /// Encodes `batch` into the slot: tensors that lie in it already by reference, the others copied in, the rest behind them. A tensor
    /// and its clones take one place.
    ///
    /// # Errors
    /// [`EncodeError::TooLarge`] when the slot is too small: encode again into a slot of the size it names.
    ///
    /// # Panics
    /// When this arena has no slot.
    pub fn encode<B: Serialize>(&mut self, batch: &B) -> Result<Encoded, EncodeError> {
        let slot = self.slot();
        // Before the encoding: a tensor that user code keeps must not change what main will read.
        slot.loan.freeze();
        slot.encoding = true;
        let before = slot.used;
        let bytes = self.within(|| codec::encode(batch));
        // The batch's `Serialize` is user code, and its encoding is written into the slot.
        end_if_forked();
        let slot = self.slot();
        slot.encoding = false;
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
        match self.here.as_deref_mut() {
            Some(Room::Slot(slot)) => slot,
            _ => panic!("only a batch in a slot is encoded"),
        }
    }
}

impl SlotArena {
    fn allocate(&mut self, len: usize) -> Option<Chunk> {
        let start = self.used.next_multiple_of(ALIGNMENT);
        self.used = start.checked_add(len)?;
        self.loan.take(start..self.used).ok()
    }

    /// Copies `bytes` behind what is there; gives their place.
    fn put(&mut self, bytes: &[u8]) -> Option<u64> {
        let start = self.used.next_multiple_of(ALIGNMENT);
        self.used = start.checked_add(bytes.len())?;
        self.loan.put(start, bytes).ok()?;
        Some(start as u64)
    }
}

/// Memory for a buffer of `len` bytes of the batch that this thread is collating; `None` when it collates none, or its slot is full.
pub(crate) fn allocate(len: usize) -> Option<Place> {
    CURRENT.with_borrow_mut(|current| match current.as_deref_mut()? {
        Room::Heap(pool) => Some(Place::Heap(pool.take(len.div_ceil(ALIGNMENT))?, pool.clone())),
        Room::Slot(slot) if slot.encoding => None,
        Room::Slot(slot) => {
            let before = slot.used;
            let chunk = slot.allocate(len);
            if chunk.is_none() {
                slot.used = before; // it goes to the heap, and is counted when the batch is encoded
            }
            chunk.map(Place::Slot)
        }
    })
}

/// The place of `buffer`'s first `len` bytes in the slot that this thread is encoding into. Copies them there, once per batch, if they lie
/// elsewhere. `None` when no batch is being encoded, so that the bytes must be written out.
pub fn place(buffer: &Arc<Buffer>, len: usize) -> Option<u64> {
    CURRENT.with_borrow_mut(|current| {
        let Some(Room::Slot(arena)) = current.as_deref_mut() else { return None };
        if !arena.encoding {
            return None;
        }
        if let Some(chunk) = buffer.chunk().filter(|chunk| arena.loan.owns(chunk)) {
            return Some(chunk.offset() as u64);
        }
        let key = (Arc::as_ptr(buffer).addr(), len);
        if let Some((offset, _)) = arena.copied.get(&key) {
            return Some(*offset);
        }
        // When the slot is full, go on counting: the caller learns the size that is needed, and the offset is never used.
        let offset = arena.used.next_multiple_of(ALIGNMENT) as u64;
        arena.put(&buffer.as_bytes()[..len]);
        arena.copied.insert(key, (offset, Arc::clone(buffer)));
        Some(offset)
    })
}
