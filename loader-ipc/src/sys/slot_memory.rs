//! The memory of slots, and the ownership of its bytes.
//!
//! Between processes, the protocol decides who may access a slot: its worker while it is leased, main once it
//! has read `Done`. Within one process, these types decide: a slot has at most one [`Loan`] at a time, and a
//! loan gives each byte to at most one [`Chunk`].

use std::{
    any::Any,
    collections::BTreeMap,
    fmt, io, mem,
    num::NonZeroUsize,
    ops::Range,
    os::fd::AsFd,
    ptr::NonNull,
    slice,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
};

use loader_pinning::{Pinner, Registration};

use super::{Access, Mapping, require_fixed_size};

/// Shared memory of one or more slots of the same size, mapped for reading and writing.
#[derive(Debug)]
pub struct SlotRegion {
    mapping: Mapping,
    slot_len: NonZeroUsize,
    /// By position in the region: true if the [`SlotMemory`] exists in this process.
    taken: Box<[AtomicBool]>,
}

impl SlotRegion {
    /// Maps `count` slots of `slot_len` bytes each, from the start of `fd` on. A process maps a region once:
    /// a second mapping would be a second owner of its bytes.
    ///
    /// # Errors
    /// `InvalidInput` if `fd` is too short or can still shrink (accessing it could then raise a signal);
    /// otherwise the error of the system call.
    pub fn map(fd: impl AsFd, slot_len: NonZeroUsize, count: NonZeroUsize) -> io::Result<Arc<Self>> {
        let len = slot_len.checked_mul(count).ok_or(io::ErrorKind::InvalidInput)?;
        require_fixed_size(fd.as_fd(), len.get())?;
        Ok(Self::over(Mapping::new(fd.as_fd(), len, Access::Write)?, slot_len))
    }

    /// Maps `count` slots of `slot_len` bytes each of zeroed memory that only this process has.
    ///
    /// # Errors
    /// `InvalidInput` if the length overflows; otherwise the error of `mmap`.
    pub fn of_this_process(slot_len: NonZeroUsize, count: NonZeroUsize) -> io::Result<Arc<Self>> {
        let len = slot_len.checked_mul(count).ok_or(io::ErrorKind::InvalidInput)?;
        Ok(Self::over(Mapping::anonymous(len)?, slot_len))
    }

    fn over(mapping: Mapping, slot_len: NonZeroUsize) -> Arc<Self> {
        let taken = (0..mapping.len() / slot_len).map(|_| AtomicBool::new(false)).collect();
        Arc::new(Self { mapping, slot_len, taken })
    }

    /// Returns the slot at `position`, counted from 0, page-locked by `pinner`; if that fails, `pinner` keeps
    /// the error. Returns `None` if there is no such position, or if its slot exists already.
    pub fn slot(self: &Arc<Self>, position: usize, pinner: Option<&Pinner>) -> Option<Arc<SlotMemory>> {
        // Acquire pairs with the Release in `SlotMemory::drop`. Only one caller can turn false into true.
        if self.taken.get(position)?.swap(true, Ordering::Acquire) {
            return None;
        }
        // SAFETY: inside the mapping, because `taken` has as many entries as the mapping has whole slots.
        let start = unsafe { self.mapping.start().add(position * self.slot_len.get()) };
        // SAFETY: the slot's bytes are mapped for writing, by a region that `SlotMemory` holds, and that
        // `SlotMemory::drop` releases only if the registration has ended.
        let register = |pinner: &Pinner| unsafe { pinner.register(start, self.slot_len.get()) };
        let registration = pinner.and_then(register);
        let region = Arc::clone(self);
        Some(Arc::new(SlotMemory { region, position, start, registration, lent: AtomicBool::new(false) }))
    }
}

/// The memory of one slot.
#[derive(Debug)]
pub struct SlotMemory {
    region: Arc<SlotRegion>,
    position: usize,
    start: NonNull<u8>,
    registration: Option<Registration>,
    lent: AtomicBool,
}

// SAFETY: the mapping belongs to the process, not to a thread, and its bytes are accessed only through loans.
unsafe impl Send for SlotMemory {}
// SAFETY: as above.
unsafe impl Sync for SlotMemory {}

