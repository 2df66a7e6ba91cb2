//! What workers say, believed as far as it can be true.

use loader_ipc::{
    fault::{self, Point},
    frame::{BadSample, Event, LEAST_OFFERED, Lease, Report},
    lent,
};

use super::{super::supply::ShardEnd, Arrival, Request, Vacate, Wanted, WorkerIter};
use crate::{collate::Batch, error::Error, fetch::ShardBatch, options::OnBadSample};

impl<B: Batch> WorkerIter<B> {
    pub(super) fn handle(&mut self, report: Report) -> Result<(), Error> {
        fault::point(Point::MainReceive);
        match report {
            Report::Event { worker, event } => self.hear(worker, event),
            Report::Exited { worker, pid, status } => self.worker_exited(worker, pid, status),
            Report::Started { worker } => self.worker_started(worker),
        }
    }

    fn hear(&mut self, worker: usize, event: Event) -> Result<(), Error> {
        match event {
            Event::Ready => self.pool.note_opened(worker, true),
            Event::NotReady { .. } => self.pool.note_opened(worker, false),
            Event::Bye if self.schedule.is_over(worker) => self.pool.note_last_word(worker),
            Event::Bye => Err(Error::misbehaved(worker, "it ends although it was not told to")),
            Event::Done { task, lease, encoded, held, position, bad } => {
                if !self.wins(worker, task, lease, held, false)? {
                    return Ok(());
                }
                self.check_lease(worker, task, lease)?;
                self.check_bad(worker, task, &bad, false)?;
                self.check_position(worker, task, position)?;
                if lease.len >= LEAST_OFFERED {
                    self.writers.insert(lease.slot, worker);
                }
                self.arrive(worker, task, Arrival::Batch { lease, encoded, held, position, bad })
            }
            Event::Failed { task, lease, failure, held, position, ended } => {
                if !self.wins(worker, task, lease, held, true)? {
                    return Ok(());
                }
                self.check_lease(worker, task, lease)?;
                self.check_position(worker, task, position)?;
                self.slots.release(lease, held);
                self.arrive(worker, task, Arrival::Failed { failure: Box::new(failure), position, ended })
            }
            Event::LeftOut { task, lease, held, position, bad } => {
                if !self.wins(worker, task, lease, held, false)? {
                    return Ok(());
                }
                self.check_lease(worker, task, lease)?;
                self.check_bad(worker, task, &bad, true)?;
                self.check_position(worker, task, position)?;
                self.slots.release(lease, held);
                self.arrive(worker, task, Arrival::LeftOut { position, bad })
            }
            Event::Oversized { resident } => self.worker_oversized(worker, resident),
            Event::Exhausted { task, lease, held } => self.exhausted(worker, task, lease, held),
            Event::NeedSlot { task, lease, needed } => {
                if self.refuses_hedge(worker, task)? {
                    return Ok(());
                }
                self.check_lease(worker, task, lease)?;
                let needed = usize::try_from(needed).unwrap_or(usize::MAX);
                self.requests.insert(task, Request { worker, lease, needed, vacate: Vacate::No });
                let sent = self.sent_mut(task).expect("checked with its lease");
                match std::mem::replace(&mut sent.has_asked, true) {
                    false => Ok(()),
                    true => {
                        Err(Error::misbehaved(worker, format!("it asked twice for a slot for task {task}")))
                    }
                }
            }
            Event::Vacated { task, lease, held } => self.take_vacated(worker, task, lease, held),
            Event::Unused { task, lease } => self.take_unused(worker, task, lease),
            Event::Withdrawn { task } => match self.pool.saw_withdrawn(worker, task)? {
                true => Ok(()),
                false => Err(Error::misbehaved(worker, format!("it takes task {task} for withdrawn"))),
            },
            Event::Skipped { task, lease, .. } => {
                self.check_lease(worker, task, lease)?;
                Err(Error::misbehaved(worker, format!("it skipped task {task} of an epoch that is not over")))
            }
            Event::Resumed { epoch } => Err(Error::misbehaved(
                worker,
                format!("it resumed with epoch {epoch}, which it was not told"),
            )),
        }
    }

    /// A shard has no more samples: the others get its turns.
    fn exhausted(&mut self, worker: usize, task: u64, lease: Lease, held: bool) -> Result<(), Error> {
        self.check_lease(worker, task, lease)?;
        if !self.supply.has_shards() {
            return Err(Error::misbehaved(
                worker,
                format!("it has no more samples for task {task}, which has indices"),
            ));
        }
        // The request for a slot would outlive the task.
        if self.sent(task).is_some_and(|sent| sent.has_asked) {
            return Err(Error::misbehaved(
                worker,
                format!(
                    "it has no more samples for task {task}, for which it has a batch: it asked for a larger slot"
                ),
            ));
        }
        self.deaths.note_answer(worker, task);
        self.bring_nothing(task, held);
        self.pool.answered(worker, task)?;
        self.finish_idle_workers();
        self.dispatch()
    }

    /// Closes a task whose shard is over. `held`: the worker still holds a tensor in the slot.
    pub(super) fn bring_nothing(&mut self, task: u64, held: bool) {
        if let Some(lease) = self.take_sent(task).lease {
            self.slots.release(lease, held);
        }
        self.parked.remove(&task);
        let was_waiting = self.schedule.exhausted(task);
        debug_assert!(was_waiting, "the caller has seen that it waits");
    }

