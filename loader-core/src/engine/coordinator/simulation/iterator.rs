//! A simulated iterator of the loader: its coordinator, its workers, and the batches that the user holds. It
//! takes the place of `iter::team` and `iter::workers`.

use std::{
    any::Any,
    rc::Rc,
    thread::ThreadId,
    time::{Duration, Instant},
};

use loader_ipc::{
    frame::{AfterFailure, Report, StreamPosition},
    slots::SlotPool,
};
use rand::{RngExt, rngs::ChaCha8Rng};

use super::{
    super::{Coordinator, Next, Outcome, ShardEnd, Supply, WorkerOptions},
    crew::{Faults, Workers},
    dataset::Content,
    scenario::MAX_WORKERS,
    shared::Shared,
};
use crate::{data::fetch::BatchRequest, error::Error, state::Position};

/// Maximum simulated time that a call of `next` may take. A stopped worker is replaced after 10 seconds, and
/// an iterator without memory waits 5 seconds for other
/// iterators.
const MAX_WAIT: Duration = Duration::from_secs(600);
/// Maximum time from the moment when main must act to the moment when it acts.
const MAX_DELAY: Duration = Duration::from_millis(100);
/// Maximum time for the workers to begin another epoch.
const RESUME_DEADLINE: Duration = Duration::from_secs(5);

/// What `next` returns.
#[derive(Debug)]
pub(super) enum Returned {
    Batch(u64, Content),
    /// A batch of which every sample was left out. The real `next` does not return it.
    Nothing(u64),
    /// The error of a batch. If the batch is part of a shard, also where it ends.
    Failed(u64, Option<EndOfFailure>),
    /// The end of the epoch.
    End,
    NoMemory(Error),
    TimedOut,
    /// An error that ends the iterator.
    Fatal(Error),
}

/// Where a failed batch ends in its shard.
#[derive(Debug)]
pub(super) struct EndOfFailure {
    pub(super) shard: u32,
    pub(super) position: StreamPosition,
    pub(super) after: AfterFailure,
}

/// A batch that the user holds.
struct Held {
    slot: u32,
    _loan: Box<dyn Any>,
}

pub(super) struct Iteration {
    pub(super) coordinator: Coordinator,
    pub(super) workers: Workers,
    pub(super) max_pending: usize,
    shared: Rc<Shared>,
    held: Vec<Held>,
    /// The pools of earlier epochs, whose batches the user may still hold.
    earlier: Vec<SlotPool>,
    /// An error that ended the iterator while it returned a batch.
    last_error: Option<Error>,
    /// When main began to wait.
    since: Instant,
    /// When main wakes up if no report comes.
    wake: Instant,
    /// True if main looks for ended workers at `wake`.
    then_check_exits: bool,
    /// When main last acted in this call of `next`, once it checks the workers.
    watched_at: Option<Instant>,
}

impl Iteration {
    pub(super) fn start(
        options: WorkerOptions,
        supply: Supply,
        slots: &SlotPool,
        persistent: bool,
        mut workers: Workers,
        shared: &Rc<Shared>,
        user: ThreadId,
    ) -> Self {
        let now = shared.now();
        let max_pending = MAX_WORKERS * options.prefetch_factor;
        let mut coordinator = Coordinator::new(options, supply, slots, persistent, now, &workers);
        coordinator.slots().set_user(user);
        let last_error = coordinator.send_tasks(now, &mut workers).err().filter(Error::ends_iteration);
        Self {
            coordinator,
            workers,
            max_pending,
            shared: Rc::clone(shared),
            held: Vec::new(),
            earlier: Vec::new(),
            last_error,
            since: now,
            wake: now,
            then_check_exits: false,
            watched_at: None,
        }
    }

    /// Begins a call of `next`.
    pub(super) fn start_next(&mut self, user: ThreadId) {
        self.since = self.shared.now();
        self.wake = self.since;
        self.watched_at = None;
        self.coordinator.slots().set_user(user);
        self.coordinator.start_wait(self.since);
    }

    /// True if main has something to do now.
    pub(super) fn can_act(&self) -> bool {
        self.workers.has_report() || self.shared.now() >= self.wake
    }

    /// Returns the time at which main wakes up if no report arrives.
    pub(super) fn wake(&self) -> Instant {
        self.wake
    }

