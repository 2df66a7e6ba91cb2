//! Tasks on their way out: as many as there is room for, and away from workers that are slow.

use loader_ipc::{
    fault::{self, Point},
    frame::{Failure, Indices, Lease, MOST_INLINE_INDICES, MOST_KNOWN_BAD, ONE_BY_ONE, Task},
    slots::SlotError,
};

use super::{Arrival, Sent, Wanted, WorkerIter};
use crate::{collate::Batch, error::Error, fetch::ShardPlace};

impl<B: Batch> WorkerIter<B> {
    /// Sends tasks while there is room in the window and in shared memory.
    pub(super) fn dispatch(&mut self) -> Result<(), Error> {
        if self.pool.look_for_destroyed_slots() {
            self.writers.retain(|&slot, _| self.slots.exists(slot));
        }
        self.give_slots(false)?;
        if !self.requests.is_empty() || !self.parked.is_empty() {
            // Memory is for them first.
            return Ok(());
        }
        while let Some(lane) = self.schedule.next_lane() {
            let Some((wanted, error)) = self.supply.next(lane, &mut self.schedule) else {
                self.starved = None;
                self.schedule.close();
                self.finish_idle_workers();
                break;
            };
            let number = self.schedule.next_number();
            if let Some(error) = error {
                self.fail_unsent(number, lane, wanted, error);
                continue;
            }
            let worker = self.schedule.worker_of(lane);
            let in_slot = wanted.bytes_in_slot();
            let mut leased =
                self.slots.lease(in_slot, self.small_leases(), |slot| self.pool.knows(worker, slot));
            if matches!(leased, Err(SlotError::LimitReached { .. })) && self.schedule.is_empty() {
                // No slot will come back by itself. This batch may be smaller than the recent ones.
                leased = self.slots.lease_small(in_slot).or(leased);
            }
            match leased {
                Ok(lease) => {
                    self.starved = None;
                    self.send(number, lane, wanted, lease)?;
                }
                Err(SlotError::LimitReached { wanted: bytes, limit, .. })
                    if bytes > limit && !self.supply.has_shards() =>
                {
                    let text = format!("its indices need {bytes} bytes, shared_memory_limit is {limit}");
                    let error = Error::from_failure(Failure::to_send(text), number, None);
                    self.fail_unsent(number, lane, wanted, error);
                }
                Err(error) => {
                    self.supply.hold_back(number, wanted);
                    // While batches are on their way, their slots will come free: wait. Otherwise other iterators or the user must act.
                    if !self.schedule.is_empty() {
                        self.starved = None;
                        return Ok(());
                    }
                    return if self.waits_for_others() { Ok(()) } else { Err(self.no_slot(error)) };
                }
            }
        }
        Ok(())
    }

    fn send(&mut self, number: u64, lane: usize, wanted: Wanted, lease: Lease) -> Result<(), Error> {
        fault::point(Point::MainDispatch);
        let task = self.task(number, &wanted, lease)?;
        let worker = self.schedule.worker_of(lane);
        self.schedule.sent(lane);
        self.supply.sent(&wanted);
        self.tasks.push_back(Sent {
            number,
            worker,
            wanted,
            lease: Some(lease),
            has_asked: false,
            has_vacated: false,
        });
        self.pool.give_task(worker, task)
    }

    pub(super) fn task(&self, number: u64, wanted: &Wanted, lease: Lease) -> Result<Task, Error> {
        let indices = self.pack(wanted, lease)?;
        // The pool knows what is to be forgotten, and which claim is free.
        let known_bad = self.known_bad_for(number, wanted);
        Ok(Task {
            epoch: self.supply.epoch(),
            number,
            lease,
            indices,
            forget: Vec::new(),
            claim: 0,
            known_bad,
        })
    }

    /// The samples that a task should not try: its own first, and then others that it may draw. At most [`MOST_KNOWN_BAD`].
    pub(super) fn known_bad_for(&self, number: u64, wanted: &Wanted) -> Vec<u64> {
        let one_by_one = self.one_by_one.contains(&number).then_some(ONE_BY_ONE);
        let Wanted::Samples(indices) = wanted else { return Vec::new() };
        if self.known_bad.is_empty() {
            return Vec::from_iter(one_by_one);
        }
        let (own, others): (Vec<usize>, Vec<usize>) =
            self.known_bad.keys().partition(|index| indices.contains(index));
        let samples = own.into_iter().chain(others).map(|index| index as u64);
        one_by_one.into_iter().chain(samples).take(MOST_KNOWN_BAD).collect()
    }

