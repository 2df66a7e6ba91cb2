//! The slots of one loader, as main keeps them: shared memory that is made once and used for batch after batch.
//!
//! ```text
//!          lease                 Done                    last tensor dropped
//!   free ---------> leased ----------------> lent ------------------------------> free
//!     ^               |  (lend)                |  (a worker kept a handle)
//!     +---------------+                        +------------------------------> destroyed
//!        release: failed, skipped, its worker died
//! ```
//!
//! Two ways were weighed: one large region cut into slots, or one memfd a slot. One memfd a slot won: a slot can grow (it is
//! replaced) without touching the others, and lent ones stay valid whatever happens to the pool.

mod recent;

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    num::NonZeroUsize,
    os::fd::OwnedFd,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    thread::{self, ThreadId},
};

use recent::RecentSizes;

use crate::{
    advice,
    frame::Lease,
    memory,
    pin::Pinner,
    sys::{Loan, SlotMemory},
};

const PAGE: usize = 4096;
/// Size of the first slots, in bytes; no slot is smaller. They are small: nobody knows yet how large a batch is.
pub const FIRST_LEN: usize = 64 * 1024;

/// All slots of a loader, shared by its iterators. Clones count as the same iterator, see [`of_iterator`](Self::of_iterator).
#[derive(Debug, Clone)]
pub struct SlotPool {
    inner: Arc<Mutex<Inner>>,
    returns: Arc<Returns>,
    owner: Arc<Owner>,
}

/// An iterator that leases slots: the thread that leased the last one. It is alive while an [`Arc`] of it is.
#[derive(Debug)]
struct Owner(Mutex<ThreadId>);

impl Owner {
    fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::new(thread::current().id())))
    }
}

#[derive(Debug)]
struct Inner {
    limit: u64,
    /// A few: a tree finds them faster than a hash.
    slots: BTreeMap<u32, Slot>,
    /// Those of them that are free: among hundreds, a few.
    free: BTreeSet<u32>,
    /// Bytes in those that are not.
    in_use: u64,
    next: u32,
    /// What new slots must hold.
    recent: RecentSizes,
    bytes: u64,
    /// Slots destroyed so far.
    destroyed: u64,
    /// Batches lent so far.
    lent: u64,
    /// Number of times that a slot has become free so far.
    returned: u64,
    /// The process that the slots are of.
    owner: u32,
    /// Page-locks the slots.
    pinner: Option<Pinner>,
}

#[derive(Debug)]
struct Slot {
    fd: OwnedFd,
    memory: Arc<SlotMemory>,
    state: State,
    /// The iterator that leased it last.
    owner: Weak<Owner>,
    generation: u32,
    /// Bytes that its task had to be given room for, whatever the size of its batch.
    min_len: usize,
    /// When it last held a batch: a count, 0 for never.
    last_used: u64,
    /// A worker still holds a tensor of it: destroy it instead of using it again.
    spoilt: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Free,
    Leased,
    Lent,
}

/// Slots on their way home. A ticket may be dropped by any thread that drops the last tensor of a batch.
#[derive(Debug, Default)]
struct Returns(Mutex<Vec<u32>>);

#[derive(Debug)]
struct Ticket {
    slot: u32,
    returns: Arc<Returns>,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        lock(&self.returns.0).push(self.slot);
    }
}

/// Why there is no slot.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SlotError {
    /// The limit does not allow another one.
    #[error(
        "a slot of {wanted} bytes does not fit the shared memory limit of {limit} bytes: {held} batches are held by the program, \
         {leased} are being loaded; set shared_memory_limit to at least {sufficient} bytes"
    )]
    LimitReached {
        /// Size of the slot that was wanted, in bytes.
        wanted: u64,
        /// The limit, in bytes.
        limit: u64,
        /// Batches that the program holds.
        held: usize,
        /// Slots that workers are filling.
        leased: usize,
        /// A limit with which there would be room for it beside the batches that the program holds, in bytes.
        sufficient: u64,
    },
    /// The system has no more memory, descriptors or mappings.
    #[error("no shared memory for a slot of {wanted} bytes: {source}{}", advice(source))]
    System {
        /// Size of the slot that was wanted, in bytes.
        wanted: u64,
        /// Batches that the program holds.
        held: usize,
        /// What the system said.
        source: io::Error,
    },
    /// The lease is over; a worker answered under an old one or made one up.
    #[error("slot {} is not leased in generation {}", .0.slot, .0.generation)]
    NotLeased(Lease),
}

