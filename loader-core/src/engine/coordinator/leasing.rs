//! The slots of an iterator: which tasks wait for one, which were offered, and who wrote them last.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use loader_ipc::{
    frame::{Lease, MIN_OFFERED},
    slots::SlotPool,
};

/// Maximum time to wait for slots of other iterators while none of them comes back.
const PATIENCE: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct Leasing {
    slots: SlotPool,
    /// Tasks that wait for a slot, by number.
    waiting: BTreeMap<u64, Need>,
    /// Since when the iterator waits for slots of other iterators.
    starved: Option<Starved>,
    /// Slots that were offered for a task and neither taken nor given back, by number of the task.
    offers: BTreeMap<u64, Offer>,
    /// The worker that wrote a slot last, by number of the slot. Only slots that are large enough to be
    /// offered.
    writers: BTreeMap<u32, usize>,
}

/// Why a task waits for a slot.
#[derive(Debug, Clone, Copy)]
pub(super) enum Need {
    /// Its worker has asked for a larger one.
    Larger(Request),
    /// Main has taken its slot back, and sends it again when there is room.
    Any,
}

/// A worker's request for a larger slot. The worker waits until main answers.
#[derive(Debug, Clone, Copy)]
pub(super) struct Request {
    pub(super) worker: usize,
    pub(super) lease: Lease,
    /// Size that the batch needs, in bytes.
    pub(super) needed: usize,
    pub(super) vacate: Vacate,
}

/// Whether main has asked a worker that waits for a larger slot for the one that it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Vacate {
    NotAsked,
    Asked,
    Done,
}

#[derive(Debug, Clone, Copy)]
struct Offer {
    worker: usize,
    lease: Lease,
}

/// Since when no slot of another iterator has come back.
#[derive(Debug, Clone, Copy)]
struct Starved {
    since: Instant,
    /// Number of slots that had come back by then.
    returned: u64,
}

impl Leasing {
    /// Leases slots for one iterator.
    pub(super) fn new(slots: &SlotPool) -> Self {
        Self {
            slots: slots.of_iterator(),
            waiting: BTreeMap::new(),
            starved: None,
            offers: BTreeMap::new(),
            writers: BTreeMap::new(),
        }
    }

    pub(super) fn slots(&self) -> &SlotPool {
        &self.slots
    }

    // Tasks that wait.

