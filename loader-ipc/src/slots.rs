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

mod recent;
mod regions;

use std::{
    collections::{BTreeMap, BTreeSet},
    io, mem,
    num::NonZeroUsize,
    process,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    thread::{self, ThreadId},
};

use loader_pinning::Pinner;
use recent::RecentSizes;
pub use regions::SharedRegion;
use regions::{Region, Sharing};

use crate::{
    advice,
    frame::Lease,
    sys::{Loan, SlotMemory},
};

const PAGE: usize = 4096;
/// Size of the first slots and minimum size of all, in bytes. Small, because the size of a batch is not known
/// yet.
pub const FIRST_LEN: usize = 64 * 1024;
/// Number of free slots that are kept in addition to twice the largest number that was leased at a time.
const SPARE: usize = 8;
/// Number of returned slots at which the thread that drops a batch puts them back into the pool itself.
const MANY_RETURNS: usize = 64;

/// All slots of a loader, shared by its iterators. Clones belong to the same iterator, see
/// [`of_iterator`](Self::of_iterator).
#[derive(Debug, Clone)]
pub struct SlotPool {
    inner: Arc<Mutex<Inner>>,
    returns: Arc<Returns>,
    owner: Arc<Owner>,
}

/// An iterator, by the thread that uses it. The iterator is alive as long as an [`Arc`] of this.
#[derive(Debug)]
struct Owner(Mutex<ThreadId>);

impl Owner {
    fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::new(thread::current().id())))
    }
}

#[derive(Debug)]
struct Inner {
    /// Maximum of `bytes`.
    limit: u64,
    /// A tree: it finds a slot among few faster than a hash map.
    slots: BTreeMap<u32, Slot>,
    /// The memory of the slots, by number of the first slot.
    regions: BTreeMap<u32, Region>,
    /// Numbers of the free slots, which may be a few among hundreds.
    free: BTreeSet<u32>,
    /// Bytes in slots that are not free.
    in_use: u64,
    /// Number of slots that are leased.
    leased: usize,
    /// The largest number of slots that were leased at a time.
    max_leased: usize,
    /// Number of the first slot of the next region. A number is never used again for other memory.
    next: u32,
    /// Generation of the last lease. All slots share it, because a slot may be made again where one was
    /// destroyed.
    generation: u32,
    /// The recent sizes, which decide how large new slots are.
    recent: RecentSizes,
    /// Bytes in all slots.
    bytes: u64,
    /// Number of regions destroyed so far.
    destroyed: u64,
    /// Number of batches lent so far.
    lent: u64,
    /// Number of times that a slot has become free so far.
    returned: u64,
    /// The process that made the slots.
    owner: u32,
    /// Page-locks the slots.
    pinner: Option<Pinner>,
    /// Who can map the slots.
    sharing: Sharing,
}

#[derive(Debug)]
struct Slot {
    memory: Arc<SlotMemory>,
    state: State,
    /// The iterator that leased it last.
    owner: Weak<Owner>,
    generation: u32,
    /// Bytes that main writes into the slot for its task, whatever the size of the batch.
    min_len: usize,
    /// Value of [`Inner::lent`] when it last held a batch; 0 if it never did.
    last_used: u64,
    /// True if a worker still holds a tensor in it: it is then destroyed instead of reused.
    kept_by_worker: bool,
}

impl Slot {
    /// Returns its last lease. `number` is its own number.
    fn lease(&self, number: u32) -> Lease {
        Lease { slot: number, generation: self.generation, len: self.memory.len() as u64 }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Free,
    Leased,
    Lent,
}

/// Returned slots. A thread that drops the last tensor of a batch adds its slot, and the next call of the
/// pool takes them back.
#[derive(Debug)]
struct Returns {
    slots: Mutex<Vec<u32>>,
    pool: Weak<Mutex<Inner>>,
}

/// Returns a lent slot on drop.
#[derive(Debug)]
struct Ticket {
    slot: u32,
    returns: Arc<Returns>,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let count = {
            let mut slots = lock(&self.returns.slots);
            slots.push(self.slot);
            slots.len()
        };
        // Otherwise the next call of the pool takes them back. If another thread holds the lock, its next
        // call does.
        if count >= MANY_RETURNS
            && let Some(pool) = self.returns.pool.upgrade()
            && let Ok(mut inner) = pool.try_lock()
        {
            inner.take_back_all(&self.returns);
        }
    }
}