    /// Does main's next step in a call of `next`. Returns the call's result, or `None` while main waits.
    pub(super) fn act(&mut self) -> Option<Returned> {
        let now = self.shared.now();
        if now - self.since >= MAX_WAIT {
            self.shared.log(|| format!("{:#?}", self.coordinator));
            panic!("next did not return within {MAX_WAIT:?}");
        }
        if let Some(error) = self.last_error.take() {
            return Some(self.failed(error));
        }
        if let Err(error) = self.receive() {
            return Some(self.failed(error));
        }
        let next = self.coordinator.poll(now, &mut self.workers);
        self.check_sample_timeout(now);
        match next {
            Err(error) => Some(self.failed(error)),
            Ok(Next::End) => Some(Returned::End),
            Ok(Next::Return) => Some(self.take()),
            Ok(Next::Receive { until, then_check_exits }) => {
                (self.wake, self.then_check_exits) = (until, then_check_exits);
                self.watched_at = then_check_exits.then_some(now);
                None
            }
        }
    }

    /// Checks that main kills a worker that stays in one sample for longer than `sample_timeout` while main
    /// waits. Main looks at the workers four times per `sample_timeout`, so it may be late by half of
    /// `sample_timeout`.
    fn check_sample_timeout(&mut self, now: Instant) {
        let patience = self.coordinator.options.sample_timeout;
        let Some((patience, before)) = patience.zip(self.watched_at) else { return };
        let max = patience * 3 / 2 + MAX_DELAY;
        for (number, worker) in self.workers.all.iter_mut().enumerate() {
            worker.watched += now.saturating_duration_since(worker.since.max(before));
            let is_late = worker.is_in_sample() && worker.watched > max;
            assert!(!is_late, "worker {number} is in one sample for longer than {max:?}");
        }
    }

    fn failed(&self, error: Error) -> Returned {
        self.shared.log(|| format!("next fails: {error}"));
        match error {
            error if error.ends_iteration() => Returned::Fatal(error),
            error @ Error::SharedMemoryExhausted { .. } => Returned::NoMemory(error),
            Error::TimedOut { .. } => Returned::TimedOut,
            error => panic!("next fails: {error}"),
        }
    }

    /// Handles a report, if there is one.
    fn receive(&mut self) -> Result<(), Error> {
        let Some((report, is_lie)) = self.workers.report() else {
            if self.then_check_exits && self.shared.now() >= self.wake {
                self.workers.look_for_exits();
            }
            return Ok(());
        };
        self.shared.log(|| format!("main receives {report:?}"));
        let worker = match report {
            Report::Event { worker, .. } | Report::Exited { worker, .. } | Report::Started { worker } => {
                worker
            }
        };
        let handled = self.coordinator.handle(report, self.shared.now(), &mut self.workers);
        let is_expelled = self.workers.all[worker].ended.is_some() || handled.is_err();
        assert!(
            !is_lie || is_expelled,
            "main does not expel worker {worker}, which has sent an invalid event"
        );
        handled
    }

    /// Returns the batch that has arrived.
    fn take(&mut self) -> Returned {
        let (taken, outcome) = self.coordinator.take_next().expect("`poll` has returned `Next::Return`");
        let number = taken.batch();
        let shard = match taken.wanted {
            BatchRequest::NextOf { shard, .. } => Some(shard as u32),
            BatchRequest::Samples(_) => None,
        };
        let failure = |position, after| shard.map(|shard| EndOfFailure { shard, position, after });
        let (end, bad, returned) = match outcome {
            Outcome::Batch { lease, encoded, held, position, bad, .. } => {
                let loan = self.coordinator.slots().lend(lease, encoded.len, held);
                let loan = loan.expect("the lease has not ended");
                let content = self.shared.memory.borrow_mut().lend(lease.slot);
                self.held.push(Held { slot: lease.slot, _loan: Box::new(loan) });
                // Some shards have snapshots.
                let has_snapshot = shard.is_some_and(|shard| shard % 2 == 1);
                let snapshot = has_snapshot.then(|| position.items.to_le_bytes().to_vec());
                (
                    ShardEnd { position, snapshot, ..ShardEnd::default() },
                    bad,
                    Returned::Batch(number, content),
                )
            }
            Outcome::AllSamplesBad { position, bad } => {
                (ShardEnd { position, ..ShardEnd::default() }, bad, Returned::Nothing(number))
            }
            Outcome::Failed { position, after, .. } => {
                let end = ShardEnd { position, snapshot: None, after };
                (end, Vec::new(), Returned::Failed(number, failure(position, after)))
            }
            Outcome::Lost(error) => {
                self.shared.log(|| format!("batch {number} is lost: {error}"));
                let after = AfterFailure::EndsForEpoch;
                let end = ShardEnd { after, ..ShardEnd::default() };
                (end, Vec::new(), Returned::Failed(number, failure(StreamPosition::default(), after)))
            }
        };
        self.coordinator.returned(taken, end, bad);
        let sent = self.coordinator.send_tasks(self.shared.now(), &mut self.workers);
        self.last_error = sent.err().filter(Error::ends_iteration);
        returned
    }

