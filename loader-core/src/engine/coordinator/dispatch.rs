//! Sends tasks to workers: as many as there is room for, and away from workers that are slow.

use loader_ipc::{
    fault::{self, Point},
    frame::{Failure, Indices, Lease, MAX_INLINE_INDICES},
    slots::SlotError,
};

use super::{
    Coordinator,
    crew::{Crew, UnsentTask},
    pending::{Outcome, Pending},
};
use crate::{
    data::fetch::{BatchRequest, ShardPosition},
    error::Error,
};

impl Coordinator {
    /// Sends tasks while there is room in the window and in shared memory.
    pub(super) fn dispatch(&mut self, crew: &mut impl Crew) -> Result<(), Error> {
        if crew.forget_destroyed_slots() {
            self.leasing.forget_destroyed_slots();
        }
        self.hand_over_shards();
        self.give_slots(false, crew)?;
        // Memory is first for the tasks that wait for it.
        if self.leasing.any_waits() {
            return Ok(());
        }
        while let Some(lane) = self.schedule.next_lane() {
            let Some((wanted, error)) = self.supply.next(lane, &mut self.schedule) else {
                self.leasing.end_starving();
                self.schedule.close();
                self.finish_idle_workers(crew);
                break;
            };
            if let Some(error) = error {
                self.fail_unsent(lane, wanted, error);
                continue;
            }
            let worker = self.schedule.worker_of_lane(lane);
            let in_slot = bytes_in_slot(&wanted);
            let slots = self.leasing.slots();
            let mut leased = slots.lease(in_slot, self.small_leases(), |slot| crew.knows(worker, slot));
            if matches!(leased, Err(SlotError::LimitReached { .. })) && self.schedule.is_empty() {
                // No slot will come back by itself. This batch may be smaller than the recent ones.
                leased = slots.lease_small(in_slot).or(leased);
            }
            match leased {
                Ok(lease) => self.send(lane, wanted, lease, crew)?,
                Err(SlotError::LimitReached { wanted: bytes, limit, .. })
                    if bytes > limit && !self.supply.has_shards() =>
                {
                    let text = format!("its indices need {bytes} bytes, shared_memory_limit is {limit}");
                    let number = self.schedule.next_number();
                    let error = Error::from_failure(Failure::to_send(text), number, None);
                    self.fail_unsent(lane, wanted, error);
                }
                Err(error) => {
                    self.supply.hold_back(self.schedule.next_number(), wanted);
                    return self.wait_for_slot(error);
                }
            }
        }
        Ok(())
    }

    /// Decides whether to wait for a slot for the next task. While batches are on their way, their slots will
    /// come free. Otherwise other iterators or the user must act.
    fn wait_for_slot(&mut self, error: SlotError) -> Result<(), Error> {
        if !self.schedule.is_empty() {
            self.leasing.end_starving();
            return Ok(());
        }
        if self.leasing.waits_for_others(self.now) { Ok(()) } else { Err(self.no_slot(error)) }
    }

    fn send(
        &mut self,
        lane: usize,
        wanted: BatchRequest,
        lease: Lease,
        crew: &mut impl Crew,
    ) -> Result<(), Error> {
        fault::point(Point::MainDispatch);
        self.leasing.end_starving();
        let (number, worker) = (self.schedule.next_number(), self.schedule.worker_of_lane(lane));
        let task = self.task(number, &wanted, lease)?;
        self.supply.sent(&wanted);
        self.schedule.sent(lane, Pending::new(wanted, Some(lease)));
        self.roster.give(worker, task, crew)
    }

    /// Gives a task to a worker.
    pub(super) fn give(
        &mut self,
        number: u64,
        worker: usize,
        lease: Lease,
        crew: &mut impl Crew,
    ) -> Result<(), Error> {
        let Some(pending) = self.schedule.get(number) else { return Ok(()) };
        let task = self.task(number, pending.wanted(), lease)?;
        self.roster.give(worker, task, crew)
    }

    /// Returns a task as it is to be sent.
    fn task(&self, number: u64, wanted: &BatchRequest, lease: Lease) -> Result<UnsentTask, Error> {
        Ok(UnsentTask {
            epoch: self.supply.epoch(),
            number,
            lease,
            indices: self.pack(wanted, lease)?,
            known_bad: self.known_bad.for_task(number, wanted),
        })
    }