/// Reasons why a slot cannot be leased or used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SlotError {
    /// The limit does not allow another slot.
    #[error(
        "a slot of {wanted} bytes does not fit into the shared memory limit of {limit} bytes: {held} batches are \
         held by the program and {leased} are being loaded; set shared_memory_limit to at least {sufficient} bytes"
    )]
    LimitReached {
        /// Size of the requested slot, in bytes.
        wanted: u64,
        /// The limit, in bytes.
        limit: u64,
        /// Number of batches that the program holds.
        held: usize,
        /// Number of slots that are leased.
        leased: usize,
        /// Limit with room for the slot and for the batches that the program holds, in bytes.
        sufficient: u64,
    },
    /// The system has no more memory, descriptors or mappings.
    #[error("no shared memory for a slot of {wanted} bytes: {source}{}", advice(source))]
    System {
        /// Size of the requested slot, in bytes.
        wanted: u64,
        /// Number of batches that the program holds.
        held: usize,
        /// The system's error.
        source: io::Error,
    },
    /// The lease has ended or never existed: a worker answered under an old or an invented lease.
    #[error("slot {} is not leased in generation {}", .0.slot, .0.generation)]
    NotLeased(Lease),
}

impl SlotPool {
    /// Creates a pool whose slots never take more than `limit` bytes.
    pub fn new(limit: u64) -> Self {
        Self::pinned(limit, None)
    }

    /// As [`new`](Self::new), with slots that `pinner` page-locks. A slot that it cannot page-lock is
    /// ordinary memory.
    pub fn pinned(limit: u64, pinner: Option<Pinner>) -> Self {
        Self::over(Inner::new(limit, pinner, Sharing::WithWorkers))
    }

    /// Creates a pool for a test or a simulation without workers: the slots are memory of this process, which
    /// takes no pages until something writes to it. [`region_of`](Self::region_of) returns `None`.
    pub fn of_this_process(limit: u64) -> Self {
        Self::over(Inner::new(limit, None, Sharing::None))
    }

    fn over(inner: Inner) -> Self {
        let inner = Arc::new(Mutex::new(inner));
        let returns = Returns { slots: Mutex::default(), pool: Arc::downgrade(&inner) };
        Self { inner, returns: Arc::new(returns), owner: Owner::new() }
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

    /// True if other iterators have slots that may come back while the thread that uses this one waits. Slots
    /// of other iterators that the same thread uses cannot come back: the thread cannot take their batches
    /// while it waits.
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
        let mut inner = self.lock();
        inner.start_anew_after_fork();
        let needed = min_len.max(inner.expected());
        let lease = inner.lease(needed, others, preferred, &self.owner)?;
        inner.leased(lease)?.min_len = min_len;
        Ok(lease)
    }

    /// Leases a slot of at least `min_len` bytes, whatever the size of recent batches. The worker may ask for
    /// a larger slot.
    ///
    /// # Errors
    /// [`SlotError::LimitReached`] or [`SlotError::System`].
    pub fn lease_small(&self, min_len: usize) -> Result<Lease, SlotError> {
        let mut inner = self.lock();
        inner.start_anew_after_fork();
        inner.lease(min_len.max(FIRST_LEN), 0, |_| false, &self.owner)
    }

    /// Leases a slot of at least `needed` bytes. It replaces the slot of `lease`, if there is one, which is
    /// destroyed; `others` as in [`lease`](Self::lease).
    ///
    /// # Errors
    /// [`SlotError`]. `lease` is then unchanged.
    pub fn regrow(&self, lease: Option<Lease>, needed: usize, others: usize) -> Result<Lease, SlotError> {
        let mut inner = self.lock();
        if let Some(lease) = lease {
            inner.leased(lease)?;
        }
        let old_len = lease.map_or(0, |lease| lease.len);
        // A worker that asks for less gets a slot of the first size.
        let needed = needed.max(FIRST_LEN);
        // The limit applies to the state without the old slot. The old slot is destroyed only when there is a
        // new one: if there is none, the worker answers under the old lease, or another worker gets the task
        // with it.
        inner.bytes -= old_len;
        inner.in_use -= old_len;
        let grown = inner.lease(needed, others, |_| false, &self.owner);
        inner.bytes += old_len;
        inner.in_use += old_len;
        let grown = grown?;
        inner.recent.note(needed);
        // The worker still copies the batch out of the old slot, and a slot that was too small is likely to
        // be too small again.
        if let Some(lease) = lease {
            inner.destroy(lease.slot, true);
        }
        Ok(grown)
    }

