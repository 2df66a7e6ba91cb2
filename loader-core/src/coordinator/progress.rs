//! Kills workers that make no progress; they are replaced like workers that died. These are workers that
//! spend longer than `sample_timeout` on one sample, that make no progress outside of samples, or that cannot
//! continue, for example because SIGSTOP stopped them.
//!
//! Main checks workers only while it waits for a batch, and counts only time in which main itself has run:
//! after Ctrl-Z and `fg` no worker counts as late.

use std::time::{Duration, Instant};

use loader_ipc::{
    control::{WorkerSnapshot, WorkerState},
    frame::{Failure, Stage},
    process::Halt,
};

use super::{Coordinator, crew::Crew, deaths::Cause, wait::LIVENESS_INTERVAL};
use crate::{error::Error, exit::ExitCause, options::OnBadSample};

/// With `sample_timeout`, time without progress outside of samples (in collation or sending) after which main
/// kills a worker; a longer `sample_timeout` replaces it. Also the time that a worker may take to end after
/// it has reported that it ends.
const MIN_STILL: Duration = Duration::from_secs(5);

/// Maximum time for which a worker that has work may be unable to continue, because SIGSTOP or a debugger
/// stopped it or because its main thread has ended. It does not apply with `OnWorkerDeath::Fail`. It leaves a
/// person who stops a worker some time to inspect it.
const MAX_HALTED: Duration = Duration::from_secs(10);

/// Number of checks within `sample_timeout`.
const LOOKS: u32 = 4;
/// Minimum time between two checks.
const MIN_PAUSE: Duration = Duration::from_millis(1);
/// Maximum delay of a check. A longer delay shows that main itself was not running.
const MAX_LATE: Duration = Duration::from_millis(250);

/// What main has seen of its workers in its checks while it waited for batches.
#[derive(Debug, Default)]
pub(super) struct Looks {
    /// Total time that main has waited for batches, in each wait from the first check to the end.
    clock: Duration,
    /// The time of the last check in this wait, and the planned pause until the next one.
    last: Option<(Instant, Duration)>,
    /// What main has seen, by worker; `None` for a worker without work.
    seen: Vec<Option<Seen>>,
}

#[derive(Debug, Clone, Copy)]
struct Seen {
    look: Look,
    /// Value of `clock` when main first saw the worker like this.
    since: Duration,
    /// Value of `clock` since which every check has found the worker halted in the same way.
    halted: Option<(Duration, Halt)>,
}

/// What a worker is doing. It changes whenever the worker makes progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Look {
    state: WorkerState,
    task: u64,
    sample: u64,
    batches: u64,
}

impl Looks {
    pub(super) fn new(workers: usize) -> Self {
        Self { seen: vec![None; workers], ..Self::default() }
    }

    /// Adds a worker.
    pub(super) fn add(&mut self) {
        self.seen.push(None);
    }

    /// Notes that main starts to wait for a batch. Time between two waits does not count.
    pub(super) fn start_wait(&mut self) {
        self.last = None;
    }

    /// Notes that main stops waiting.
    pub(super) fn end_wait(&mut self, now: Instant) {
        if self.last.is_some() {
            self.advance(now);
            self.last = None;
        }
    }

    /// Forgets what was seen of a worker, because it has no work or another process has replaced it.
    pub(super) fn forget(&mut self, worker: usize) {
        self.seen[worker] = None;
    }

    fn advance(&mut self, now: Instant) {
        if let Some((last, planned)) = self.last {
            let since = now.saturating_duration_since(last);
            self.clock += if since > planned + MAX_LATE { Duration::ZERO } else { since };
        }
    }

    /// Notes what a worker is doing, and returns for how long it has been doing that.
    fn note(&mut self, worker: usize, look: Look) -> Duration {
        let new = Seen { look, since: self.clock, halted: None };
        let seen = self.seen[worker].filter(|seen| seen.look == look).unwrap_or(new);
        self.seen[worker] = Some(seen);
        self.clock - seen.since
    }