impl SlotPool {
    /// A pool that never holds more than `limit` bytes.
    pub fn new(limit: u64) -> Self {
        Self::pinned(limit, None)
    }

    /// As [`new`](Self::new), with slots that `pinner` page-locks when they are made, as far as it can.
    pub fn pinned(limit: u64, pinner: Option<Pinner>) -> Self {
        let inner = Arc::new(Mutex::new(Inner::new(limit, pinner)));
        Self { inner, returns: Arc::default(), owner: Owner::new() }
    }

    /// The same slots for another iterator.
    #[must_use]
    pub fn of_iterator(&self) -> Self {
        Self { owner: Owner::new(), ..self.clone() }
    }

    /// Number of slots that other iterators lease, or have lent to the program.
    pub fn used_elsewhere(&self) -> usize {
        self.lock().used_beside(&self.owner).count()
    }

    /// True when other iterators have slots that may come back while this thread waits. Slots of iterators that this thread itself used
    /// last do not: nobody takes their batches meanwhile.
    pub fn may_come_back(&self) -> bool {
        let this = thread::current().id();
        self.lock().used_beside(&self.owner).any(|owner| *lock(&owner.0) != this)
    }

    /// Number of times that a slot has become free so far.
    pub fn returned(&self) -> u64 {
        self.lock().returned
    }

    /// Leases a slot of at least `min_len` bytes that also holds the largest of the recent batches; one that `preferred` accepts, if
    /// there is a choice. `others` more such slots must still fit afterwards, for earlier tasks whose slots may yet have to grow.
    ///
    /// # Errors
    /// [`SlotError`].
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

    /// Leases a slot of at least `min_len` bytes, however large recent batches were. Its batch may ask for a larger one.
    ///
    /// # Errors
    /// [`SlotError`].
    pub fn lease_small(&self, min_len: usize) -> Result<Lease, SlotError> {
        let mut inner = self.lock();
        inner.start_anew_after_fork();
        inner.lease(min_len.max(FIRST_LEN), 0, |_| false, &self.owner)
    }

    /// Gives `lease` back, if there is one, and leases a slot of at least `needed` bytes instead; `others` as in [`lease`](Self::lease).
    ///
    /// # Errors
    /// [`SlotError`]; `lease` is then still what it was.
    pub fn regrow(&self, lease: Option<Lease>, needed: usize, others: usize) -> Result<Lease, SlotError> {
        let mut inner = self.lock();
        if let Some(lease) = lease {
            inner.leased(lease)?;
        }
        let old_len = lease.map_or(0, |lease| lease.len);
        // A worker that asks for less gets a slot of the first size.
        let needed = needed.max(FIRST_LEN);
        // The limit holds for the state afterwards, without the old slot. The old slot is destroyed only when there is a new one: if
        // there is none, the worker answers under the old lease, or its task is given to another worker with it.
        inner.bytes -= old_len;
        inner.in_use -= old_len;
        let grown = inner.lease(needed, others, |_| false, &self.owner);
        inner.bytes += old_len;
        inner.in_use += old_len;
        let grown = grown?;
        inner.recent.note(needed);
        // The worker still copies the batch out of the old slot, and a slot that was too small is likely to be too small again.
        if let Some(lease) = lease {
            inner.destroy(lease.slot);
        }
        Ok(grown)
    }

    /// Leases a free slot that is at least as large as that of `lease`, was used more recently, and is `wanted`, if there is one.
    pub fn lease_warmer(&self, lease: Lease, wanted: impl Fn(u32) -> bool) -> Option<Lease> {
        let mut inner = self.lock();
        let last_used = inner.slots.get(&lease.slot)?.last_used;
        let warmer = |slot: &Slot| slot.memory.len() as u64 >= lease.len && slot.last_used > last_used;
        let free = inner.free.iter().map(|number| (*number, &inner.slots[number]));
        let warm = free.filter(|&(number, slot)| warmer(slot) && wanted(number));
        let warmest = warm.max_by_key(|(_, slot)| slot.last_used).map(|(number, _)| number)?;
        Some(inner.start_lease(warmest, &self.owner))
    }