    /// Leases the most recently used free slot that `wanted` accepts, if it is at least as large as the slot
    /// of `lease` and was used later. Returns `None` if there is no such slot.
    pub fn lease_warmer(&self, lease: Lease, wanted: impl Fn(u32) -> bool) -> Option<Lease> {
        let mut inner = self.lock();
        let last_used = inner.slots.get(&lease.slot)?.last_used;
        let warmer = |slot: &Slot| slot.memory.len() as u64 >= lease.len && slot.last_used > last_used;
        let free = inner.free.iter().map(|number| (*number, &inner.slots[number]));
        let warm = free.filter(|&(number, slot)| warmer(slot) && wanted(number));
        let warmest = warm.max_by_key(|(_, slot)| slot.last_used).map(|(number, _)| number)?;
        Some(inner.start_lease(warmest, &self.owner))
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
        let mut inner = self.lock();
        if let Ok(slot) = inner.leased(lease) {
            slot.kept_by_worker = kept_by_worker;
            inner.take_back(lease.slot);
        }
    }

    /// Turns a lease into a loan to the user. The batch takes the slot's first `used` bytes. If the worker
    /// still holds a tensor in the slot (`kept_by_worker`), main neither writes to the slot nor reuses it.
    ///
    /// # Errors
    /// [`SlotError::NotLeased`] if `lease` has ended or never existed.
    pub fn lend(&self, lease: Lease, used: u64, kept_by_worker: bool) -> Result<Loan, SlotError> {
        let mut inner = self.lock();
        let lent = inner.lent + 1;
        let slot = inner.leased(lease)?;
        let ticket = Ticket { slot: lease.slot, returns: Arc::clone(&self.returns) };
        let loan = slot.memory.lend(ticket).ok_or(SlotError::NotLeased(lease))?;
        let min_len = slot.min_len;
        slot.state = State::Lent;
        slot.kept_by_worker = kept_by_worker;
        slot.last_used = lent;
        inner.lent = lent;
        inner.leased -= 1;
        // A worker may claim any number, but no batch is larger than its slot.
        inner.note_size((used.min(lease.len) as usize).max(min_len));
        if kept_by_worker {
            loan.freeze();
        }
        Ok(loan)
    }

    /// Writes long parts of a task, such as the indices of a large batch, to the start of its leased slot.
    ///
    /// # Errors
    /// [`SlotError::NotLeased`], also if the slot is too small.
    pub fn write(&self, lease: Lease, bytes: &[u8]) -> Result<(), SlotError> {
        let mut inner = self.lock();
        let slot = inner.leased(lease)?;
        let mut loan = slot.memory.lend(()).ok_or(SlotError::NotLeased(lease))?;
        loan.put(0, bytes).map_err(|_| SlotError::NotLeased(lease))
    }

    /// Returns the region of a slot number, to be sent to a worker; `None` if there is no such region, or if
    /// workers cannot map it.
    pub fn region_of(&self, slot: u32) -> Option<SharedRegion> {
        self.lock().region_of(slot).and_then(Region::share)
    }

    /// True if the slot exists.
    pub fn exists(&self, slot: u32) -> bool {
        self.lock().slots.contains_key(&slot)
    }

    /// True if the region with this first slot exists. Main tells workers to unmap those that do not.
    pub fn has_region(&self, first: u32) -> bool {
        self.lock().regions.contains_key(&first)
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
        let inner = self.lock();
        let leased = inner.slots.iter().filter(|(_, slot)| slot.state == State::Leased);
        leased.map(|(&number, slot)| slot.lease(number)).collect()
    }

    /// Returns the number of bytes in all slots.
    pub fn bytes(&self) -> u64 {
        self.lock().bytes
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        let mut inner = lock(&self.inner);
        inner.take_back_all(&self.returns);
        inner
    }
}