impl Drop for SlotMemory {
    fn drop(&mut self) {
        if self.registration.take().is_some_and(|registration| !registration.end()) {
            // The driver still has the range registered: it stays mapped, and is never used again.
            mem::forget(Arc::clone(&self.region));
            return;
        }
        // Release pairs with the Acquire in `SlotRegion::slot`: the next owner sees every access through this
        // one.
        self.region.taken[self.position].store(false, Ordering::Release);
    }
}

impl SlotMemory {
    /// Maps a region of one slot, see [`SlotRegion::map`].
    ///
    /// # Errors
    /// As [`SlotRegion::map`].
    pub fn map(fd: impl AsFd, len: NonZeroUsize) -> io::Result<Arc<Self>> {
        Ok(Self::only_slot(SlotRegion::map(fd, len, NonZeroUsize::MIN)?))
    }

    /// Maps a slot of zeroed memory that only this process has.
    ///
    /// # Errors
    /// The error of `mmap`.
    pub fn of_this_process(len: NonZeroUsize) -> io::Result<Arc<Self>> {
        Ok(Self::only_slot(SlotRegion::of_this_process(len, NonZeroUsize::MIN)?))
    }

    fn only_slot(region: Arc<SlotRegion>) -> Arc<Self> {
        region.slot(0, None).expect("the region is new")
    }

    /// Returns the size in bytes.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.region.slot_len.get()
    }

    /// True from [`lend`](Self::lend) until the loan and its last chunk are dropped.
    pub fn is_lent(&self) -> bool {
        // Acquire pairs with the Release in `LoanState::drop`: a thread that sees false also sees every write
        // through the old chunks.
        self.lent.load(Ordering::Acquire)
    }

    /// Lends the slot; `None` while an earlier loan or a chunk of it exists. `ticket` is dropped with the
    /// last chunk: in main, this returns the slot to the pool.
    pub fn lend(self: &Arc<Self>, ticket: impl Any + Send + Sync) -> Option<Loan> {
        // Acquire: see `is_lent`. Only one caller can turn false into true.
        if self.lent.swap(true, Ordering::Acquire) {
            return None;
        }
        let state =
            LoanState { memory: Arc::clone(self), frozen: AtomicBool::new(false), _ticket: Box::new(ticket) };
        Some(Loan { state: Arc::new(state), taken: BTreeMap::new() })
    }
}

/// Exclusive use of one slot within this process. It ends when the loan and every [`Chunk`] taken from it are
/// dropped.
#[derive(Debug)]
pub struct Loan {
    state: Arc<LoanState>,
    /// Start and end of each range that was taken. The ranges are disjoint.
    taken: BTreeMap<usize, usize>,
}

struct LoanState {
    memory: Arc<SlotMemory>,
    /// True if the other process may read the bytes too: no chunk, taken now or later, may be written.
    frozen: AtomicBool,
    /// Dropped after `Drop` below has cleared `lent`.
    _ticket: Box<dyn Any + Send + Sync>,
}

impl fmt::Debug for LoanState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoanState").field("memory", &self.memory).finish_non_exhaustive()
    }
}

impl Drop for LoanState {
    fn drop(&mut self) {
        // Release pairs with the Acquire of the next `lend`.
        self.memory.lent.store(false, Ordering::Release);
    }
}

/// Reasons why a range cannot be taken from a [`Loan`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChunkError {
    /// The range is not inside the slot, or not aligned as a tensor must be.
    #[error("bytes {start}..{end} are outside the slot or not aligned")]
    OutOfBounds {
        /// First byte.
        start: usize,
        /// One past the last byte.
        end: usize,
    },
    /// A part of the range already belongs to another chunk.
    #[error("bytes {start}..{end} overlap another range of the slot")]
    Overlap {
        /// First byte.
        start: usize,
        /// One past the last byte.
        end: usize,
    },
}

/// A reference to a [`Loan`] that does not keep it.
#[derive(Debug)]
pub struct WeakLoan(Weak<LoanState>);