    /// Notes whether a worker is halted, and returns for how long it has been. A worker that has used
    /// processor time since the last check has run in between, for example because a program stops and
    /// continues it to slow it down; its time then starts again from zero.
    fn note_halt(&mut self, worker: usize, halt: Option<Halt>) -> Duration {
        let Some(seen) = &mut self.seen[worker] else { return Duration::ZERO };
        let before = seen.halted.filter(|&(_, before)| Some(before) == halt);
        seen.halted = before.or_else(|| Some((self.clock, halt?)));
        seen.halted.map_or(Duration::ZERO, |(since, _)| self.clock - since)
    }
}

impl Coordinator {
    /// Kills workers that make no progress. Returns the time until the next check.
    pub(super) fn look_for_stuck(&mut self, crew: &mut impl Crew) -> Duration {
        self.looks.advance(self.now);
        let pause = self
            .options
            .sample_timeout
            .map_or(LIVENESS_INTERVAL, |patience| (patience / LOOKS).clamp(MIN_PAUSE, LIVENESS_INTERVAL));
        for worker in 0..self.roster.len() {
            match self.should_go_on(worker, crew) {
                true => self.look_at(worker, crew),
                false => self.looks.forget(worker),
            }
        }
        self.looks.last = Some((self.now, pause));
        pause
    }

    /// True if the worker has work and does not wait for main.
    fn should_go_on(&self, worker: usize, crew: &impl Crew) -> bool {
        let has_work = self.has_task_with_slot(worker) || self.attempts.is_busy(worker);
        // A worker that main has killed is not expected to continue.
        let is_killed = || self.deaths.is_expected(worker) && !self.roster.has_said_bye(worker);
        has_work && !crew.is_down(worker) && !is_killed() && !self.leasing.is_blocked(worker)
    }

    fn look_at(&mut self, worker: usize, crew: &mut impl Crew) {
        let snapshot = crew.snapshot(worker);
        let WorkerSnapshot { state, task, sample, batches, .. } = snapshot;
        // The worker may load the same sample several times; the snapshot's age starts again each time.
        let still = self.looks.note(worker, Look { state, task, sample, batches }).min(snapshot.age);
        if self.roster.has_said_bye(worker) {
            if still >= MIN_STILL {
                crew.kill(worker, true);
            }
            return;
        }
        // Opening the dataset may take any time.
        let is_opening = state == WorkerState::Starting && !self.roster.has_opened(worker);
        if let Some(patience) = self.options.sample_timeout
            && !is_opening
        {
            let is_in_sample = matches!(state, WorkerState::Fetching | WorkerState::FetchingMany);
            if is_in_sample && still >= patience && self.end_late(worker, &snapshot, crew) {
                return;
            }
            if still >= patience.max(MIN_STILL) {
                return self.end_still(worker, task, ExitCause::NoProgress { elapsed: still }, crew);
            }
        }
        // Only for workers that have been still for a while, because `halt` reads files of the process, and
        // not under `Fail`, because workers are not replaced then. Without `sample_timeout`, main kills only
        // workers that cannot continue by themselves.
        if still >= LIVENESS_INTERVAL && self.deaths.are_replaced() {
            let halt = crew.halt(worker);
            let halted = self.looks.note_halt(worker, halt);
            if let Some(halt) = halt
                && halted >= MAX_HALTED
            {
                self.end_still(worker, task, cause_of(halt, halted), crew);
            }
        }
    }

    /// Kills a worker that has been on a sample for too long. Returns false if the sample belongs to a task
    /// that the worker was not given.
    fn end_late(&mut self, worker: usize, snapshot: &WorkerSnapshot, crew: &mut impl Crew) -> bool {
        let task = snapshot.task;
        let cause = if self.attempts.task_of(worker) == Some(task) {
            Cause::Late
        } else if self.schedule.worker_of(task) == Some(worker) {
            let sample = usize::try_from(snapshot.sample).ok();
            Cause::Stuck { task, sample: sample.filter(|_| snapshot.state == WorkerState::Fetching) }
        } else {
            return false;
        };
        self.deaths.expect(worker, cause);
        crew.kill(worker, true);
        true
    }

    fn end_still(&mut self, worker: usize, task: u64, cause: ExitCause, crew: &mut impl Crew) {
        let is_attempt = self.attempts.task_of(worker) == Some(task);
        self.deaths.expect(worker, if is_attempt { Cause::Late } else { Cause::Still(cause) });
        crew.kill(worker, true);
    }