    /// Moves tasks that wait behind a slow one to workers that have nothing to do, the earliest task first.
    /// The order of the batches does not change, and neither does their content: no sample's generator
    /// depends on its worker.
    ///
    /// Tasks of an iterable dataset are not moved: only the worker that reads a shard knows its next samples.
    pub(super) fn move_tasks(&mut self, crew: &mut impl Crew) -> Result<(), Error> {
        if self.supply.has_shards() || !self.options.move_tasks {
            return Ok(());
        }
        for idle in 0..self.roster.len() {
            if !self.is_idle(idle, crew) {
                continue;
            }
            for (number, busy) in self.schedule.waiting_behind(|worker| self.is_held_up(worker, crew)) {
                let Some(lease) = self.schedule.get(number).and_then(Pending::lease) else { continue };
                // Another slot that the worker was offered for it comes back from that worker.
                if !self.roster.withdraw(busy, number, crew) {
                    continue;
                }
                self.schedule.moved(number, idle);
                self.give(number, idle, lease, crew)?;
                break;
            }
        }
        Ok(())
    }

    /// True if a worker cannot begin any of its tasks for now.
    fn is_held_up(&self, worker: usize, crew: &impl Crew) -> bool {
        crew.is_down(worker) || self.attempts.has_lost(worker)
    }

    /// Tells workers that have nothing to do and will get nothing to end, unless they stay for another epoch.
    pub(super) fn finish_idle_workers(&mut self, crew: &mut impl Crew) {
        // This runs for every batch: what costs more comes last.
        if self.persistent || !self.schedule.has_closed_lanes() {
            return;
        }
        if !self.supply.has_shards() {
            // The last batches may be late too.
            if self.options.hedge && !self.schedule.is_empty() {
                return;
            }
            if !self.schedule.waiting_behind(|worker| self.is_held_up(worker, crew)).is_empty() {
                return;
            }
        }
        for worker in 0..self.roster.len() {
            // A parked worker may be needed again.
            let may_work = !self.roster.is_working(worker) && !self.schedule.is_closed();
            if self.schedule.is_over(worker) && !may_work {
                self.schedule.finish(worker);
                crew.finish(worker);
            }
        }
    }

    /// Notes the next batch as failed before any worker sees it.
    fn fail_unsent(&mut self, lane: usize, wanted: BatchRequest, error: Error) {
        let number = self.schedule.next_number();
        let mut pending = Pending::new(wanted, None);
        pending.set_outcome(Outcome::Lost(Box::new(error)));
        self.schedule.sent(lane, pending);
        let was_waiting = self.schedule.arrived(number);
        debug_assert!(was_waiting, "it was just noted as sent");
    }

    /// Returns the number of tasks on their way whose slot may have to grow.
    fn small_leases(&self) -> usize {
        let expected = self.leasing.slots().expected() as u64;
        let is_small = |lease: Lease| lease.len < expected;
        self.schedule.tasks().filter(|scheduled| scheduled.task.lease().is_some_and(is_small)).count()
    }

    /// Encodes the content of a task: indices as a range if they are one, as a list if it fits a frame, else
    /// in the slot.
    fn pack(&self, wanted: &BatchRequest, lease: Lease) -> Result<Indices, Error> {
        let indices = match wanted {
            BatchRequest::Samples(indices) => indices,
            BatchRequest::NextOf { shard, open_at } => return self.pack_shard(*shard, open_at, lease),
        };
        let start = indices.first().copied().unwrap_or(0);
        if indices.iter().enumerate().all(|(position, &index)| index == start + position) {
            return Ok(Indices::Range { start: start as u64, len: indices.len() as u64 });
        }
        let list: Vec<u64> = indices.iter().map(|&index| index as u64).collect();
        if list.len() <= MAX_INLINE_INDICES {
            return Ok(Indices::List(list));
        }
        let bytes: Vec<u8> = list.iter().flat_map(|index| index.to_le_bytes()).collect();
        self.leasing.slots().write(lease, &bytes).map_err(|error| self.no_slot(error))?;
        Ok(Indices::InSlot { len: list.len() as u64 })
    }

    fn pack_shard(&self, shard: usize, open_at: &ShardPosition, lease: Lease) -> Result<Indices, Error> {
        let shard = u32::try_from(shard).expect("checked by the builder");
        let (position, start) = (open_at.position, open_at.start());
        let snapshot = match &open_at.snapshot {
            Some(snapshot) => {
                let written = self.leasing.slots().write(lease, &snapshot.bytes);
                written.map_err(|error| self.no_slot(error))?;
                Some(snapshot.bytes.len() as u64)
            }
            None => None,
        };
        Ok(Indices::NextOf { shard, position, start, snapshot })
    }
}

/// Returns the number of bytes of a request that travel in the slot.
pub(super) fn bytes_in_slot(wanted: &BatchRequest) -> usize {
    match wanted {
        BatchRequest::Samples(indices) if indices.len() > MAX_INLINE_INDICES => {
            size_of::<u64>() * indices.len()
        }
        BatchRequest::Samples(_) => 0,
        BatchRequest::NextOf { open_at, .. } => {
            open_at.snapshot.as_ref().map_or(0, |snapshot| snapshot.bytes.len())
        }
    }
}