    /// Size in bytes that the next batch is expected to need: that of the largest of the recent ones.
    pub fn expected(&self) -> usize {
        self.lock().expected()
    }

    /// The limit, in bytes.
    pub fn limit(&self) -> u64 {
        self.lock().limit
    }

    /// Gives a lease back unused; `spoilt` as in [`lend`](Self::lend). A lease that is over is ignored.
    pub fn release(&self, lease: Lease, spoilt: bool) {
        let mut inner = self.lock();
        if let Ok(slot) = inner.leased(lease) {
            slot.spoilt = spoilt;
            inner.take_back(lease.slot);
        }
    }

    /// Turns a finished lease into a loan to the user. The batch takes the slot's first `used` bytes. `spoilt`: the worker still holds a
    /// tensor in the slot, which is therefore not written here and not used again afterwards.
    ///
    /// # Errors
    /// [`SlotError::NotLeased`].
    pub fn lend(&self, lease: Lease, used: u64, spoilt: bool) -> Result<Loan, SlotError> {
        let mut inner = self.lock();
        let lent = inner.lent + 1;
        let slot = inner.leased(lease)?;
        let ticket = Ticket { slot: lease.slot, returns: Arc::clone(&self.returns) };
        let loan = slot.memory.lend(ticket).ok_or(SlotError::NotLeased(lease))?;
        let min_len = slot.min_len;
        slot.state = State::Lent;
        slot.spoilt = spoilt;
        slot.last_used = lent;
        inner.lent = lent;
        // No batch is larger than its slot, whatever its worker says.
        inner.note_size((used.min(lease.len) as usize).max(min_len));
        if spoilt {
            loan.freeze();
        }
        Ok(loan)
    }

    /// Writes what a task is told at length, such as the indices of a large batch, to the start of its leased slot.
    ///
    /// # Errors
    /// [`SlotError::NotLeased`], also when the slot is too small.
    pub fn write(&self, lease: Lease, bytes: &[u8]) -> Result<(), SlotError> {
        let mut inner = self.lock();
        let slot = inner.leased(lease)?;
        let mut loan = slot.memory.lend(()).ok_or(SlotError::NotLeased(lease))?;
        loan.put(0, bytes).map_err(|_| SlotError::NotLeased(lease))
    }

    /// The slot's descriptor, to be sent to a worker; `None` when there is no such slot.
    ///
    /// # Errors
    /// When the process is out of descriptors.
    pub fn fd(&self, slot: u32) -> Option<io::Result<OwnedFd>> {
        self.lock().slots.get(&slot).map(|slot| slot.fd.try_clone())
    }

    /// True while the slot exists. Workers are told to forget those that do not.
    pub fn exists(&self, slot: u32) -> bool {
        self.lock().slots.contains_key(&slot)
    }

    /// Number of slots destroyed so far: while it stays the same, there is nothing to forget.
    pub fn destroyed(&self) -> u64 {
        self.lock().destroyed
    }

    /// Number of batches that the program holds.
    pub fn held(&self) -> usize {
        self.lock().count(State::Lent)
    }

    /// Bytes in all slots.
    pub fn bytes(&self) -> u64 {
        self.lock().bytes
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        let mut inner = lock(&self.inner);
        for number in std::mem::take(&mut *lock(&self.returns.0)) {
            inner.take_back(number);
        }
        inner
    }
}

impl Inner {
    /// In a forked child the slots are still the parent's, and its workers'. Whatever is done with a slot begins with a lease.
    fn start_anew_after_fork(&mut self) {
        let this = std::process::id();
        if self.owner != this {
            *self = Self { owner: this, next: self.next, ..Self::new(self.limit, self.pinner.clone()) };
        }
    }

    fn new(limit: u64, pinner: Option<Pinner>) -> Self {
        Self {
            limit,
            slots: BTreeMap::new(),
            free: BTreeSet::new(),
            in_use: 0,
            next: 0,
            recent: RecentSizes::default(),
            bytes: 0,
            destroyed: 0,
            lent: 0,
            returned: 0,
            owner: std::process::id(),
            pinner,
        }
    }

