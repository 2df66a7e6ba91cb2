//! Slots beside those that tasks are sent with: larger ones that workers ask for, and warm ones that they are offered.

use std::time::{Duration, Instant};

use loader_ipc::{
    frame::{Failure, LEAST_OFFERED, Lease},
    slots::SlotError,
};
use nix::libc::{EMFILE, ENFILE};

use super::{Arrival, Request, Sent, Starved, Vacate, WorkerIter};
use crate::{collate::Batch, error::Error};

/// Max time to wait for slots of other iterators while none of them comes back.
const PATIENCE: Duration = Duration::from_secs(5);

/// Why a task got no slot.
enum NotGiven {
    NoSlot(SlotError),
    Fatal(Error),
}

/// True when the program can make room, by dropping batches or closing descriptors, and then call `next`
/// again.
fn is_retried(error: &SlotError) -> bool {
    match error {
        SlotError::LimitReached { held, .. } => *held > 0,
        SlotError::System { held, source, .. } => {
            *held > 0 || matches!(source.raw_os_error(), Some(EMFILE | ENFILE))
        }
        _ => false,
    }
}

impl<B: Batch> WorkerIter<B> {
    /// Gives slots to the tasks that wait for one, in their order, as long as there is room. A task waits
    /// when its worker has asked for a larger slot, or when main has taken its slot back.
    ///
    /// Main keeps room for earlier tasks that may still ask: otherwise later batches could take all memory
    /// and then wait for an earlier one that gets none. With `reclaims`, while `next` waits, main takes slots
    /// back from later tasks, and fails a batch for which there can be no room.
    pub(super) fn give_slots(&mut self, reclaims: bool) -> Result<(), Error> {
        loop {
            let asked = self.requests.first_key_value().map(|(&task, &request)| (task, request));
            let parked = self.parked.first().copied();
            let (task, needed, given) = match (asked, parked) {
                (Some((task, request)), parked) if parked.is_none_or(|parked| task < parked) => {
                    if let Vacate::Asked = request.vacate {
                        return Ok(());
                    }
                    (task, request.needed, self.answer_request(task, request))
                }
                (_, Some(task)) => (task, 0, self.give_again(task)),
                (_, None) => return Ok(()),
            };
            let error = match given {
                Ok(()) => {
                    self.starved = None;
                    continue;
                }
                Err(NotGiven::Fatal(error)) => return Err(error),
                Err(NotGiven::NoSlot(error)) => error,
            };
            let is_too_large = needed as u64 > self.slots.limit();
            if !is_too_large {
                if !reclaims || self.works_on() {
                    self.starved = None;
                    return Ok(());
                }
                if matches!(error, SlotError::LimitReached { .. }) && self.reclaim_behind(task)? {
                    continue;
                }
                if self.waits_for_lost() || self.waits_for_others() {
                    return Ok(());
                }
                if matches!(error, SlotError::LimitReached { .. }) && self.drop_arrived_behind(task) {
                    continue;
                }
                if is_retried(&error) || self.slots.used_elsewhere() > 0 {
                    return Err(self.no_slot(error));
                }
            }
            self.refuse(task, error)?;
        }
    }

    /// Leases the larger slot that a worker has asked for, and tells it.
    fn answer_request(&mut self, task: u64, request: Request) -> Result<(), NotGiven> {
        let Request { worker, lease, needed, vacate } = request;
        let ahead =
            self.tasks.iter().filter(|sent| sent.number < task && self.may_need(sent, needed)).count();
        let old = matches!(vacate, Vacate::No).then_some(lease);
        let lease = match self.slots.regrow(old, needed, ahead) {
            Err(SlotError::NotLeased(_)) => {
                self.requests.remove(&task);
                let error = Error::misbehaved(worker, "it asked to grow a slot that is not its own");
                return Err(NotGiven::Fatal(error));
            }
            lease => lease.map_err(NotGiven::NoSlot)?,
        };
        self.requests.remove(&task);
        if let Some(sent) = self.sent_mut(task) {
            (sent.lease, sent.has_vacated) = (Some(lease), false);
        }
        self.pool.grant(worker, task, Ok(lease)).map_err(NotGiven::Fatal)
    }

    /// True for a task that may still ask for a slot of `needed` bytes.
    fn may_need(&self, sent: &Sent, needed: usize) -> bool {
        let is_small = sent.has_vacated || sent.lease.is_none_or(|lease| lease.len < needed as u64);
        is_small && self.schedule.is_waiting(sent.number)
    }

