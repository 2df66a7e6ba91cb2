//! The table of all slots of a loader: their memory, their states and leases, and the size of new slots.

use std::{
    collections::{BTreeMap, BTreeSet},
    io, mem,
    num::NonZeroUsize,
    process,
    sync::{Arc, Weak},
};

use loader_pinning::Pinner;

use super::{
    FIRST_LEN, Owner, Returns, Ticket,
    error::SlotError,
    lock,
    recent::RecentSizes,
    regions::{Region, Sharing},
};
use crate::{
    frame::Lease,
    sys::{Loan, SlotMemory},
};

/// Every slot takes a multiple of this number of bytes.
const PAGE: usize = 4096;
/// The table keeps at most this number of free slots more than twice the maximum number of slots leased at a
/// time.
pub(super) const SPARE: usize = 8;

/// All slots of a loader, with their memory.
#[derive(Debug)]
pub(super) struct Table {
    /// Maximum of `bytes`.
    pub(super) limit: u64,
    /// The slots by number. A tree, because it finds a slot among few faster than a hash map.
    pub(super) slots: BTreeMap<u32, Slot>,
    /// The memory of the slots, by number of the first slot.
    pub(super) regions: BTreeMap<u32, Region>,
    /// Numbers of the free slots, which may be a few among hundreds.
    pub(super) free: BTreeSet<u32>,
    /// Bytes in slots that are not free.
    pub(super) in_use: u64,
    /// Number of slots that are leased.
    pub(super) leased: usize,
    /// Maximum number of slots that were leased at a time.
    pub(super) max_leased: usize,
    /// Number of the first slot of the next region. A number is never used again for other memory.
    next: u32,
    /// Generation of the last lease. All slots share it, because a slot may be made again where one was
    /// destroyed.
    generation: u32,
    /// The recent sizes, which decide how large new slots are.
    recent: RecentSizes,
    /// Bytes in all slots.
    pub(super) bytes: u64,
    /// Number of regions destroyed so far.
    pub(super) destroyed: u64,
    /// Number of batches lent so far.
    lent: u64,
    /// Number of times that a slot has become free so far.
    pub(super) returned: u64,
    /// The process that made the slots.
    owner: u32,
    /// Page-locks the slots.
    pinner: Option<Pinner>,
    /// Which processes can map the slots.
    sharing: Sharing,
}

#[derive(Debug)]
pub(super) struct Slot {
    pub(super) memory: Arc<SlotMemory>,
    pub(super) state: State,
    /// The iterator that leased the slot last.
    owner: Weak<Owner>,
    generation: u32,
    /// Bytes that main writes into the slot for its task, whatever the size of the batch.
    min_len: usize,
    /// Value of [`Table::lent`] when the slot was lent last; 0 if it was never lent.
    last_used: u64,
    /// True if a worker still holds a tensor in the slot. The table then destroys the slot instead of reusing
    /// it.
    kept_by_worker: bool,
}