/// Keeps a [`Loan`], so that its slot is not used again.
#[derive(Debug)]
pub struct KeptLoan(#[allow(dead_code, reason = "its drop ends the loan")] Arc<LoanState>);

impl WeakLoan {
    /// Returns what keeps the loan; `None` if it has ended.
    pub fn keep(&self) -> Option<KeptLoan> {
        self.0.upgrade().map(KeptLoan)
    }

    /// True if the loan has ended.
    pub fn has_ended(&self) -> bool {
        self.0.strong_count() == 0
    }
}

impl Loan {
    /// Returns a reference that does not keep the loan.
    pub fn downgrade(&self) -> WeakLoan {
        WeakLoan(Arc::downgrade(&self.state))
    }

    /// Returns the size of the slot in bytes.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.state.memory.len()
    }

    /// True if `chunk` was taken from this loan.
    pub fn owns(&self, chunk: &Chunk) -> bool {
        Arc::ptr_eq(&self.state, &chunk.state)
    }

    /// Makes all chunks of this loan read-only for good, including those that are taken later. A worker
    /// freezes the loan of a batch before it encodes the batch. Main freezes its loan if the worker still
    /// holds a tensor of the batch.
    pub fn freeze(&self) {
        // Release pairs with the Acquire in `is_frozen`. SeqCst is not needed: a thread that still has a
        // `&mut` into a chunk of the batch must pass the tensor on to be encoded, which orders its writes
        // before the encoding.
        self.state.frozen.store(true, Ordering::Release);
    }

    /// Takes a range from `start` on and writes `bytes` to it, even if the loan is frozen: no other chunk has
    /// these bytes.
    ///
    /// # Errors
    /// As [`take`](Self::take).
    pub fn put(&mut self, start: usize, bytes: &[u8]) -> Result<(), ChunkError> {
        let end = start.checked_add(bytes.len()).ok_or(ChunkError::OutOfBounds { start, end: usize::MAX })?;
        self.take(start..end)?.as_bytes_mut().copy_from_slice(bytes);
        Ok(())
    }

    /// Takes `range` from the loan. A range can be taken only once in a loan.
    ///
    /// # Errors
    /// [`ChunkError`] if a byte of the range is outside the slot or was taken before.
    pub fn take(&mut self, range: Range<usize>) -> Result<Chunk, ChunkError> {
        let Range { start, end } = range;
        if start > end || end > self.len() {
            return Err(ChunkError::OutOfBounds { start, end });
        }
        if start < end {
            // Only the last range that begins before `end` can reach beyond `start`, because taken ranges are
            // disjoint.
            if self.taken.range(..end).next_back().is_some_and(|(_, &other_end)| other_end > start) {
                return Err(ChunkError::Overlap { start, end });
            }
            self.taken.insert(start, end);
        }
        let base = self.state.memory.start;
        // SAFETY: start <= end <= the slot's length, so the address is inside it (or one past its end for an
        // empty chunk).
        let first = unsafe { base.add(start) };
        Ok(Chunk { state: Arc::clone(&self.state), first, offset: start, len: end - start })
    }
}

/// A range of a slot, of which it is the only owner within this process.
#[derive(Debug)]
pub struct Chunk {
    state: Arc<LoanState>,
    first: NonNull<u8>,
    offset: usize,
    len: usize,
}

// SAFETY: a chunk owns its bytes as a `Box<[u8]>` does: `Loan::take` gives no byte to two chunks.
unsafe impl Send for Chunk {}
// SAFETY: `&Chunk` only reads.
unsafe impl Sync for Chunk {}

impl Chunk {
    /// Returns the offset in the slot, in bytes.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// True if its slot is page-locked in this process.
    pub fn is_pinned(&self) -> bool {
        self.state.memory.registration.as_ref().is_some_and(Registration::is_valid)
    }

    /// Returns the bytes.
    pub fn as_bytes(&self) -> &[u8] {
        // SAFETY: (1) Mapped: `state` holds the mapping, whose file is sealed against shrinking. (2)
        // Initialised: pages of a memfd start as zeros. (3) Not written while the slice exists: in this
        // process, writing needs `&mut Chunk`, and no other chunk has these bytes; the protocol forbids it to
        // other processes while the slot is lent here.
        unsafe { slice::from_raw_parts(self.first.as_ptr(), self.len) }
    }