    /// Leases a slot for a task whose slot was taken back, and gives it to its worker again.
    fn give_again(&mut self, task: u64) -> Result<(), NotGiven> {
        let place = self.place_of(task).expect("every task in the schedule is noted");
        let Sent { worker, ref wanted, .. } = self.tasks[place];
        let in_slot = wanted.bytes_in_slot();
        let expected = self.slots.expected();
        let ahead =
            self.tasks.iter().filter(|sent| sent.number < task && self.may_need(sent, expected)).count();
        let leased = self.slots.lease(in_slot, ahead, |slot| self.pool.knows(worker, slot));
        let lease = match leased {
            // Its batch may be smaller than the recent ones.
            Err(SlotError::LimitReached { .. }) if ahead == 0 && !self.works_on() => {
                self.slots.lease_small(in_slot).or(leased)
            }
            leased => leased,
        };
        let lease = lease.map_err(NotGiven::NoSlot)?;
        self.parked.remove(&task);
        self.tasks[place].lease = Some(lease);
        let order = self.task(task, &self.tasks[place].wanted, lease).map_err(NotGiven::Fatal)?;
        self.pool.give_task(worker, order).map_err(NotGiven::Fatal)
    }

    /// True while slots may come back by themselves: a worker is on a task, or a batch lies ready for the user. A worker on a try that
    /// has lost does not count, since it may never answer: see [`waits_for_lost`](Self::waits_for_lost).
    fn works_on(&self) -> bool {
        let is_blocked = |worker: usize| {
            let mut requests = self.requests.values();
            requests.any(|request| request.worker == worker && !matches!(request.vacate, Vacate::Asked))
        };
        let works = |worker: &usize| {
            let has_task = !self.hedges.has_lost(*worker) && self.has_task_with_slot(*worker);
            has_task || self.hedges.is_trying(*worker)
        };
        self.schedule.is_ready()
            || (0..self.options.workers).any(|worker| !is_blocked(worker) && works(&worker))
    }

    /// True while a worker has a task to answer whose slot was not taken back.
    pub(super) fn has_task_with_slot(&self, worker: usize) -> bool {
        let has_slot = |sent: &Sent| sent.worker == worker && sent.lease.is_some();
        self.schedule.is_busy(worker)
            && self.tasks.iter().any(|sent| has_slot(sent) && self.schedule.is_waiting(sent.number))
    }

    /// Takes back the slot of the last task behind `task` that no worker has begun. If every later task has
    /// begun, asks for the slot of the last one whose worker waits for a larger slot; that worker then keeps
    /// the batch in memory of its own. False when no later task can give up a slot.
    ///
    /// Alternative considered: to fail those batches, and load them again. Rejected because a shard of an iterable dataset cannot go back.
    fn reclaim_behind(&mut self, task: u64) -> Result<bool, Error> {
        for place in (0..self.tasks.len()).rev() {
            let Sent { number, worker, lease, .. } = self.tasks[place];
            if number <= task {
                break;
            }
            let is_idle = self.schedule.is_waiting(number) && !self.hedges.is_hedged(number);
            if lease.is_some() && is_idle && self.pool.withdraw(worker, number) {
                self.park(number);
                return Ok(true);
            }
        }
        let mut behind = self.requests.range_mut(task + 1..).rev();
        let Some((&number, request)) = behind.find(|(_, request)| matches!(request.vacate, Vacate::No))
        else {
            return Ok(false);
        };
        request.vacate = Vacate::Asked;
        self.pool.vacate(request.worker, number)?;
        Ok(true)
    }

    /// Drops the last batch that has arrived behind `task`, and parks its task, to be loaded again when there is room. False when there is
    /// no such batch, and for an iterable dataset, whose shards cannot go back.
    ///
    /// Alternative considered: to copy the batch into main's own memory. Rejected because `shared_memory_limit` would then not bound it.
    fn drop_arrived_behind(&mut self, task: u64) -> bool {
        // A worker that is still on a lost try of the task could not be told apart from the new one.
        let has_lost = (0..self.options.workers).any(|worker| self.hedges.has_lost(worker));
        if self.supply.has_shards() || !self.options.in_order || has_lost {
            return false;
        }
        let has_slot = |arrival: &Arrival| matches!(arrival, Arrival::Batch { .. });
        let Some((number, worker, arrival)) = self.schedule.take_arrived_behind(task, has_slot) else {
            return false;
        };
        if let Arrival::Batch { lease, held, .. } = arrival {
            self.slots.release(lease, held);
        }
        let place = self.place_of(number).expect("every task in the schedule is noted");
        (self.tasks[place].lease, self.tasks[place].has_asked) = (None, false);
        if !self.pool.takes_moved_tasks(worker) {
            // Its worker has been told that no more tasks come. The one that is waited for has not.
            let to = self.sent(task).map_or(worker, |sent| sent.worker);
            self.schedule.moved(number, to);
            self.tasks[place].worker = to;
        }
        self.park(number);
        true
    }

