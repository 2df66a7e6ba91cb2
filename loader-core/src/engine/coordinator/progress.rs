//! Kills workers that make no progress; main replaces them like workers that died. A worker makes no progress
//! if it spends longer than `sample_timeout` on one sample, if it stays in the same step outside of samples,
//! or if it cannot continue, for example because SIGSTOP stopped it.
//!
//! Main checks workers only while it waits for a batch, and counts only the time in which main itself has
//! run. So no worker counts as late after Ctrl-Z and `fg`.

use std::time::{Duration, Instant};

use loader_ipc::{
    control::{WorkerSnapshot, WorkerState},
    frame::{Failure, Stage},
    patience::{MAX_DELAY, MAX_HALTED},
    process::{Halt, HaltWatch},
};

use super::{Coordinator, crew::Crew, deaths::Cause, wait::LIVENESS_INTERVAL};
use crate::{
    error::{Error, exit::ExitCause},
    options::OnBadSample,
};

/// With `sample_timeout`, the time without progress outside of samples (in collation or sending) after which
/// main kills a worker, unless `sample_timeout` is longer. Also the maximum time between a worker's report
/// that it ends and the end of its process.
const NO_PROGRESS_TIMEOUT: Duration = Duration::from_secs(5);

/// Number of checks within `sample_timeout`.
const CHECKS: u32 = 4;
/// Minimum time between two checks.
const MIN_CHECK_INTERVAL: Duration = Duration::from_millis(1);

/// Counts the time in which main waits for batches and runs.
#[derive(Debug, Default)]
pub(super) struct CheckClock {
    /// Total time that main has waited for batches. Each wait counts from its first check.
    time: Duration,
    /// The time of the last check in this wait, and the planned pause until the next check.
    last_check: Option<(Instant, Duration)>,
}

/// What main has observed of a worker while it waited for batches.
#[derive(Debug, Clone, Copy)]
pub(super) struct Observation {
    step: Step,
    /// Time of the clock at the first check that found the worker in this step.
    since: Duration,
    /// Whether the checks have found the worker halted.
    halted: HaltWatch,
}

/// What a worker is doing. The value changes whenever the worker makes progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Step {
    state: WorkerState,
    task: u64,
    sample: u64,
    batches: u64,
}

impl CheckClock {
    /// Notes that main starts to wait for a batch. Time between two waits does not count.
    pub(super) fn start_wait(&mut self) {
        self.last_check = None;
    }

    /// Notes that main stops waiting.
    pub(super) fn end_wait(&mut self, now: Instant) {
        if self.last_check.is_some() {
            self.advance(now);
            self.last_check = None;
        }
    }

    /// Continues after a pause of the wait, which does not count.
    pub(super) fn go_on(&mut self, pause: Duration) {
        self.last_check = self.last_check.map(|(last, planned)| (last + pause, planned));
    }

    /// Adds the time since the last check, unless the check comes so late that main was stopped.
    fn advance(&mut self, now: Instant) {
        if let Some((last, planned)) = self.last_check {
            let elapsed = now.saturating_duration_since(last);
            if elapsed <= planned + MAX_DELAY {
                self.time += elapsed;
            }
        }
    }
}

impl Observation {
    /// Observes at `time` that a worker is in `step`, after the observation `before`.
    fn next(before: Option<Self>, step: Step, time: Duration) -> Self {
        let new = Self { step, since: time, halted: HaltWatch::default() };
        before.filter(|before| before.step == step).unwrap_or(new)
    }
}

impl Coordinator {
    /// Kills workers that make no progress. Returns the time until the next check.
    pub(super) fn check_progress(&mut self, crew: &mut impl Crew) -> Duration {
        self.check_clock.advance(self.now);
        let pause = self.options.sample_timeout.map_or(LIVENESS_INTERVAL, |patience| {
            (patience / CHECKS).clamp(MIN_CHECK_INTERVAL, LIVENESS_INTERVAL)
        });
        for worker in 0..self.roster.len() {
            if self.must_progress(worker, crew) {
                self.check_worker(worker, crew)
            } else {
                self.roster[worker].observation = None
            }
        }
        self.check_clock.last_check = Some((self.now, pause));
        pause
    }

    /// True if the worker has work and does not wait for main.
    fn must_progress(&self, worker: usize, crew: &impl Crew) -> bool {
        let has_work = self.has_task_with_slot(worker) || self.attempts.is_busy(worker);
        // A worker that main has killed is not expected to continue.
        let is_killed =
            || self.roster[worker].death_record.is_expected() && !self.roster.has_sent_bye(worker);
        has_work && !crew.is_down(worker) && !is_killed() && !self.leasing.is_blocked(worker)
    }