impl Inner {
    /// In a forked child, empties the pool, because the slots belong to the parent. Called before the first
    /// lease of a slot, with which every use of it begins.
    fn start_anew_after_fork(&mut self) {
        let this = process::id();
        if self.owner != this {
            let Self { limit, next, generation, sharing, .. } = *self;
            *self = Self { owner: this, next, generation, ..Self::new(limit, self.pinner.clone(), sharing) };
        }
    }

    fn new(limit: u64, pinner: Option<Pinner>, sharing: Sharing) -> Self {
        Self {
            limit,
            slots: BTreeMap::new(),
            regions: BTreeMap::new(),
            free: BTreeSet::new(),
            in_use: 0,
            leased: 0,
            max_leased: 0,
            next: 0,
            generation: 0,
            recent: RecentSizes::default(),
            bytes: 0,
            destroyed: 0,
            lent: 0,
            returned: 0,
            owner: process::id(),
            pinner,
            sharing,
        }
    }

    fn expected(&self) -> usize {
        self.recent.largest().max(FIRST_LEN)
    }

    /// Notes the size of a batch. If batches have become smaller, destroys free slots that are far larger.
    fn note_size(&mut self, used: usize) {
        let before = self.expected();
        self.recent.note(used);
        if self.expected() < before {
            let too_large = |number: &u32| self.is_too_large(&self.slots[number]);
            let too_large: Vec<u32> = self.free.iter().copied().filter(too_large).collect();
            too_large.into_iter().for_each(|number| self.destroy(number, false));
        }
    }

    /// True if the slot is more than twice as large as a new one.
    fn is_too_large(&self, slot: &Slot) -> bool {
        slot.memory.len() / 2 > with_slack(self.expected())
    }

    /// Leases a slot of at least `needed` bytes if `others` more of that size would still fit.
    fn lease(
        &mut self,
        needed: usize,
        others: usize,
        preferred: impl Fn(u32) -> bool,
        owner: &Arc<Owner>,
    ) -> Result<Lease, SlotError> {
        let needed = needed.checked_next_multiple_of(PAGE).unwrap_or(usize::MAX);
        let available = self.limit.saturating_sub(self.in_use);
        let fits = |len: usize| available >= (len as u64).saturating_mul(1 + others as u64);
        if !fits(needed) {
            return Err(self.limit_reached(needed));
        }
        let free = self.free.iter().copied().filter(|number| self.slots[number].memory.len() >= needed);
        // Preferred slots first, then the lowest number: the same few slots stay in use, and in the caches.
        let found = free.min_by_key(|&number| (!preferred(number), number));
        let number = match found {
            Some(number) => number,
            // With slack only if the limit allows it.
            None => self.create(Some(with_slack(needed)).filter(|&roomy| fits(roomy)).unwrap_or(needed))?,
        };
        Ok(self.start_lease(number, owner))
    }

    fn start_lease(&mut self, number: u32, owner: &Arc<Owner>) -> Lease {
        let slot = self.slots.get_mut(&number).expect("the caller has found or made the slot");
        slot.state = State::Leased;
        slot.owner = Arc::downgrade(owner);
        self.generation = self.generation.wrapping_add(1);
        slot.generation = self.generation;
        slot.min_len = 0;
        let lease = slot.lease(number);
        self.free.remove(&number);
        self.in_use += lease.len;
        self.leased += 1;
        self.max_leased = self.max_leased.max(self.leased);
        lease
    }

    fn leased(&mut self, lease: Lease) -> Result<&mut Slot, SlotError> {
        let slot = self.slots.get_mut(&lease.slot);
        let valid = |slot: &&mut Slot| {
            let len = slot.memory.len() as u64;
            slot.state == State::Leased && (slot.generation, len) == (lease.generation, lease.len)
        };
        slot.filter(valid).ok_or(SlotError::NotLeased(lease))
    }

    fn take_back_all(&mut self, returns: &Returns) {
        for number in mem::take(&mut *lock(&returns.slots)) {
            self.take_back(number);
        }
    }

    fn take_back(&mut self, number: u32) {
        let Some(slot) = self.slots.get_mut(&number) else {
            return;
        };
        self.leased -= usize::from(slot.state == State::Leased);
        slot.state = State::Free;
        self.in_use -= slot.memory.len() as u64;
        self.returned += 1;
        self.free.insert(number);
        let slot = &self.slots[&number];
        if slot.kept_by_worker || self.is_too_large(slot) {
            self.destroy(number, slot.kept_by_worker);
        }
        // The highest numbers, because `lease` prefers the lowest ones.
        while self.free.len() > 2 * self.max_leased + SPARE
            && let Some(&last) = self.free.last()
        {
            self.destroy(last, false);
        }
    }