    /// Takes back the slot of a task that no worker has begun.
    pub(super) fn park(&mut self, task: u64) {
        let Some(sent) = self.sent_mut(task) else { return };
        sent.has_vacated = false;
        if let Some(lease) = sent.lease.take() {
            self.slots.release(lease, false);
        }
        self.parked.insert(task);
    }

    /// Notes that a worker has given back the slot that main asked for.
    pub(super) fn take_vacated(
        &mut self,
        worker: usize,
        task: u64,
        lease: Lease,
        held: bool,
    ) -> Result<(), Error> {
        if let Some(request) = self.requests.get_mut(&task)
            && (request.worker, request.lease) == (worker, lease)
            && matches!(request.vacate, Vacate::Asked)
        {
            request.vacate = Vacate::Done;
            if let Some(sent) = self.sent_mut(task) {
                sent.has_vacated = true;
            }
        } else if !self.hedges.take_vacated(worker, task, lease) {
            return Err(Error::misbehaved(worker, format!("it gave back the slot of task {task} unasked")));
        }
        self.slots.release(lease, held);
        Ok(())
    }

    /// True while it makes sense to wait for slots of other iterators: some may come back, and at least one
    /// came back within [`PATIENCE`].
    pub(super) fn waits_for_others(&mut self) -> bool {
        if !self.slots.may_come_back() {
            self.starved = None;
            return false;
        }
        let (now, returned) = (Instant::now(), self.slots.returned());
        let starved = self.starved.filter(|starved| starved.returned == returned);
        let starved = starved.unwrap_or(Starved { since: now, returned });
        let waits = now.duration_since(starved.since) < PATIENCE;
        self.starved = waits.then_some(starved);
        waits
    }

    /// Fails the batch of a task for which there can be no slot.
    fn refuse(&mut self, task: u64, error: SlotError) -> Result<(), Error> {
        let text = error.to_string();
        match self.requests.remove(&task) {
            Some(Request { worker, .. }) => self.pool.grant(worker, task, Err(text)),
            None => {
                let number = self.supply.number_of(task);
                self.give_up(task, |_| Error::from_failure(Failure::to_send(text), number, None))
            }
        }
    }

    /// The error that says that the user must act: nothing is lost.
    pub(super) fn no_slot(&self, error: SlotError) -> Error {
        let mut problem = error.to_string();
        let elsewhere = self.slots.used_elsewhere();
        if elsewhere > 0 {
            problem.push_str(&format!(
                "; {elsewhere} slots belong to other iterators of this loader: take their batches, or drop them"
            ));
        }
        Error::SharedMemoryExhausted { problem }
    }

    /// Offers slots that the user has just given back to tasks that wait with slots used longer ago: a batch of some megabytes is
    /// written much faster into memory that is still in the cache. With one worker and a fast user two slots then go round.
    pub(super) fn offer_warm_slots(&mut self) -> Result<(), Error> {
        // While tasks wait for slots, there is no spare slot.
        if self.writers.is_empty() || !self.requests.is_empty() || !self.parked.is_empty() {
            return Ok(());
        }
        // By worker, its newest task if it has several: that one is surely not begun.
        let mut newest = vec![(None, 0); self.options.workers];
        for sent in self.tasks.iter().rev() {
            let Some(lease) = sent.lease else { continue };
            let (task, count) = &mut newest[sent.worker];
            task.get_or_insert((sent.number, lease));
            *count += 1;
        }
        for (worker, task) in newest.into_iter().enumerate() {
            let (Some((task, lease)), 2..) = task else { continue };
            if lease.len < LEAST_OFFERED || self.offers.contains_key(&task) || !self.schedule.is_waiting(task)
            {
                continue;
            }
            let own = |slot| self.writers.get(&slot) == Some(&worker);
            let Some(warmer) = self.slots.lease_warmer(lease, own) else { continue };
            match self.pool.offer(worker, task, warmer) {
                Ok(true) => drop(self.offers.insert(task, (worker, warmer))),
                Ok(false) => self.slots.release(warmer, false),
                Err(error) => {
                    self.slots.release(warmer, false);
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// A task has two leases, and its worker says which one it does not use.
    pub(super) fn take_unused(&mut self, worker: usize, task: u64, lease: Lease) -> Result<(), Error> {
        let offered = self.offers.get(&task).copied();
        let Some((_, offered)) = offered.filter(|&(to, _)| to == worker) else {
            return Err(Error::misbehaved(
                worker,
                format!("it gave back a slot for task {task}, for which it had only one"),
            ));
        };
        // The worker goes on with the offered slot. If another worker's try has won meanwhile, this try was
        // noted as lost under its old lease.
        if lease != offered && !self.hedges.exchange(worker, task, lease, offered) {
            self.check_lease(worker, task, lease)?;
            self.sent_mut(task).expect("checked with its lease").lease = Some(offered);
        }
        self.offers.remove(&task);
        self.slots.release(lease, false);
        Ok(())
    }
}