    /// Moves tasks that wait behind a slow one to workers that have nothing to do, the earliest task first. The order of the batches
    /// does not change, and neither do their contents: no sample's generator depends on its worker.
    ///
    /// Not of an iterable dataset: what a shard gives next is known to the worker that reads it.
    pub(super) fn move_tasks(&mut self) -> Result<(), Error> {
        if self.supply.has_shards() {
            return Ok(());
        }
        for idle in 0..self.options.workers {
            if self.schedule.is_busy(idle) || self.hedges.is_busy(idle) || !self.pool.takes_moved_tasks(idle)
            {
                continue;
            }
            for (number, busy) in self.schedule.waiting_behind(|worker| self.is_held_up(worker)) {
                let place = self.place_of(number).expect("every task in the schedule is noted");
                let Some(lease) = self.tasks[place].lease else { continue };
                // Another slot that it was offered is given back by the worker it was offered to.
                if !self.pool.withdraw(busy, number) {
                    continue;
                }
                self.schedule.moved(number, idle);
                self.tasks[place].worker = idle;
                let task = self.task(number, &self.tasks[place].wanted, lease)?;
                self.pool.give_task(idle, task)?;
                break;
            }
        }
        Ok(())
    }

    /// True when a worker cannot begin any of its tasks for now.
    fn is_held_up(&self, worker: usize) -> bool {
        self.pool.is_down(worker) || self.hedges.has_lost(worker)
    }

    /// Ends the workers that have nothing to do and will be given nothing, unless they are to stay.
    pub(super) fn finish_idle_workers(&mut self) {
        // For every batch: what costs more comes last.
        if self.home.is_some() || !self.schedule.has_closed_lanes() {
            return;
        }
        // The last batches may be late too.
        if self.options.hedge && !self.supply.has_shards() && !self.schedule.is_empty() {
            return;
        }
        if !self.supply.has_shards()
            && !self.schedule.waiting_behind(|worker| self.is_held_up(worker)).is_empty()
        {
            return;
        }
        for worker in 0..self.options.workers {
            if self.schedule.is_over(worker) {
                self.pool.finish(worker);
            }
        }
    }

    /// A batch that fails before any worker sees it.
    fn fail_unsent(&mut self, number: u64, lane: usize, wanted: Wanted, error: Error) {
        let worker = self.schedule.worker_of(lane);
        self.schedule.sent(lane);
        self.tasks.push_back(Sent {
            number,
            worker,
            wanted,
            lease: None,
            has_asked: false,
            has_vacated: false,
        });
        let arrived = self.schedule.arrived(number, Arrival::Lost(Box::new(error)));
        debug_assert!(arrived.is_ok(), "it was just noted as sent");
    }

    /// Tasks on their way whose slot may yet have to grow.
    fn small_leases(&self) -> usize {
        let expected = self.slots.expected() as u64;
        let small = |sent: &&Sent| sent.lease.is_some_and(|lease| lease.len < expected);
        self.tasks.iter().filter(small).count()
    }

    /// What is wanted, as it travels: indices as a range where they are one, as a list where it fits a frame, else in the slot.
    fn pack(&self, wanted: &Wanted, lease: Lease) -> Result<Indices, Error> {
        let indices = match wanted {
            Wanted::Samples(indices) => indices,
            Wanted::NextOf { shard, open_at } => return self.pack_shard(*shard, open_at.as_ref(), lease),
        };
        let start = indices.first().copied().unwrap_or(0);
        if indices.iter().enumerate().all(|(place, &index)| index == start + place) {
            return Ok(Indices::Range { start: start as u64, len: indices.len() as u64 });
        }
        let list: Vec<u64> = indices.iter().map(|&index| index as u64).collect();
        if list.len() <= MOST_INLINE_INDICES {
            return Ok(Indices::List(list));
        }
        let bytes: Vec<u8> = list.iter().flat_map(|index| index.to_le_bytes()).collect();
        self.slots.write(lease, &bytes).map_err(|error| self.no_slot(error))?;
        Ok(Indices::InSlot { len: list.len() as u64 })
    }

    fn pack_shard(&self, shard: usize, open_at: Option<&ShardPlace>, lease: Lease) -> Result<Indices, Error> {
        let shard = u32::try_from(shard).expect("checked by the builder");
        let Some(place) = open_at else {
            return Ok(Indices::NextOf { shard, position: 0, skip: 0, snapshot: None });
        };
        let (position, skip) = (place.position, place.skip());
        let snapshot = match &place.snapshot {
            Some(snapshot) => {
                self.slots.write(lease, &snapshot.bytes).map_err(|error| self.no_slot(error))?;
                Some(snapshot.bytes.len() as u64)
            }
            None => None,
        };
        Ok(Indices::NextOf { shard, position, skip, snapshot })
    }
}

impl Wanted {
    /// Bytes of it that travel in the slot.
    pub(super) fn bytes_in_slot(&self) -> usize {
        match self {
            Self::Samples(indices) if indices.len() > MOST_INLINE_INDICES => size_of::<u64>() * indices.len(),
            Self::Samples(_) => 0,
            Self::NextOf { open_at, .. } => {
                let snapshot = open_at.as_ref().and_then(|place| place.snapshot.as_ref());
                snapshot.map_or(0, |snapshot| snapshot.bytes.len())
            }
        }
    }
}