    fn region_of(&self, slot: u32) -> Option<&Region> {
        let (_, region) = self.regions.range(..=slot).next_back()?;
        (slot < region.end()).then_some(region)
    }

    /// Returns the owner of each slot that an iterator other than `owner` uses.
    fn used_by_others<'a>(&'a self, owner: &'a Arc<Owner>) -> impl Iterator<Item = Arc<Owner>> + 'a {
        let used = self.slots.values().filter(|slot| slot.state != State::Free);
        used.filter_map(|slot| slot.owner.upgrade()).filter(|other| !Arc::ptr_eq(other, owner))
    }

    fn limit_reached(&self, wanted: usize) -> SlotError {
        SlotError::LimitReached {
            wanted: wanted as u64,
            limit: self.limit,
            held: self.count(State::Lent),
            leased: self.count(State::Leased),
            sufficient: self.bytes_in(State::Lent).saturating_add(wanted as u64),
        }
    }

    fn create(&mut self, len: usize) -> Result<u32, SlotError> {
        // Free slots that are too small take memory that the new slot may need.
        let is_small = |number: &u32| self.slots[number].memory.len() < len;
        let small: Vec<u32> = self.free.iter().copied().filter(is_small).collect();
        small.into_iter().for_each(|number| self.destroy(number, false));
        if self.bytes.saturating_add(len as u64) > self.limit {
            return Err(self.limit_reached(len));
        }
        let made = self.make_slot(len);
        let (number, memory) = made.map_err(|source| {
            let held = self.count(State::Lent);
            SlotError::System { wanted: len as u64, held, source }
        })?;
        self.bytes += len as u64;
        let (state, owner) = (State::Free, Weak::new());
        let slot =
            Slot { memory, state, owner, generation: 0, min_len: 0, last_used: 0, kept_by_worker: false };
        self.slots.insert(number, slot);
        self.free.insert(number);
        Ok(number)
    }

    /// Makes a slot in a region that has room for it, or in a new one.
    fn make_slot(&mut self, len: usize) -> io::Result<(u32, Arc<SlotMemory>)> {
        let pinner = self.pinner.as_ref();
        if let Some(region) = self.regions.values_mut().find(|region| region.has_room(len)) {
            return region.make_slot(pinner);
        }
        let len = NonZeroUsize::new(len).ok_or(io::ErrorKind::InvalidInput)?;
        let mut region = Region::create(self.next, len, self.slots.len(), self.sharing)?;
        let made = region.make_slot(pinner)?;
        self.next = region.end();
        self.regions.insert(region.first(), region);
        Ok(made)
    }

    /// Destroys a slot. `may_be_read` is true if a worker may still read its content.
    fn destroy(&mut self, number: u32, may_be_read: bool) {
        let Some(Slot { memory, state, .. }) = self.slots.remove(&number) else { return };
        let len = memory.len() as u64;
        self.bytes -= len;
        if !self.free.remove(&number) {
            self.in_use -= len;
        }
        self.leased -= usize::from(state == State::Leased);
        drop(memory);
        let Some((&first, region)) = self.regions.range_mut(..=number).next_back() else { return };
        // A forked child must not give back pages that its parent uses.
        region.remove_slot(number, may_be_read || self.owner != process::id());
        if region.is_empty() {
            self.regions.remove(&first);
            self.destroyed += 1;
        }
    }

    fn bytes_in(&self, state: State) -> u64 {
        let slots = self.slots.values().filter(|slot| slot.state == state);
        slots.map(|slot| slot.memory.len() as u64).sum()
    }

    fn count(&self, state: State) -> usize {
        self.slots.values().filter(|slot| slot.state == state).count()
    }
}

/// Adds up to an eighth, so that batches whose sizes differ a little fit into the same slots.
fn with_slack(needed: usize) -> usize {
    let step = (needed.checked_next_power_of_two().unwrap_or(needed) / 16).max(PAGE);
    needed.checked_next_multiple_of(step).unwrap_or(needed)
}

/// Locks `mutex`, also if it is poisoned: no change above leaves the table inconsistent when it panics.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
