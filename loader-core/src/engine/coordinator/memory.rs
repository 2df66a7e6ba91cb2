//! Gives slots to tasks that wait for one, and takes slots back from later tasks where memory is short.

use loader_ipc::{
    frame::{Failure, Lease},
    slots::SlotError,
    violation::ProtocolViolation,
};
use nix::libc::{EMFILE, ENFILE};

use super::{
    Coordinator,
    crew::Crew,
    dispatch::bytes_in_slot,
    leasing::{Need, Request, Vacate},
    pending::Pending,
    reports::Answer,
    schedule::Scheduled,
};
use crate::error::Error;

/// Why a task got no slot.
enum NotGiven {
    NoSlot(SlotError),
    Fatal(Error),
}

/// True if the program can make room, by dropping batches or closing descriptors, and then call `next` again.
fn is_retried(error: &SlotError) -> bool {
    match error {
        SlotError::LimitReached { held, .. } => *held > 0,
        SlotError::System { held, source, .. } => {
            *held > 0 || matches!(source.raw_os_error(), Some(EMFILE | ENFILE))
        }
        _ => false,
    }
}

impl Coordinator {
    /// Gives slots to the tasks that wait for one, in their order, as long as there is room.
    ///
    /// Main keeps room for earlier tasks that may still ask: otherwise later batches could take all memory
    /// and then wait for an earlier one that gets none. With `reclaims`, while main waits for a batch, it
    /// takes slots back from later tasks, and fails a batch for which there can be no room.
    pub(super) fn give_slots(&mut self, reclaims: bool, crew: &mut impl Crew) -> Result<(), Error> {
        while let Some((task, need)) = self.leasing.first_waiting() {
            let (needed, given) = match need {
                Need::Larger(Request { vacate: Vacate::Asked, .. }) => return Ok(()),
                Need::Larger(request) => (request.needed, self.answer_request(task, request, crew)),
                Need::Any => (0, self.give_again(task, crew)),
            };
            let error = match given {
                Ok(()) => {
                    self.leasing.end_starving();
                    continue;
                }
                Err(NotGiven::Fatal(error)) => return Err(error),
                Err(NotGiven::NoSlot(error)) => error,
            };
            if needed as u64 <= self.leasing.slots().limit() {
                if !reclaims || self.works_on() {
                    self.leasing.end_starving();
                    return Ok(());
                }
                let is_limited = matches!(error, SlotError::LimitReached { .. });
                if is_limited && self.reclaim_behind(task, crew)? {
                    continue;
                }
                if self.waits_for_lost(crew) || self.leasing.waits_for_others(self.now) {
                    return Ok(());
                }
                if is_limited && self.drop_arrived_behind(task, crew) {
                    continue;
                }
                if is_retried(&error) || self.leasing.slots().used_by_other_iterators() > 0 {
                    return Err(self.no_slot(error));
                }
                if is_limited && self.send_back(crew)? {
                    return Ok(());
                }
            }
            self.refuse(task, &error, crew)?;
        }
        Ok(())
    }

    /// Leases the larger slot that a worker has asked for, and grants it.
    fn answer_request(&mut self, task: u64, request: Request, crew: &mut impl Crew) -> Result<(), NotGiven> {
        let Request { worker, lease, needed, vacate } = request;
        let ahead = self.may_need_before(task, needed);
        let old = (vacate == Vacate::NotAsked).then_some(lease);
        let lease = match self.leasing.slots().regrow(old, needed, ahead) {
            Err(SlotError::NotLeased(_)) => {
                self.leasing.stop_waiting(task);
                let error = Error::misbehaved(worker, ProtocolViolation::NotLeased { task });
                return Err(NotGiven::Fatal(error));
            }
            lease => lease.map_err(NotGiven::NoSlot)?,
        };
        self.leasing.stop_waiting(task);
        if let Some(pending) = self.schedule.get_mut(task) {
            pending.set_lease(lease);
        }
        crew.grant(worker, task, Ok(lease)).map_err(NotGiven::Fatal)
    }