    fn check_worker(&mut self, worker: usize, crew: &mut impl Crew) {
        let snapshot = crew.snapshot(worker);
        let WorkerSnapshot { state, task, sample, batches, .. } = snapshot;
        // The worker may load the same sample several times; the snapshot's age starts again each time.
        let (time, before) = (self.check_clock.time, self.roster[worker].observation);
        let observation = Observation::next(before, Step { state, task, sample, batches }, time);
        self.roster[worker].observation = Some(observation);
        let elapsed = (time - observation.since).min(snapshot.age);
        if self.roster.has_sent_bye(worker) {
            if elapsed >= NO_PROGRESS_TIMEOUT {
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
            if is_in_sample && elapsed >= patience && self.kill_late(worker, &snapshot, crew) {
                return;
            }
            if elapsed >= patience.max(NO_PROGRESS_TIMEOUT) {
                return self.kill_without_progress(worker, task, ExitCause::NoProgress { elapsed }, crew);
            }
        }
        // Main checks for halts only in workers without progress for a while, because `halt` reads files of
        // the process. With `OnWorkerDeath::Fail` main waits for a halted worker, because it does not replace workers, but
        // not for one that executes another program, which counts as dead.
        // Without `sample_timeout`, main kills only workers that cannot continue by themselves.
        if elapsed >= LIVENESS_INTERVAL {
            let halt = crew.halt(worker);
            let observation = self.roster[worker].observation.as_mut();
            let halted =
                observation.map_or(Duration::ZERO, |observation| observation.halted.note(time, halt));
            let is_lost = match halt {
                // A process that ends has closed its descriptors shortly before main hears of its end, so main looks twice.
                Some(Halt::LifelineClosed) => !halted.is_zero(),
                _ => halted >= MAX_HALTED && self.deaths.are_replaced(),
            };
            if let Some(halt) = halt.filter(|_| is_lost) {
                self.kill_without_progress(worker, task, cause_of(halt, halted), crew);
            }
        }
    }

    /// Kills a worker that has been on a sample for too long. Returns false if the sample belongs to a task
    /// that the worker was not given.
    fn kill_late(&mut self, worker: usize, snapshot: &WorkerSnapshot, crew: &mut impl Crew) -> bool {
        let task = snapshot.task;
        let cause = if self.attempts.task_of(worker) == Some(task) {
            Cause::LateAttempt
        } else if self.schedule.worker_of(task) == Some(worker) {
            let sample = usize::try_from(snapshot.sample).ok();
            Cause::Stuck { task, sample: sample.filter(|_| snapshot.state == WorkerState::Fetching) }
        } else {
            return false;
        };
        self.roster[worker].death_record.expect(cause);
        crew.kill(worker, true);
        true
    }

    /// Kills a worker that has made no progress on `task` for too long, or that is halted.
    fn kill_without_progress(&mut self, worker: usize, task: u64, cause: ExitCause, crew: &mut impl Crew) {
        let is_attempt = self.attempts.task_of(worker) == Some(task);
        let cause = if is_attempt { Cause::LateAttempt } else { Cause::NoProgress(cause) };
        self.roster[worker].death_record.expect(cause);
        crew.kill(worker, true);
    }

    /// Handles the end of a worker that was killed because it was on a sample for too long: notes the sample
    /// as bad, or gives up its task if bad samples are errors. If the worker was loading several samples at
    /// once and bad samples are skipped or replaced, the next worker loads them one by one.
    pub(super) fn handle_stuck(
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
        let tolerates_bad =
            self.options.fetch.on_bad_sample != OnBadSample::Error && !self.supply.has_shards();
        let is_tolerated = match sample {
            Some(sample) if tolerates_bad => self.note_bad(task, sample, reason.clone()),
            _ => tolerates_bad,
        };
        if !is_tolerated {
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
        Halt::LifelineClosed => ExitCause::LifelineClosed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// The checks of one worker, and the time of the next check.
    struct Checks {
        clock: CheckClock,
        worker: Option<Observation>,
        now: Instant,
    }

    impl Checks {
        fn begin() -> Self {
            Self { clock: CheckClock::default(), worker: None, now: Instant::now() }
        }

        /// Checks the worker each second, `seconds` times. Returns for how long it has made no progress.
        fn watch(&mut self, seconds: u32, sample: u64) -> Duration {
            let step = Step { state: WorkerState::Fetching, task: 1, sample, batches: 1 };
            let mut elapsed = Duration::ZERO;
            for _ in 0..seconds {
                self.clock.advance(self.now);
                let observation = Observation::next(self.worker, step, self.clock.time);
                self.worker = Some(observation);
                elapsed = self.clock.time - observation.since;
                self.clock.last_check = Some((self.now, SECOND));
                self.now += SECOND;
            }
            elapsed
        }
    }

    #[test]
    fn progress_restarts_the_time_of_a_worker() {
        let mut checks = Checks::begin();
        assert_eq!(checks.watch(4, 0), 3 * SECOND);
        assert_eq!(checks.watch(1, 1), Duration::ZERO);
        assert_eq!(checks.watch(2, 1), 2 * SECOND);
        checks.worker = None;
        assert_eq!(checks.watch(2, 1), SECOND);
    }

    #[test]
    fn only_time_in_which_main_runs_and_waits_counts() {
        let mut checks = Checks::begin();
        assert_eq!(checks.watch(3, 0), 2 * SECOND);
        checks.now += 100 * SECOND;
        assert_eq!(checks.watch(1, 0), 2 * SECOND, "main was stopped");
        checks.clock.end_wait(checks.now);
        checks.now += 100 * SECOND;
        assert_eq!(checks.watch(3, 0), 5 * SECOND, "another wait");
    }

    #[test]
    fn a_stopped_worker_that_has_run_meanwhile_starts_again_from_zero() {
        let mut checks = Checks::begin();
        let mut check = |ticks: Option<u64>| {
            checks.watch(1, 0);
            let observation = checks.worker.as_mut().unwrap();
            observation.halted.note(checks.clock.time, ticks.map(|ticks| Halt::Stopped { ticks }))
        };
        assert_eq!(check(Some(7)), Duration::ZERO);
        assert_eq!(check(Some(7)), SECOND);
        assert_eq!(check(None), Duration::ZERO);
        assert_eq!(check(Some(7)), Duration::ZERO);
        assert_eq!(check(Some(7)), SECOND);
        assert_eq!(check(Some(8)), Duration::ZERO, "the worker has used processor time");
    }
}