    /// Handles the end of a worker that was killed because it was on a sample for too long: notes the sample
    /// as bad, or gives up its task if bad samples are errors. If the worker was loading several samples at
    /// once and bad samples are skipped or replaced, the next worker loads them one by one.
    pub(super) fn take_stuck(
        &mut self,
        worker: usize,
        task: u64,
        sample: Option<usize>,
        crew: &mut impl Crew,
    ) -> Result<(), Error> {
        if !self.schedule.is_waiting(task) {
            return Ok(());
        }
        let patience = self.options.sample_timeout.unwrap_or_default();
        let reason = format!("it took longer than {patience:?} (sample_timeout)");
        let is_by_sample = self.options.on_bad_sample != OnBadSample::Error && !self.supply.has_shards();
        let is_noted = match sample {
            Some(sample) if is_by_sample => self.note_bad(task, sample, reason.clone()),
            _ => is_by_sample,
        };
        if !is_noted {
            let index = sample.map(|sample| sample as u64);
            let failure =
                Failure { stage: Stage::Fetch, index, chain: vec![reason], panicked: false, backtrace: None };
            let batch = self.supply.number_of(task);
            return self.give_up(task, |_| Error::from_failure(failure, batch, Some(worker)), crew);
        }
        if sample.is_none() {
            self.known_bad.load_one_by_one(task);
        }
        Ok(())
    }
}

/// Returns why main kills a worker that has been halted for `elapsed`.
fn cause_of(halt: Halt, elapsed: Duration) -> ExitCause {
    match halt {
        Halt::Stopped { .. } => ExitCause::Stopped { elapsed },
        Halt::Traced { .. } => ExitCause::Traced { elapsed },
        Halt::MainThreadEnded => ExitCause::MainThreadEnded { elapsed },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn look(sample: u64) -> Look {
        Look { state: WorkerState::Fetching, task: 1, sample, batches: 1 }
    }

    /// Checks a worker each second, `seconds` times. Returns for how long it has made no progress.
    fn watch(looks: &mut Looks, now: &mut Instant, seconds: u32, sample: u64) -> Duration {
        let mut still = Duration::ZERO;
        for _ in 0..seconds {
            looks.advance(*now);
            still = looks.note(0, look(sample));
            looks.last = Some((*now, SECOND));
            *now += SECOND;
        }
        still
    }

    #[test]
    fn one_that_moves_is_not_still() {
        let (mut looks, mut now) = (Looks::new(1), Instant::now());
        assert_eq!(watch(&mut looks, &mut now, 4, 0), 3 * SECOND);
        assert_eq!(watch(&mut looks, &mut now, 1, 1), Duration::ZERO);
        assert_eq!(watch(&mut looks, &mut now, 2, 1), 2 * SECOND);
        looks.forget(0);
        assert_eq!(watch(&mut looks, &mut now, 2, 1), SECOND);
    }

    #[test]
    fn time_does_not_count_in_which_main_was_stopped_or_nobody_waited() {
        let (mut looks, mut now) = (Looks::new(1), Instant::now());
        assert_eq!(watch(&mut looks, &mut now, 3, 0), 2 * SECOND);
        now += 100 * SECOND;
        assert_eq!(watch(&mut looks, &mut now, 1, 0), 2 * SECOND, "stopped");
        looks.advance(now);
        looks.last = None;
        now += 100 * SECOND;
        assert_eq!(watch(&mut looks, &mut now, 3, 0), 5 * SECOND, "another wait");
    }

    #[test]
    fn only_one_that_stays_stopped_is_stopped() {
        let (mut looks, mut now) = (Looks::new(1), Instant::now());
        let mut see = |looks: &mut Looks, ticks: Option<u64>| {
            watch(looks, &mut now, 1, 0);
            looks.note_halt(0, ticks.map(|ticks| Halt::Stopped { ticks }))
        };
        assert_eq!(see(&mut looks, Some(7)), Duration::ZERO);
        assert_eq!(see(&mut looks, Some(7)), SECOND);
        assert_eq!(see(&mut looks, None), Duration::ZERO);
        assert_eq!(see(&mut looks, Some(7)), Duration::ZERO);
        assert_eq!(see(&mut looks, Some(7)), SECOND);
        assert_eq!(see(&mut looks, Some(8)), Duration::ZERO, "it has gone on");
    }
}