    /// Returns the number of tasks before `task` that may still ask for a slot of `needed` bytes.
    fn may_need_before(&self, task: u64, needed: usize) -> usize {
        let may_need = |scheduled: &Scheduled<'_, Pending>| {
            let pending = scheduled.task;
            let is_large =
                pending.has_slot() && pending.lease().is_some_and(|lease| lease.len >= needed as u64);
            !is_large && !scheduled.has_arrived
        };
        self.schedule.tasks().take_while(|scheduled| scheduled.number < task).filter(may_need).count()
    }

    /// Leases a slot for a task whose slot was taken back, and gives the task to its worker again.
    fn give_again(&mut self, task: u64, crew: &mut impl Crew) -> Result<(), NotGiven> {
        let worker = self.schedule.worker_of(task);
        let Some((worker, pending)) = worker.zip(self.schedule.get(task)) else {
            debug_assert!(false, "a task that waits for a slot is not done");
            self.leasing.stop_waiting(task);
            return Ok(());
        };
        let in_slot = bytes_in_slot(pending.wanted());
        let slots = self.leasing.slots();
        let ahead = self.may_need_before(task, slots.expected());
        let leased = slots.lease(in_slot, ahead, |slot| crew.knows(worker, slot));
        let lease = match leased {
            // Its batch may be smaller than the recent ones.
            Err(SlotError::LimitReached { .. }) if ahead == 0 && !self.works_on() => {
                slots.lease_small(in_slot).or(leased)
            }
            leased => leased,
        };
        let lease = lease.map_err(NotGiven::NoSlot)?;
        self.leasing.stop_waiting(task);
        if let Some(pending) = self.schedule.get_mut(task) {
            pending.set_lease(lease);
        }
        self.give(task, worker, lease, crew).map_err(NotGiven::Fatal)
    }

    /// True while slots may come back by themselves: a worker is on a task, or the user's next batch has
    /// arrived. A worker on an attempt that has lost does not count, since it may never answer: see
    /// [`waits_for_lost`](Self::waits_for_lost).
    fn works_on(&self) -> bool {
        let works = |&worker: &usize| {
            let has_task = !self.attempts.has_lost(worker) && self.has_task_with_slot(worker);
            has_task || self.attempts.is_on_second(worker)
        };
        let is_free = |worker: &usize| !self.leasing.is_blocked(*worker);
        self.schedule.is_ready() || (0..self.roster.len()).filter(is_free).any(|worker| works(&worker))
    }

    /// True while a worker has a task to answer whose slot was not taken back.
    pub(super) fn has_task_with_slot(&self, worker: usize) -> bool {
        let has_slot = |scheduled: Scheduled<'_, Pending>| {
            scheduled.worker == worker && !scheduled.has_arrived && scheduled.task.lease().is_some()
        };
        self.schedule.is_busy(worker) && self.schedule.tasks().any(has_slot)
    }

    /// Takes back the slot of the last task behind `task` that no worker has begun. If every later task was
    /// begun, asks for the slot of the last one whose worker waits for a larger slot; that worker then keeps
    /// the batch in memory of its own. False if no later task can give up a slot.
    ///
    /// Alternative considered: to fail those batches, and load them again. Rejected because a shard of an
    /// iterable dataset cannot go back.
    fn reclaim_behind(&mut self, task: u64, crew: &mut impl Crew) -> Result<bool, Error> {
        let behind = self.schedule.tasks().rev().take_while(|scheduled| scheduled.number > task);
        let is_takable = |scheduled: &Scheduled<'_, Pending>| {
            scheduled.task.lease().is_some()
                && !scheduled.has_arrived
                && !self.attempts.is_hedged(scheduled.number)
        };
        let takable: Vec<(u64, usize)> =
            behind.filter(is_takable).map(|scheduled| (scheduled.number, scheduled.worker)).collect();
        for (number, worker) in takable {
            if self.roster.withdraw(worker, number, crew) {
                self.defer(number);
                return Ok(true);
            }
        }
        match self.leasing.vacate_behind(task) {
            Some((number, worker)) => crew.vacate(worker, number).map(|()| true),
            None => Ok(false),
        }
    }

    /// True if a worker can load a batch twice. A shard of an iterable dataset cannot go back. With
    /// `move_tasks = false`, samples may depend on the worker's earlier samples, for example through its random number
    /// generator. A second load would then change this batch and all later ones of the worker.
    fn can_load_again(&self) -> bool {
        !self.supply.has_shards() && self.options.move_tasks
    }

    /// Drops the last batch that has arrived behind `task`, and defers its task, to be loaded again when
    /// there is room. False if there is no such batch, or if batches cannot be loaded again.
    ///
    /// Alternative considered: to copy the batch into main's own memory. Rejected because
    /// `shared_memory_limit` would then not bound it.
    fn drop_arrived_behind(&mut self, task: u64, crew: &impl Crew) -> bool {
        // Main could not tell an answer of an attempt that has lost from that of the new attempt.
        if !self.can_load_again() || !self.options.in_order || self.attempts.any_lost() {
            return false;
        }
        let Some(number) = self.schedule.send_again_behind(task, Pending::has_batch) else { return false };
        let next = self.schedule.worker_of(task);
        let worker = self.schedule.worker_of(number);
        let Some(pending) = self.schedule.get_mut(number) else { return false };
        let is_held = pending.is_held();
        if let Some(lease) = pending.take_lease() {
            self.leasing.slots().release(lease, is_held);
        }
        pending.start_again();
        // Its worker may have been told that no more tasks come. The worker of `task` was not.
        if let Some((worker, next)) = worker.zip(next)
            && !self.roster.takes_moved_tasks(worker, crew)
        {
            self.schedule.moved(number, next);
        }
        self.leasing.defer(number);
        true
    }

    /// Takes back the slot of a task that no worker has begun.
    pub(super) fn defer(&mut self, task: u64) {
        let Some(pending) = self.schedule.get_mut(task) else { return };
        if let Some(lease) = pending.take_lease() {
            self.leasing.slots().release(lease, false);
        }
        self.leasing.defer(task);
    }

    /// Handles the return of a slot that main has asked for.
    pub(super) fn take_vacated(&mut self, answer: Answer) -> Result<(), Error> {
        let Answer { worker, task, lease, held } = answer;
        if self.leasing.vacated(task, worker, lease) {
            if let Some(pending) = self.schedule.get_mut(task) {
                pending.vacate();
            }
        } else if !self.attempts.vacate(worker, task, lease) {
            return Err(Error::misbehaved(worker, ProtocolViolation::VacatedUnasked { task }));
        }
        self.leasing.slots().release(lease, held);
        Ok(())
    }

    /// Tells the last worker that waits for a larger slot to drop its batch, which it loads again later.
    /// Until then the worker cannot begin another task, which may be an earlier one. False if there is no
    /// such worker, or if batches cannot be loaded again.
    fn send_back(&mut self, crew: &mut impl Crew) -> Result<bool, Error> {
        if !self.can_load_again() {
            return Ok(false);
        }
        let Some((task, request)) = self.leasing.last_request() else { return Ok(false) };
        if !self.schedule.get_mut(task).is_some_and(Pending::send_back) {
            return Ok(false);
        }
        self.leasing.stop_waiting(task);
        let reason = "its memory is needed for an earlier batch".to_owned();
        crew.grant(request.worker, task, Err(reason)).map(|()| true)
    }

    /// Fails the batch of a task for which there can be no slot.
    fn refuse(&mut self, task: u64, error: &SlotError, crew: &mut impl Crew) -> Result<(), Error> {
        let text = error.to_string();
        match self.leasing.stop_waiting(task) {
            Some(Need::Larger(request)) => crew.grant(request.worker, task, Err(text)),
            _ => {
                let number = self.supply.number_of(task);
                self.give_up(task, |_| Error::from_failure(Failure::to_send(text), number, None), crew)
            }
        }
    }

    /// Returns the error that asks the user to make room. No batch is lost.
    pub(super) fn no_slot(&self, source: SlotError) -> Error {
        let elsewhere = self.leasing.slots().used_by_other_iterators();
        Error::SharedMemoryExhausted { source, elsewhere }
    }

    /// Offers slots that the user has just given back to tasks that wait with slots used longer ago: a batch
    /// of some megabytes is written much faster into memory that is still in the cache. With one worker and a
    /// fast user two slots then take turns.
    pub(super) fn offer_warm_slots(&mut self, crew: &mut impl Crew) -> Result<(), Error> {
        if !self.leasing.may_offer() {
            return Ok(());
        }
        // By worker, its newest task if it has several: the worker has surely not begun that one.
        let mut newest = vec![(None, 0); self.roster.len()];
        for scheduled in self.schedule.tasks().rev() {
            let Some(lease) = scheduled.task.lease() else { continue };
            let (task, count) = &mut newest[scheduled.worker];
            task.get_or_insert((scheduled.number, lease));
            *count += 1;
        }
        for (worker, task) in newest.into_iter().enumerate() {
            let (Some((task, lease)), 2..) = task else { continue };
            if !self.schedule.is_waiting(task) || !self.roster.takes_offers(worker, crew) {
                continue;
            }
            if let Some(warmer) = self.leasing.lease_warmer(task, worker, lease) {
                crew.offer(worker, task, warmer)?;
            }
        }
        Ok(())
    }

    /// Handles the return of one of the two slots that a worker had for a task.
    pub(super) fn take_unused(&mut self, worker: usize, task: u64, lease: Lease) -> Result<(), Error> {
        let Some(offered) = self.leasing.offered(task, worker) else {
            return Err(Error::misbehaved(worker, ProtocolViolation::NoSecondSlot { task }));
        };
        // The worker continues with the offered slot. If another worker's attempt has won meanwhile, this
        // attempt has lost under its old lease.
        if lease != offered && !self.attempts.exchange(worker, task, lease, offered) {
            self.check_lease(worker, task, lease)?;
            if let Some(pending) = self.schedule.get_mut(task) {
                pending.set_lease(offered);
            }
        }
        self.leasing.end_offer(task);
        self.leasing.slots().release(lease, false);
        Ok(())
    }
}