    fn expected(&self) -> usize {
        self.recent.largest().max(FIRST_LEN)
    }

    /// Notes the size of a batch. When batches have become smaller, free slots that are far larger are given back to the system.
    fn note_size(&mut self, used: usize) {
        let before = self.expected();
        self.recent.note(used);
        if self.expected() < before {
            let too_large = |number: &u32| self.is_too_large(&self.slots[number]);
            let too_large: Vec<u32> = self.free.iter().copied().filter(too_large).collect();
            too_large.into_iter().for_each(|number| self.destroy(number));
        }
    }

    /// True for a slot of more than twice the size of a new one.
    fn is_too_large(&self, slot: &Slot) -> bool {
        slot.memory.len() / 2 > with_slack(self.expected())
    }

    /// Leases a slot of at least `needed` bytes, so that `others` more would still fit.
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
        // The preferred ones first, then the lowest number: the same few slots stay in use, and in the caches.
        let found = free.min_by_key(|&number| (!preferred(number), number));
        let number = match found {
            Some(number) => number,
            // Slack only where it fits.
            None => self.create(Some(with_slack(needed)).filter(|&roomy| fits(roomy)).unwrap_or(needed))?,
        };
        Ok(self.start_lease(number, owner))
    }

    fn start_lease(&mut self, number: u32, owner: &Arc<Owner>) -> Lease {
        let slot = self.slots.get_mut(&number).expect("the caller found or made it");
        slot.state = State::Leased;
        slot.owner = Arc::downgrade(owner);
        *lock(&owner.0) = thread::current().id();
        slot.generation = slot.generation.wrapping_add(1);
        slot.min_len = 0;
        let lease = Lease { slot: number, generation: slot.generation, len: slot.memory.len() as u64 };
        self.free.remove(&number);
        self.in_use += lease.len;
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

    fn take_back(&mut self, number: u32) {
        let Some(slot) = self.slots.get_mut(&number) else {
            return;
        };
        slot.state = State::Free;
        self.in_use -= slot.memory.len() as u64;
        self.returned += 1;
        self.free.insert(number);
        if slot.spoilt || self.is_too_large(&self.slots[&number]) {
            self.destroy(number);
        }
    }

    /// The owners of slots that other iterators use.
    fn used_beside<'a>(&'a self, owner: &'a Arc<Owner>) -> impl Iterator<Item = Arc<Owner>> + 'a {
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
        // Free slots that are too small only stand in the way.
        let is_small = |number: &u32| self.slots[number].memory.len() < len;
        let small: Vec<u32> = self.free.iter().copied().filter(is_small).collect();
        small.into_iter().for_each(|number| self.destroy(number));
        if self.bytes.saturating_add(len as u64) > self.limit {
            return Err(self.limit_reached(len));
        }
        let system = |source| SlotError::System { wanted: len as u64, held: self.count(State::Lent), source };
        let size = NonZeroUsize::new(len).ok_or_else(|| system(io::ErrorKind::InvalidInput.into()))?;
        let fd = memory::reserve(size).map_err(system)?;
        let memory = SlotMemory::map_pinned(&fd, size, self.pinner.as_ref()).map_err(system)?;
        let number = self.next;
        self.next += 1;
        self.bytes += len as u64;
        let slot = Slot {
            fd,
            memory,
            state: State::Free,
            owner: Weak::new(),
            generation: 0,
            min_len: 0,
            last_used: 0,
            spoilt: false,
        };
        self.slots.insert(number, slot);
        self.free.insert(number);
        Ok(number)
    }

    fn destroy(&mut self, number: u32) {
        if let Some(slot) = self.slots.remove(&number) {
            let len = slot.memory.len() as u64;
            self.bytes -= len;
            if !self.free.remove(&number) {
                self.in_use -= len;
            }
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

/// Up to an eighth more, so that batches whose sizes differ a little fit the same slots.
fn with_slack(needed: usize) -> usize {
    let step = (needed.checked_next_power_of_two().unwrap_or(needed) / 16).max(PAGE);
    needed.checked_next_multiple_of(step).unwrap_or(needed)
}

/// A poisoned lock only means that a thread panicked elsewhere: every change above leaves the table whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