    fn arrive(&mut self, worker: usize, task: u64, arrival: Arrival) -> Result<(), Error> {
        self.deaths.note_answer(worker, task);
        self.requests.remove(&task);
        self.note_reached(task, &arrival);
        let arrived = self.schedule.arrived(task, arrival);
        debug_assert!(arrived.is_ok(), "the caller has seen that it waits");
        // Last: it sends other tasks, which may fail, and this one is through all the same.
        self.pool.answered(worker, task)?;
        self.finish_idle_workers();
        Ok(())
    }

    /// A report must be of a task that waits for one, under the lease that it was given, by the worker that it was given to.
    pub(super) fn check_lease(&self, worker: usize, task: u64, lease: Lease) -> Result<(), Error> {
        let sent = self.place_of(task).map(|place| &self.tasks[place]);
        let is_its_own = sent.is_some_and(|sent| sent.worker == worker && sent.lease == Some(lease));
        if is_its_own && self.schedule.is_waiting(task) {
            return Ok(());
        }
        Err(Error::misbehaved(worker, format!("it answered task {task}, which is not its to answer")))
    }

    /// Samples may be left out only where the user wants that, and none of them in silence.
    fn check_bad(
        &self,
        worker: usize,
        task: u64,
        bad: &[BadSample],
        all_left_out: bool,
    ) -> Result<(), Error> {
        let may_be = self.options.on_bad_sample != OnBadSample::Error;
        let is_right =
            if may_be { !all_left_out || !bad.is_empty() } else { !all_left_out && bad.is_empty() };
        match is_right {
            true => Ok(()),
            false => Err(Error::misbehaved(worker, format!("it left samples of task {task} out"))),
        }
    }

    /// A task takes a bounded number of items from its shard, and a task of indices takes none. Main must
    /// check this: a position too far ahead would silently skip the rest of the shard.
    fn check_position(&self, worker: usize, task: u64, position: u64) -> Result<(), Error> {
        let wanted = self.place_of(task).map(|place| &self.tasks[place].wanted);
        let max = wanted.map_or(0, |wanted| self.supply.max_position(wanted));
        if position <= max {
            return Ok(());
        }
        let problem = format!(
            "with task {task} it came to item {position}, further in its shard than a batch can ({max})"
        );
        Err(Error::misbehaved(worker, problem))
    }

    /// Notes where a batch leaves its shard: another worker may have to go on from there.
    fn note_reached(&mut self, task: u64, arrival: &Arrival) {
        let (position, is_over) = match arrival {
            Arrival::Batch { position, .. } | Arrival::LeftOut { position, .. } => (*position, false),
            Arrival::Failed { position, ended, .. } => (*position, *ended),
            Arrival::Lost(_) => return,
        };
        let place = self.place_of(task);
        if let Some(&Wanted::NextOf { shard, .. }) = place.map(|place| &self.tasks[place].wanted) {
            self.supply.reached(shard, position, is_over);
        }
    }

    /// The batch in an arrival's slot, where it leaves its shard, and what was bad in it.
    pub(super) fn open(&self, batch: u64, worker: usize, arrival: Arrival) -> Opened<B> {
        let without_bad = |end, error| Opened { end, batch: Err(error), bad: Vec::new() };
        let (lease, encoded, held, position, bad) = match arrival {
            // Nobody knows what of a shard would be behind it.
            Arrival::Lost(mut error) => {
                // Of a shard's it was not known before.
                match &mut *error {
                    Error::WorkerExited { given_up: Some(given_up), doing, .. } => {
                        (given_up.batch, doing.batch) = (batch, batch);
                    }
                    Error::DatasetFailed { batch: number, .. } => *number = batch,
                    _ => {}
                }
                return without_bad(ShardEnd { is_last: true, ..ShardEnd::default() }, *error);
            }
            Arrival::Failed { failure, position, ended } => {
                let end = ShardEnd { position, snapshot: None, is_last: ended };
                return without_bad(end, Error::from_failure(*failure, batch, Some(worker)));
            }
            Arrival::LeftOut { position, bad } => {
                return Opened { end: ShardEnd { position, ..ShardEnd::default() }, batch: Ok(None), bad };
            }
            Arrival::Batch { lease, encoded, held, position, bad } => (lease, encoded, held, position, bad),
        };
        let unreadable = |problem: String| Error::BatchNotReadable { batch, worker, problem };
        let used = encoded.start.saturating_add(encoded.len);
        let loan = self.slots.lend(lease, used, held).map_err(|error| unreadable(error.to_string()));
        let decoded = loan.and_then(|loan| {
            let decoded = match self.supply.has_shards() {
                true => lent::decode::<ShardBatch<B>>(loan, encoded),
                false => lent::decode(loan, encoded).map(|batch| (None, batch)),
            };
            decoded.map_err(|error| unreadable(error.to_string()))
        });
        let (snapshot, batch) = match decoded {
            Ok((snapshot, batch)) => (snapshot, Ok(Some(batch))),
            Err(error) => (None, Err(error)),
        };
        Opened { end: ShardEnd { position, snapshot, is_last: false }, batch, bad }
    }

    /// Says of samples that were bad because main said so what is wrong with them.
    pub(super) fn give_reasons(&self, bad: &mut [BadSample]) {
        for sample in bad.iter_mut().filter(|sample| sample.reason.is_empty()) {
            let known = usize::try_from(sample.index).ok().and_then(|index| self.known_bad.get(&index));
            sample.reason = known.cloned().unwrap_or_default();
        }
    }
}

/// What an arrival is to the user.
pub(super) struct Opened<B> {
    pub(super) end: ShardEnd,
    /// `None` when all of it was left out.
    pub(super) batch: Result<Option<B>, Error>,
    pub(super) bad: Vec<BadSample>,
}