    /// True if a task waits for a slot.
    pub(super) fn any_waits(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Returns the first task that waits for a slot, and why.
    pub(super) fn first_waiting(&self) -> Option<(u64, Need)> {
        self.waiting.first_key_value().map(|(&task, &need)| (task, need))
    }

    /// Notes that a worker asks for a larger slot.
    pub(super) fn request(&mut self, task: u64, worker: usize, lease: Lease, needed: usize) {
        let request = Request { worker, lease, needed, vacate: Vacate::NotAsked };
        self.waiting.insert(task, Need::Larger(request));
    }

    /// Notes that a task waits for any slot.
    pub(super) fn defer(&mut self, task: u64) {
        self.waiting.insert(task, Need::Any);
    }

    /// Notes that a task does not wait for a slot any more; returns why it did.
    pub(super) fn stop_waiting(&mut self, task: u64) -> Option<Need> {
        self.waiting.remove(&task)
    }

    /// Notes that a task does not wait any more, if it waits for any slot. False if it does not.
    pub(super) fn undefer(&mut self, task: u64) -> bool {
        let is_deferred = matches!(self.waiting.get(&task), Some(Need::Any));
        is_deferred && self.waiting.remove(&task).is_some()
    }

    /// Returns the tasks that wait for any slot.
    pub(super) fn deferred(&self) -> impl Iterator<Item = u64> {
        self.waiting.iter().filter(|(_, need)| matches!(need, Need::Any)).map(|(&task, _)| task)
    }

    /// Removes and returns a worker's request for a larger slot for a task.
    pub(super) fn take_request(&mut self, task: u64, worker: usize) -> Option<Request> {
        match self.waiting.get(&task) {
            Some(&Need::Larger(request)) if request.worker == worker => {
                self.waiting.remove(&task);
                Some(request)
            }
            _ => None,
        }
    }

    /// Returns the last request for a larger slot, with its task.
    pub(super) fn last_request(&self) -> Option<(u64, Request)> {
        self.requests().next_back().map(|(task, &request)| (task, request))
    }

    /// True if the worker waits for a larger slot and main has not asked it for the one that it has.
    pub(super) fn is_blocked(&self, worker: usize) -> bool {
        self.requests().any(|(_, request)| request.worker == worker && request.vacate != Vacate::Asked)
    }

    /// Chooses the last task behind `task` whose worker waits for a larger slot and can be asked for its
    /// slot, and notes that it is asked. Returns the task and its worker.
    pub(super) fn vacate_behind(&mut self, task: u64) -> Option<(u64, usize)> {
        self.waiting.range_mut(task + 1..).rev().find_map(|(&task, need)| match need {
            Need::Larger(request) if request.vacate == Vacate::NotAsked => {
                request.vacate = Vacate::Asked;
                Some((task, request.worker))
            }
            _ => None,
        })
    }

    /// Notes that a worker has given back the slot that main has asked for. False if main has not.
    pub(super) fn vacated(&mut self, task: u64, worker: usize, lease: Lease) -> bool {
        match self.waiting.get_mut(&task) {
            Some(Need::Larger(request))
                if (request.worker, request.lease, request.vacate) == (worker, lease, Vacate::Asked) =>
            {
                request.vacate = Vacate::Done;
                true
            }
            _ => false,
        }
    }

    fn requests(&self) -> impl DoubleEndedIterator<Item = (u64, &Request)> {
        self.waiting.iter().filter_map(|(&task, need)| match need {
            Need::Larger(request) => Some((task, request)),
            Need::Any => None,
        })
    }

    // Slots of other iterators.

    /// True while it makes sense to wait for slots of other iterators: some may come back, and at least one
    /// came back within [`PATIENCE`].
    pub(super) fn waits_for_others(&mut self, now: Instant) -> bool {
        if !self.slots.others_may_return_slots() {
            self.starved = None;
            return false;
        }
        let returned = self.slots.returned();
        let starved = self.starved.filter(|starved| starved.returned == returned);
        let starved = starved.unwrap_or(Starved { since: now, returned });
        let waits = now.saturating_duration_since(starved.since) < PATIENCE;
        self.starved = waits.then_some(starved);
        waits
    }

    /// Notes that the iterator does not wait for slots of other iterators.
    pub(super) fn end_starving(&mut self) {
        self.starved = None;
    }

    /// True while the iterator waits for slots of other iterators.
    pub(super) fn is_starved(&self) -> bool {
        self.starved.is_some()
    }

    // Warm slots.

    /// Notes that `worker` has written the slot of `lease`, if it is large enough to be offered.
    pub(super) fn note_writer(&mut self, lease: Lease, worker: usize) {
        if lease.len >= MIN_OFFERED {
            self.writers.insert(lease.slot, worker);
        }
    }

    /// True if slots may be offered: some are warm, and no task waits for a slot.
    pub(super) fn may_offer(&self) -> bool {
        !self.writers.is_empty() && self.waiting.is_empty()
    }

    /// Leases a slot for `task` that is warmer than that of `lease`, if `worker` has written one. It must be
    /// offered to the worker.
    pub(super) fn lease_warmer(&mut self, task: u64, worker: usize, lease: Lease) -> Option<Lease> {
        if lease.len < MIN_OFFERED || self.offers.contains_key(&task) {
            return None;
        }
        let warmer = self.slots.lease_warmer(lease, |slot| self.writers.get(&slot) == Some(&worker))?;
        self.offers.insert(task, Offer { worker, lease: warmer });
        Some(warmer)
    }

    /// Returns the slot that was offered to a worker for a task.
    pub(super) fn offered(&self, task: u64, worker: usize) -> Option<Lease> {
        self.offers.get(&task).filter(|offer| offer.worker == worker).map(|offer| offer.lease)
    }

    /// Notes that a worker has taken or given back the slot that it was offered for a task.
    pub(super) fn end_offer(&mut self, task: u64) {
        self.offers.remove(&task);
    }

    /// Forgets the writers of slots that do not exist any more.
    pub(super) fn forget_destroyed_slots(&mut self) {
        self.writers.retain(|&slot, _| self.slots.exists(slot));
    }

    /// Forgets what a worker has asked for, was offered and has written: its process has ended.
    pub(super) fn forget_worker(&mut self, worker: usize) {
        self.writers.retain(|_, writer| *writer != worker);
        self.waiting.retain(|_, need| !matches!(need, Need::Larger(request) if request.worker == worker));
        let slots = &self.slots;
        self.offers.retain(|_, offer| {
            if offer.worker == worker {
                slots.release(offer.lease, false);
            }
            offer.worker != worker
        });
    }

    // The end of an epoch.

    /// Removes every task that waits; returns the requests.
    pub(super) fn stop_all_waiting(&mut self) -> Vec<(u64, Request)> {
        let waiting = std::mem::take(&mut self.waiting).into_iter();
        let requests = waiting.filter_map(|(task, need)| match need {
            Need::Larger(request) => Some((task, request)),
            Need::Any => None,
        });
        requests.collect()
    }

    /// True if a slot was offered to the worker and not taken or given back.
    pub(super) fn has_offer(&self, worker: usize) -> bool {
        self.offers.values().any(|offer| offer.worker == worker)
    }

    /// Returns the lease of each offer.
    #[cfg(test)]
    pub(super) fn offered_leases(&self) -> impl Iterator<Item = Lease> {
        self.offers.values().map(|offer| offer.lease)
    }

    /// Removes and returns all offers, each with its worker.
    pub(super) fn take_offers(&mut self) -> Vec<(usize, Lease)> {
        let offers = std::mem::take(&mut self.offers).into_values();
        offers.map(|offer| (offer.worker, offer.lease)).collect()
    }
}