impl Slot {
    /// Returns the slot's last lease. `number` is the slot's number.
    fn lease(&self, number: u32) -> Lease {
        Lease { slot: number, generation: self.generation, len: self.memory.len() as u64 }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Free,
    Leased,
    Lent,
}

impl Table {
    pub(super) fn new(limit: u64, pinner: Option<Pinner>, sharing: Sharing) -> Self {
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

    /// Returns the expected size of the next batch, in bytes.
    pub(super) fn expected(&self) -> usize {
        self.recent.largest().max(FIRST_LEN)
    }

    /// See [`SlotPool::lease`](super::SlotPool::lease).
    pub(super) fn lease_expected(
        &mut self,
        min_len: usize,
        others: usize,
        preferred: impl Fn(u32) -> bool,
        owner: &Arc<Owner>,
    ) -> Result<Lease, SlotError> {
        self.start_anew_after_fork();
        let needed = min_len.max(self.expected());
        let lease = self.lease(needed, others, preferred, owner)?;
        self.leased(lease)?.min_len = min_len;
        Ok(lease)
    }

    /// See [`SlotPool::lease_small`](super::SlotPool::lease_small).
    pub(super) fn lease_small(&mut self, min_len: usize, owner: &Arc<Owner>) -> Result<Lease, SlotError> {
        self.start_anew_after_fork();
        self.lease(min_len.max(FIRST_LEN), 0, |_| false, owner)
    }

    /// See [`SlotPool::regrow`](super::SlotPool::regrow).
    pub(super) fn regrow(
        &mut self,
        lease: Option<Lease>,
        needed: usize,
        others: usize,
        owner: &Arc<Owner>,
    ) -> Result<Lease, SlotError> {
        if let Some(lease) = lease {
            self.leased(lease)?;
        }
        let old_len = lease.map_or(0, |lease| lease.len);
        let needed = needed.max(FIRST_LEN);
        // The limit applies to the state without the old slot. The old slot is destroyed only when there is a
        // new one: if there is none, the worker answers under the old lease, or another worker gets the task
        // with it.
        self.bytes -= old_len;
        self.in_use -= old_len;
        let grown = self.lease(needed, others, |_| false, owner);
        self.bytes += old_len;
        self.in_use += old_len;
        let grown = grown?;
        self.recent.note(needed);
        // The worker still copies the batch from the old slot, and the old slot is likely to be too small for
        // later batches too.
        if let Some(lease) = lease {
            self.destroy(lease.slot, true);
        }
        Ok(grown)
    }

    /// See [`SlotPool::lease_warmer`](super::SlotPool::lease_warmer).
    pub(super) fn lease_warmer(
        &mut self,
        lease: Lease,
        wanted: impl Fn(u32) -> bool,
        owner: &Arc<Owner>,
    ) -> Option<Lease> {
        let last_used = self.slots.get(&lease.slot)?.last_used;
        let warmer = |slot: &Slot| slot.memory.len() as u64 >= lease.len && slot.last_used > last_used;
        let free = self.free.iter().map(|number| (*number, &self.slots[number]));
        let warm = free.filter(|&(number, slot)| warmer(slot) && wanted(number));
        let warmest = warm.max_by_key(|(_, slot)| slot.last_used).map(|(number, _)| number)?;
        Some(self.start_lease(warmest, owner))
    }

    /// See [`SlotPool::release`](super::SlotPool::release).
    pub(super) fn release(&mut self, lease: Lease, kept_by_worker: bool) {
        if let Ok(slot) = self.leased(lease) {
            slot.kept_by_worker = kept_by_worker;
            self.take_back(lease.slot);
        }
    }

    /// See [`SlotPool::lend`](super::SlotPool::lend). The slot comes back through `returns`.
    pub(super) fn lend(
        &mut self,
        lease: Lease,
        used: u64,
        kept_by_worker: bool,
        returns: &Arc<Returns>,
    ) -> Result<Loan, SlotError> {
        let lent = self.lent + 1;
        let slot = self.leased(lease)?;
        let ticket = Ticket { slot: lease.slot, returns: Arc::clone(returns), owner: process::id() };
        let loan = slot.memory.lend(ticket).ok_or(SlotError::NotLeased(lease))?;
        let min_len = slot.min_len;
        slot.state = State::Lent;
        slot.kept_by_worker = kept_by_worker;
        slot.last_used = lent;
        self.lent = lent;
        self.leased -= 1;
        // A worker may claim any number, but no batch is larger than its slot.
        self.note_size((used.min(lease.len) as usize).max(min_len));
        if kept_by_worker {
            loan.freeze();
        }
        Ok(loan)
    }

    /// See [`SlotPool::write`](super::SlotPool::write).
    pub(super) fn write(&mut self, lease: Lease, bytes: &[u8]) -> Result<(), SlotError> {
        let slot = self.leased(lease)?;
        let mut loan = slot.memory.lend(()).ok_or(SlotError::NotLeased(lease))?;
        loan.put(0, bytes).map_err(|_| SlotError::NotLeased(lease))
    }

    /// Returns the leases that have not ended.
    pub(super) fn leases(&self) -> Vec<Lease> {
        let leased = self.slots.iter().filter(|(_, slot)| slot.state == State::Leased);
        leased.map(|(&number, slot)| slot.lease(number)).collect()
    }

    pub(super) fn exists(&self, slot: u32) -> bool {
        self.slots.contains_key(&slot)
    }

    pub(super) fn has_region(&self, first: u32) -> bool {
        self.regions.contains_key(&first)
    }

    pub(super) fn take_back_all(&mut self, returns: &Returns) {
        for number in mem::take(&mut *lock(&returns.slots)) {
            self.take_back(number);
        }
    }

    pub(super) fn region_of(&self, slot: u32) -> Option<&Region> {
        let (_, region) = self.regions.range(..=slot).next_back()?;
        (slot < region.end()).then_some(region)
    }

    /// Returns the owner of each slot that an iterator other than `owner` uses.
    pub(super) fn used_by_others<'a>(
        &'a self,
        owner: &'a Arc<Owner>,
    ) -> impl Iterator<Item = Arc<Owner>> + 'a {
        let used = self.slots.values().filter(|slot| slot.state != State::Free);
        used.filter_map(|slot| slot.owner.upgrade()).filter(|other| !Arc::ptr_eq(other, owner))
    }

    pub(super) fn count(&self, state: State) -> usize {
        self.slots.values().filter(|slot| slot.state == state).count()
    }

    /// In a forked child, empties the table, because the slots belong to the parent. Called before each
    /// lease, because every use of a slot begins with a lease.
    fn start_anew_after_fork(&mut self) {
        let this = process::id();
        if self.owner != this {
            let Self { limit, next, generation, sharing, .. } = *self;
            *self = Self { owner: this, next, generation, ..Self::new(limit, self.pinner.clone(), sharing) };
        }
    }

    /// Notes the size of a batch. If batches have become smaller, destroys the free slots that are too large.
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
        // Preferred slots come first, then the lowest numbers, so that the same few slots stay in use and in
        // the processor's caches.
        let found = free.min_by_key(|&number| (!preferred(number), number));
        let number = match found {
            Some(number) => number,
            // The slot has slack only if the limit allows it.
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
        // This destroys the slots with the highest numbers, because `lease` prefers the lowest numbers.
        while self.free.len() > 2 * self.max_leased + SPARE
            && let Some(&last) = self.free.last()
        {
            self.destroy(last, false);
        }
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
        // The new slot may need the memory of free slots that are too small.
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
    pub(super) fn destroy(&mut self, number: u32, may_be_read: bool) {
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
}

/// Adds at most an eighth to a size, so that batches whose sizes differ a little fit into the same slots.
pub(super) fn with_slack(needed: usize) -> usize {
    let step = (needed.checked_next_power_of_two().unwrap_or(needed) / 16).max(PAGE);
    needed.checked_next_multiple_of(step).unwrap_or(needed)
}
