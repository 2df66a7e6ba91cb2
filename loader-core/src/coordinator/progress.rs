//! Kills workers that make no progress; they are replaced like workers that died. That is a worker that is in one sample for
//! longer than `sample_timeout`, that makes no progress outside of samples, or that cannot go on, for example because
//! SIGSTOP stopped it.
//!
//! Main looks only while it waits for a batch, and counts only time in which main itself has run: after Ctrl-Z and `fg` no
//! worker counts as late.

use std::time::{Duration, Instant};

use loader_ipc::{
    control::{WorkerSnapshot, WorkerState},
    frame::{Failure, Stage},
    process::Halt,
};

use super::{Coordinator, crew::Crew, deaths::Cause, wait::LIVENESS_INTERVAL};
use crate::{error::Error, options::OnBadSample};

/// Minimum time that a worker may spend in collation, in sending, or in ending after it has said that it ends. With a longer
/// `sample_timeout` it may take that long.
const MIN_STILL: Duration = Duration::from_secs(5);

/// Maximum time for which a worker that has work may be unable to go on (stopped by SIGSTOP or by a debugger, or
/// without its main thread), with any options but `OnWorkerDeath::Fail`. It leaves a person who stops a worker a moment to
/// look at it.
const MAX_HALTED: Duration = Duration::from_secs(10);

/// Number of looks in the time that a sample may take.
const LOOKS: u32 = 4;
/// Minimum time between two looks.
const MIN_PAUSE: Duration = Duration::from_millis(1);
/// A look that is later than planned by more than this shows that main itself was not running.
const MAX_LATE: Duration = Duration::from_millis(250);

/// What main has seen of its workers while it waited for batches.
#[derive(Debug, Default)]
pub(super) struct Looks {
    /// Time that main has waited in total, from the first look of each wait to its end.
    clock: Duration,
    /// When the last look of this wait was, and how soon the next one was planned.
    last: Option<(Instant, Duration)>,
    /// By worker; `None` for a worker without work.
    seen: Vec<Option<Seen>>,
}

#[derive(Debug, Clone, Copy)]
struct Seen {
    look: Look,
    /// When main first saw it like this, by `clock`.
    since: Duration,
    /// Since when, by `clock`, each look has found the worker halted, and in the same state.
    halted: Option<(Duration, Halt)>,
}

/// What a worker does. It changes whenever the worker makes progress.
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

    /// Notes that main starts to wait. Time between two waits does not count.
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

    /// Forgets what was seen of a worker: it had nothing to do, or is another process now.
    pub(super) fn forget(&mut self, worker: usize) {
        self.seen[worker] = None;
    }

    fn advance(&mut self, now: Instant) {
        if let Some((last, planned)) = self.last {
            let since = now.saturating_duration_since(last);
            self.clock += if since > planned + MAX_LATE { Duration::ZERO } else { since };
        }
    }

    /// Notes what a worker does, and returns for how long it has done that.
    fn note(&mut self, worker: usize, look: Look) -> Duration {
        let new = Seen { look, since: self.clock, halted: None };
        let seen = self.seen[worker].filter(|seen| seen.look == look).unwrap_or(new);
        self.seen[worker] = Some(seen);
        self.clock - seen.since
    }

    /// Notes whether a worker is halted, and returns for how long it has been. A worker that has used
    /// processor time since the last look has gone on in between, for example under a program that stops and
    /// continues it to slow it down.
    fn note_halt(&mut self, worker: usize, halt: Option<Halt>) -> Duration {
        let Some(seen) = &mut self.seen[worker] else { return Duration::ZERO };
        let before = seen.halted.filter(|&(_, before)| Some(before) == halt);
        seen.halted = before.or_else(|| Some((self.clock, halt?)));
        seen.halted.map_or(Duration::ZERO, |(since, _)| self.clock - since)
    }
}

impl Coordinator {
    /// Kills workers that make no progress. Returns the time until the next look.
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

    /// True for a worker that has work and does not wait for main.
    fn should_go_on(&self, worker: usize, crew: &impl Crew) -> bool {
        let has_work = self.has_task_with_slot(worker) || self.attempts.is_busy(worker);
        // A worker that main has killed is not expected to go on.
        let is_killed = || self.deaths.is_expected(worker) && !self.roster.has_said_bye(worker);
        has_work && !crew.is_down(worker) && !is_killed() && !self.leasing.is_blocked(worker)
    }

    fn look_at(&mut self, worker: usize, crew: &mut impl Crew) {
        let snapshot = crew.snapshot(worker);
        let WorkerSnapshot { state, task, sample, batches, .. } = snapshot;
        // The same sample may come again and again: its age begins anew each time.
        let still = self.looks.note(worker, Look { state, task, sample, batches }).min(snapshot.age);
        if self.roster.has_said_bye(worker) {
            if still >= MIN_STILL {
                crew.kill(worker, true);
            }
            return;
        }
        // The dataset may take as long as it needs to be opened.
        let is_opening = state == WorkerState::Starting && !self.roster.has_opened(worker);
        if let Some(patience) = self.options.sample_timeout
            && !is_opening
        {
            let is_in_sample = matches!(state, WorkerState::Fetching | WorkerState::FetchingMany);
            if is_in_sample && still >= patience && self.end_late(worker, &snapshot, crew) {
                return;
            }
            if still >= patience.max(MIN_STILL) {
                let problem = format!("had not moved for {still:.1?} (sample_timeout)");
                return self.end_still(worker, task, problem, crew);
            }
        }
        // Not at each look, since it reads files of the process. Under `Fail` no worker is replaced, and without
        // `sample_timeout` no worker is ended that may go on.
        if still >= LIVENESS_INTERVAL && self.deaths.are_replaced() {
            let halt = crew.halt(worker);
            let halted = self.looks.note_halt(worker, halt);
            if let Some(halt) = halt
                && halted >= MAX_HALTED
            {
                self.end_still(worker, task, format!("{halt} for {halted:.1?}"), crew);
            }
        }
    }

    /// Kills a worker that is on a sample for too long. False if the sample is of a task that it was not given.
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

    fn end_still(&mut self, worker: usize, task: u64, problem: String, crew: &mut impl Crew) {
        let is_attempt = self.attempts.task_of(worker) == Some(task);
        self.deaths.expect(worker, if is_attempt { Cause::Late } else { Cause::Still { problem } });
        crew.kill(worker, true);
    }

    /// Handles the end of a worker that was killed because it was on a sample for too long: that sample is bad.
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

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn look(sample: u64) -> Look {
        Look { state: WorkerState::Fetching, task: 1, sample, batches: 1 }
    }

    /// Looks at a worker each second, `seconds` times; gives for how long it is still.
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