    /// Number of batches that the user holds.
    pub(super) fn held(&self) -> usize {
        self.held.len()
    }

    /// Drops one of the batches that the user holds.
    pub(super) fn drop_batch(&mut self, rng: &mut ChaCha8Rng) {
        if !self.held.is_empty() {
            let held = self.held.swap_remove(rng.random_range(0..self.held.len()));
            self.shared.memory.borrow_mut().take_back(held.slot);
        }
    }

    /// Sets the number of workers.
    pub(super) fn set_workers(&mut self, count: usize) {
        self.coordinator.set_workers(count, self.shared.now(), &mut self.workers);
    }

    /// Sets the number of batches that are loaded ahead for each worker.
    pub(super) fn set_prefetch_factor(&mut self, prefetch_factor: usize) {
        self.max_pending = self.max_pending.max(MAX_WORKERS * prefetch_factor);
        self.coordinator.set_prefetch_factor(prefetch_factor);
    }

    /// Begins the next epoch with the same workers. False if they cannot continue.
    pub(super) fn start_resuming(&mut self, epoch: u64) -> bool {
        if !self.coordinator.can_rest(&self.workers) {
            return false;
        }
        self.shared.count("epochs abandoned to persistent workers");
        self.coordinator.rest(&mut self.workers);
        self.since = self.shared.now();
        self.wake = self.since + RESUME_DEADLINE;
        self.coordinator.start_resuming(epoch, &mut self.workers).is_ok()
    }

    /// Does main's next step while it waits for the workers to resume. Returns whether all workers have
    /// resumed, or `None` while main waits.
    pub(super) fn act_resuming(&mut self) -> Option<bool> {
        if self.coordinator.not_resumed().is_none() {
            return Some(true);
        }
        if self.shared.now() >= self.since + RESUME_DEADLINE {
            return Some(false);
        }
        self.workers.look_for_exits();
        match self.receive() {
            Ok(_) => None,
            Err(Error::WorkerMisbehaved { worker, violation }) => {
                assert!(
                    self.workers.all[worker].is_liar,
                    "worker {worker} has sent no invalid event: {violation}"
                );
                Some(false)
            }
            Err(_) => Some(false),
        }
    }

    /// Begins an epoch with workers that have resumed.
    pub(super) fn begin_epoch(&mut self, supply: Supply, slots: &SlotPool, user: ThreadId) {
        self.earlier.push(self.coordinator.slots().clone());
        let now = self.shared.now();
        self.coordinator.begin_epoch(supply, slots, now, &mut self.workers);
        self.coordinator.slots().set_user(user);
        let sent = self.coordinator.send_tasks(now, &mut self.workers);
        self.last_error = sent.err().filter(Error::ends_iteration);
    }

    /// Drops the iterator: ends its workers, and gives back its leases. Returns the user's position.
    pub(super) fn shut_down(mut self) -> Position {
        let position = self.coordinator.position();
        self.workers.end_all();
        for (_, lease) in self.coordinator.take_leases() {
            self.coordinator.slots().release(lease, false);
        }
        for Held { slot, .. } in self.held.drain(..) {
            self.shared.memory.borrow_mut().take_back(slot);
        }
        position
    }

    /// Lets one worker take a step, or causes a fault.
    pub(super) fn step_workers(&mut self, faults: Faults) {
        self.workers.step(faults);
    }
}