    /// True if the loan is frozen: the bytes must be copied before they are changed.
    #[inline]
    pub fn is_frozen(&self) -> bool {
        // Acquire pairs with the Release in `freeze`.
        self.state.frozen.load(Ordering::Acquire)
    }

    /// Returns the bytes, for writing. The caller must have checked that the loan [is not
    /// frozen](Self::is_frozen), or know that no other process has read the bytes yet.
    #[inline]
    pub(crate) fn as_bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `as_bytes`. `&mut self` makes the access unique in this process.
        unsafe { slice::from_raw_parts_mut(self.first.as_ptr(), self.len) }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    fn slot() -> Arc<SlotMemory> {
        SlotMemory::of_this_process(NonZeroUsize::new(4096).unwrap()).unwrap()
    }

    #[test]
    fn a_position_of_a_region_has_at_most_one_slot() {
        let page = NonZeroUsize::new(4096).unwrap();
        let region = SlotRegion::of_this_process(page, NonZeroUsize::new(3).unwrap()).unwrap();
        let slots = [0, 1, 2].map(|position| region.slot(position, None).unwrap());
        assert!(region.slot(1, None).is_none() && region.slot(3, None).is_none());
        for (number, slot) in slots.iter().enumerate() {
            slot.lend(()).unwrap().put(0, &[number as u8; 4096]).unwrap();
        }
        for (number, slot) in slots.iter().enumerate() {
            assert_eq!(slot.lend(()).unwrap().take(0..4096).unwrap().as_bytes(), [number as u8; 4096]);
        }
        let loan = slots[1].lend(()).unwrap();
        drop(slots);
        assert!(region.slot(1, None).is_none(), "the slot is lent");
        drop(loan);
        assert!(region.slot(1, None).is_some());
    }

    #[test]
    fn every_byte_has_one_owner() {
        let slot = slot();
        let mut loan = slot.lend(()).unwrap();
        assert!(slot.lend(()).is_none(), "the slot is lent");
        let (mut first, mut second) = (loan.take(0..64).unwrap(), loan.take(64..128).unwrap());
        for (range, error) in [
            (63..65, ChunkError::Overlap { start: 63, end: 65 }),
            (0..4096, ChunkError::Overlap { start: 0, end: 4096 }),
            (4000..4097, ChunkError::OutOfBounds { start: 4000, end: 4097 }),
        ] {
            assert_eq!(loan.take(range).unwrap_err(), error);
        }
        assert!(matches!(loan.put(usize::MAX, b"far"), Err(ChunkError::OutOfBounds { .. })));
        assert_eq!(loan.take(4096..4096).unwrap().as_bytes(), b"");
        // Two threads write side by side.
        thread::scope(|scope| {
            scope.spawn(|| first.as_bytes_mut().fill(1));
            scope.spawn(|| second.as_bytes_mut().fill(2));
        });
        assert_eq!((first.as_bytes(), second.as_bytes()), (&[1; 64][..], &[2; 64][..]));
        assert!(loan.owns(&first));
    }

    #[test]
    fn a_frozen_loan_can_be_read_and_extended() {
        let slot = slot();
        let mut loan = slot.lend(()).unwrap();
        let mut chunk = loan.take(0..8).unwrap();
        chunk.as_bytes_mut().copy_from_slice(b"content.");
        assert!(!chunk.is_frozen());
        loan.freeze();
        assert!(chunk.is_frozen() && loan.take(8..8).unwrap().is_frozen());
        loan.put(8, b"encoding").unwrap();
        drop(loan);
        assert!(slot.is_lent(), "a chunk keeps the slot lent");
        assert_eq!(chunk.as_bytes(), b"content.");
        drop(chunk);
        let mut again = slot.lend(()).unwrap();
        assert_eq!(again.take(0..16).unwrap().as_bytes(), b"content.encoding");
    }
}
