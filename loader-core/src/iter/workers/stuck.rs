//! Workers that do not go on: in one sample for longer than `sample_timeout`, or still for long outside of samples, as one is that was
//! stopped. They are killed, and replaced as those that died.
//!
//! Only while the user waits: who does not is not held up. Time counts as far as main has run: after Ctrl-Z and `fg` nobody is late.

use std::time::{Duration, Instant};

use loader_ipc::{
    control::{WorkerSnapshot, WorkerState},
    frame::{Failure, Stage},
};

use super::{WorkerIter, deaths::Cause};
use crate::{collate::Batch, error::Error, iter::rest::LIVENESS_INTERVAL, options::OnBadSample};

/// Collation and sending have no limit of their own: with `sample_timeout` they may take that long, or so long where it is shorter. So
/// may the end of a worker that says that it ends.
const LEAST_STILL: Duration = Duration::from_secs(5);

/// For how long a worker that has work may be stopped (SIGSTOP), whatever the options are: who stops one for a look at it needs a moment.
const MOST_STOPPED: Duration = Duration::from_secs(10);

/// Looks in the time that a sample may take at least: what happens between two of them is not seen.
const LOOKS: u32 = 4;
/// A look that is later than planned by more: main itself was not running.
const MOST_LATE: Duration = Duration::from_millis(250);

/// What main has seen of its workers while it waited.
#[derive(Debug, Default)]
pub(super) struct Looks {
    /// When the last one was, and how soon the next one was to follow; of this wait.
    last: Option<(Instant, Duration)>,
    /// For how long the user has waited.
    waited: Duration,
    /// By worker, what it was last seen in with work to do, and for how long.
    seen: Vec<Option<(Place, Duration)>>,
}

/// What a worker is in; one that works goes from one to the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Place {
    state: WorkerState,
    task: u64,
    sample: u64,
    batches: u64,
}

impl Looks {
    pub(super) fn new(workers: usize) -> Self {
        Self { seen: vec![None; workers], ..Self::default() }
    }

    /// The user begins to wait.
    pub(super) fn begin_wait(&mut self) {
        (self.last, self.waited) = (None, Duration::ZERO);
    }

    /// Begins a look; gives how much time has passed since the last one.
    fn begin(&mut self, now: Instant) -> Duration {
        let since = self.last.map_or(Duration::ZERO, |(last, planned)| {
            let since = now.duration_since(last);
            if since > planned + MOST_LATE { Duration::ZERO } else { since }
        });
        self.waited += since;
        since
    }

    /// Notes where a worker is, `since` the last look; gives for how long it has been there.
    fn note(&mut self, worker: usize, place: Place, since: Duration) -> Duration {
        let still = match self.seen[worker] {
            Some((last, still)) if last == place => still + since,
            _ => Duration::ZERO,
        };
        self.seen[worker] = Some((place, still));
        still
    }
}

impl<B: Batch> WorkerIter<B> {
    /// Ends workers that do not go on. Gives how long until it may be time for another look.
    pub(super) fn look_for_stuck(&mut self, now: Instant) -> Duration {
        let since = self.looks.begin(now);
        let latest = self
            .options
            .sample_timeout
            .map_or(LIVENESS_INTERVAL, |patience| LIVENESS_INTERVAL.min(patience / LOOKS));
        let mut soonest = latest;
        for worker in 0..self.options.workers {
            if !self.should_go_on(worker) {
                self.looks.seen[worker] = None;
                continue;
            }
            let snapshot = self.pool.snapshot(worker);
            let WorkerSnapshot { state, task, sample, batches, .. } = snapshot;
            let still = self.looks.note(worker, Place { state, task, sample, batches }, since);
            let left = match (self.options.sample_timeout, state) {
                _ if self.pool.has_said_bye(worker) => {
                    let left = LEAST_STILL.saturating_sub(still);
                    if left.is_zero() {
                        self.pool.kill(worker, true);
                    }
                    left
                }
                (Some(patience), WorkerState::Fetching | WorkerState::FetchingMany) => {
                    let left = patience.saturating_sub(snapshot.age.min(self.looks.waited));
                    if left.is_zero() {
                        self.end_late(worker, &snapshot);
                    }
                    left
                }
                // The dataset is being opened, for as long as it takes.
                (None, _) => latest,
                (_, WorkerState::Starting) if !self.pool.has_opened(worker) => latest,
                (Some(patience), _) => {
                    let left = patience.max(LEAST_STILL).saturating_sub(still);
                    if left.is_zero() {
                        self.end_still(worker, format!("had not moved for {still:?} (sample_timeout)"));
                    }
                    left
                }
            };
            soonest = soonest.min(left);
            // Under `Fail` the user wants no worker replaced, so none is killed that may go on.
            if still >= MOST_STOPPED && self.deaths.may_be_replaced() && self.pool.is_stopped(worker) {
                self.end_still(worker, format!("had been stopped for {still:?}"));
            }
        }
        // One that was just killed is no reason to look again at once.
        let next = if soonest.is_zero() { latest } else { soonest };
        self.looks.last = Some((now, next));
        next
    }

    /// True for a worker that has something to do and waits for nobody.
    fn should_go_on(&self, worker: usize) -> bool {
        let has_work = self.schedule.is_busy(worker) || self.hedges.is_busy(worker);
        let waits_for_slot = || self.requests.values().any(|request| request.worker == worker);
        // One that was killed has gone on enough.
        let is_killed = || self.deaths.is_expected(worker) && !self.pool.has_said_bye(worker);
        has_work && !self.pool.is_down(worker) && !is_killed() && !waits_for_slot()
    }

    /// Ends a worker that is on a sample for too long, if main wants what it is on.
    fn end_late(&mut self, worker: usize, snapshot: &WorkerSnapshot) {
        let task = snapshot.task;
        let cause = if self.hedges.task_of(worker) == Some(task) {
            Cause::Late
        } else if self.sent_mut(task).is_some_and(|sent| sent.worker == worker) {
            let sample = usize::try_from(snapshot.sample).ok();
            Cause::Stuck { task, sample: sample.filter(|_| snapshot.state == WorkerState::Fetching) }
        } else {
            return;
        };
        self.deaths.expect(worker, cause);
        self.pool.kill(worker, true);
    }

    fn end_still(&mut self, worker: usize, problem: String) {
        self.deaths.expect(worker, Cause::Still { problem });
        self.pool.kill(worker, true);
    }

    /// A worker was killed since it was on a sample for too long: that sample is bad.
    pub(super) fn take_stuck(
        &mut self,
        worker: usize,
        task: u64,
        sample: Option<usize>,
    ) -> Result<(), Error> {
        let patience = self.options.sample_timeout.unwrap_or_default();
        let reason = format!("it took longer than {patience:?} (sample_timeout)");
        if self.schedule.is_waiting(task) {
            if self.options.on_bad_sample == OnBadSample::Error || self.supply.has_shards() {
                let index = sample.map(|sample| sample as u64);
                let chain = vec![reason];
                let failure = Failure { stage: Stage::Fetch, index, chain, panicked: false, backtrace: None };
                let batch = self.supply.number_of(task);
                self.give_up(task, |_| Error::from_failure(failure, batch, Some(worker)))?;
            } else if let Some(sample) = sample {
                self.known_bad.insert(sample, reason);
            } else {
                self.one_by_one.insert(task);
            }
        }
        Ok(())
    }
}
