//! The slots of one loader, in main: shared memory that is made once and reused for many batches.
//!
//! ```text
//!          lease                 Done                    last tensor dropped
//!   free ---------> leased ----------------> lent ------------------------------> free
//!     ^               |  (lend)                |  (a worker holds a tensor)
//!     +---------------+                        +------------------------------> destroyed
//!        release: failed, skipped, its worker died
//! ```
//!
//! Small slots share memfds (`slots/regions.rs`), so that a program can hold many batches with few
//! descriptors; a slot of 1 MiB or more has its own memfd. A slot is never resized: a batch that needs more
//! gets another slot. Free slots that workers do not need are destroyed, so that memory and descriptors go
//! back when the program drops batches.
//!
//! Alternative considered: one memfd for each slot. Rejected because a program that holds a thousand small
//! batches then needs a thousand descriptors, as many as a process has by default. One memfd for all slots
//! was rejected because its address space must be chosen beforehand, and because a stray write of a worker
//! could then reach every slot.

mod error;
mod loans;
mod recent;
mod regions;
mod table;

use std::{
    process,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    thread::{self, ThreadId},
};

use loader_pinning::Pinner;

pub use error::SlotError;
pub use loans::{KeptLoans, keep_all, note_all};
pub use regions::SharedRegion;
use regions::{Region, Sharing};
use table::{State, Table};

use crate::{frame::Lease, sys::Loan};

/// Size of the first slots and minimum size of all, in bytes. Small, because the size of a batch is not known
/// yet.
pub const FIRST_LEN: usize = 64 * 1024;
/// Number of returned slots at which the thread that drops a batch puts them back into the pool itself.
const MANY_RETURNS: usize = 64;

/// A handle to all slots of a loader, which its iterators share. Clones belong to the same iterator; see
/// [`of_iterator`](Self::of_iterator).
#[derive(Debug, Clone)]
pub struct SlotPool {
    table: Arc<Mutex<Table>>,
    returns: Arc<Returns>,
    owner: Arc<Owner>,
}

/// An iterator, identified by the thread that uses it. The iterator exists as long as an [`Arc`] of this
/// value.
#[derive(Debug)]
struct Owner(Mutex<ThreadId>);

impl Owner {
    fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::new(thread::current().id())))
    }
}

/// Returned slots. A thread that drops the last tensor of a batch adds its slot, and the next call of the
/// pool takes them back.
#[derive(Debug)]
struct Returns {
    slots: Mutex<Vec<u32>>,
    pool: Weak<Mutex<Table>>,
}

/// Returns a lent slot on drop.
#[derive(Debug)]
struct Ticket {
    slot: u32,
    returns: Arc<Returns>,
    /// The process that has lent the slot.
    owner: u32,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        // A forked child has a copy of the pool, and another thread may have held its lock at the fork.
        if self.owner != process::id() {
            return;
        }
        let count = {
            let mut slots = lock(&self.returns.slots);
            slots.push(self.slot);
            slots.len()
        };
        // The next call of the pool takes back fewer slots than this. So does the next call of another thread
        // that holds the lock now.
        if count >= MANY_RETURNS
            && let Some(pool) = self.returns.pool.upgrade()
            && let Ok(mut table) = pool.try_lock()
        {
            table.take_back_all(&self.returns);
        }
    }
}

impl SlotPool {
    /// Creates a pool whose slots never take more than `limit` bytes.
    pub fn new(limit: u64) -> Self {
        Self::pinned(limit, None)
    }

    /// As [`new`](Self::new), with slots that `pinner` page-locks. A slot that it cannot page-lock is
    /// ordinary memory.
    pub fn pinned(limit: u64, pinner: Option<Pinner>) -> Self {
        Self::over(Table::new(limit, pinner, Sharing::WithWorkers))
    }

    /// Creates a pool for a test or a simulation without workers: the slots are memory of this process, which
    /// takes no pages until something writes to it. [`region_of`](Self::region_of) returns `None`.
    pub fn of_this_process(limit: u64) -> Self {
        Self::over(Table::new(limit, None, Sharing::None))
    }

    fn over(table: Table) -> Self {
        let table = Arc::new(Mutex::new(table));
        let returns = Returns { slots: Mutex::default(), pool: Arc::downgrade(&table) };
        Self { table, returns: Arc::new(returns), owner: Owner::new() }
    }

    /// Returns a handle to the same slots for another iterator, which the calling thread uses.
    #[must_use]
    pub fn of_iterator(&self) -> Self {
        Self { owner: Owner::new(), ..self.clone() }
    }

    /// Returns the number of slots that other iterators lease, or have lent to the program.
    pub fn used_by_other_iterators(&self) -> usize {
        self.lock().used_by_others(&self.owner).count()
    }

    /// Notes which thread uses this iterator from now on.
    pub fn set_user(&self, thread: ThreadId) {
        *lock(&self.owner.0) = thread;
    }

    /// True if other iterators have slots that may become free while the thread that uses this iterator
    /// waits. Slots of an iterator that the same thread uses cannot become free, because the thread cannot
    /// take batches from that iterator while it waits.
    pub fn others_may_return_slots(&self) -> bool {
        let this = *lock(&self.owner.0);
        self.lock().used_by_others(&self.owner).any(|owner| *lock(&owner.0) != this)
    }

    /// Returns the number of times that a slot has become free so far.
    pub fn returned(&self) -> u64 {
        self.lock().returned
    }

    /// Leases a slot with room for `min_len` bytes and for the largest of the recent batches; if several are
    /// free, one that `preferred` accepts. `others` more such slots must still fit afterwards, because
    /// earlier tasks may ask for larger slots.
    ///
    /// # Errors
    /// [`SlotError::LimitReached`] or [`SlotError::System`].
    pub fn lease(
        &self,
        min_len: usize,
        others: usize,
        preferred: impl Fn(u32) -> bool,
    ) -> Result<Lease, SlotError> {
        self.lock().lease_expected(min_len, others, preferred, &self.owner)
    }

    /// Leases a slot of at least `min_len` bytes, whatever the size of recent batches. The worker may ask for
    /// a larger slot.
    ///
    /// # Errors
    /// [`SlotError::LimitReached`] or [`SlotError::System`].
    pub fn lease_small(&self, min_len: usize) -> Result<Lease, SlotError> {
        self.lock().lease_small(min_len, &self.owner)
    }

    /// Leases a slot of at least `needed` bytes. It replaces the slot of `lease`, if there is one, which is
    /// destroyed; `others` as in [`lease`](Self::lease).
    ///
    /// # Errors
    /// [`SlotError`]. `lease` is then unchanged.
    pub fn regrow(&self, lease: Option<Lease>, needed: usize, others: usize) -> Result<Lease, SlotError> {
        self.lock().regrow(lease, needed, others, &self.owner)
    }

    /// Leases the most recently used free slot that `wanted` accepts, if it is at least as large as the slot
    /// of `lease` and was used later. Returns `None` if there is no such slot.
    pub fn lease_warmer(&self, lease: Lease, wanted: impl Fn(u32) -> bool) -> Option<Lease> {
        self.lock().lease_warmer(lease, wanted, &self.owner)
    }

    /// Returns the expected size of the next batch, in bytes: the largest of the recent sizes, at least
    /// [`FIRST_LEN`].
    pub fn expected(&self) -> usize {
        self.lock().expected()
    }

    /// Returns the limit, in bytes.
    pub fn limit(&self) -> u64 {
        self.lock().limit
    }

    /// Gives a lease back unused; `kept_by_worker` as in [`lend`](Self::lend). Ignores a lease that has
    /// ended.
    pub fn release(&self, lease: Lease, kept_by_worker: bool) {
        self.lock().release(lease, kept_by_worker);
    }

    /// Turns a lease into a loan to the user. The batch takes the slot's first `used` bytes. If the worker
    /// still holds a tensor in the slot (`kept_by_worker`), main neither writes to the slot nor reuses it.
    ///
    /// # Errors
    /// [`SlotError::NotLeased`] if `lease` has ended or never existed.
    pub fn lend(&self, lease: Lease, used: u64, kept_by_worker: bool) -> Result<Loan, SlotError> {
        let loan = self.lock().lend(lease, used, kept_by_worker, &self.returns)?;
        loans::note(&loan);
        Ok(loan)
    }

    /// Writes long parts of a task, such as the indices of a large batch, to the start of its leased slot.
    ///
    /// # Errors
    /// [`SlotError::NotLeased`], also if the slot is too small.
    pub fn write(&self, lease: Lease, bytes: &[u8]) -> Result<(), SlotError> {
        self.lock().write(lease, bytes)
    }

    /// Returns the region of a slot number, to be sent to a worker; `None` if there is no such region, or if
    /// workers cannot map it.
    pub fn region_of(&self, slot: u32) -> Option<SharedRegion> {
        self.lock().region_of(slot).and_then(Region::share)
    }

    /// True if the slot exists.
    pub fn exists(&self, slot: u32) -> bool {
        self.lock().exists(slot)
    }

    /// True if the region with this first slot exists. Main tells workers to unmap those that do not.
    pub fn has_region(&self, first: u32) -> bool {
        self.lock().has_region(first)
    }

    /// Returns the number of regions destroyed so far. While it stays the same, workers need not unmap any.
    pub fn destroyed_regions(&self) -> u64 {
        self.lock().destroyed
    }

    /// Returns the number of batches that the program holds.
    pub fn held(&self) -> usize {
        self.lock().count(State::Lent)
    }

    /// Returns the leases that have not ended, of all iterators.
    pub fn leases(&self) -> Vec<Lease> {
        self.lock().leases()
    }

    /// Returns the number of bytes in all slots.
    pub fn bytes(&self) -> u64 {
        self.lock().bytes
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        let mut table = lock(&self.table);
        table.take_back_all(&self.returns);
        table
    }
}

/// Locks `mutex`, even if it is poisoned: no change of the table leaves it inconsistent if it panics.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
