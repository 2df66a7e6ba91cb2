//! What main does while it waits for the user's next batch.

use std::time::{Duration, Instant};

use super::{Coordinator, crew::Crew};
use crate::{
    error::{Error, exit::WorkerActivity},
    report::warning::Warning,
};

/// Maximum time between two checks of the workers, in case the reaper misses an exit.
pub(super) const LIVENESS_INTERVAL: Duration = Duration::from_secs(1);

/// How long main waits for a batch before it moves tasks from busy workers to idle ones. A shorter wait is
/// not worth it.
const MOVE_AFTER: Duration = Duration::from_millis(1);

/// Maximum part of a wait that does not count towards `timeout`, because the awaited worker opens the dataset.
pub(crate) const MAX_OPENING: Duration = Duration::from_secs(30);

/// Interval at which main checks whether other iterators have returned slots. No report tells this iterator.
const STARVED_INTERVAL: Duration = Duration::from_millis(2);

/// The times of one wait.
#[derive(Debug, Default)]
pub(super) struct Wait {
    since: Option<Instant>,
    /// True once main was told to receive a report. It does so at least once, however soon the deadline is.
    has_received: bool,
    deadline: Option<Instant>,
    /// True if the awaited worker had not opened the dataset when main looked last, and the deadline moves with it.
    is_opening: bool,
    warn_at: Option<Instant>,
    move_at: Option<Instant>,
    check_at: Option<Instant>,
    /// Since when the program does not wait, although the batch has not arrived.
    paused_at: Option<Instant>,
}

impl Wait {
    /// Continues a wait that was paused, and returns for how long: the pause does not count. `None` if it was not.
    fn go_on(&mut self, now: Instant) -> Option<Duration> {
        let pause = now.saturating_duration_since(self.paused_at.take()?);
        let Self { since, deadline, warn_at, move_at, check_at, .. } = self;
        for time in [since, deadline, warn_at, move_at, check_at] {
            *time = time.and_then(|time| time.checked_add(pause));
        }
        Some(pause)
    }
}

/// What to do next in a wait.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// The user's next batch has arrived.
    Return,
    /// The epoch is over.
    End,
    /// Receive a report. If none arrives before `until` and `then_check_exits` is true, check which workers
    /// have ended.
    Receive { until: Instant, then_check_exits: bool },
}

impl Coordinator {
    /// Begins to wait for the user's next batch, or continues a wait that was paused.
    pub(crate) fn start_wait(&mut self, now: Instant) {
        self.now = now;
        if let Some(pause) = self.wait.go_on(now) {
            return self.check_clock.go_on(pause);
        }
        self.check_clock.start_wait();
        // A time beyond what the clock can hold never comes.
        let after = |time: Option<Duration>| time.and_then(|time| now.checked_add(time));
        // A wait this short ends before its first check would be due. Main checks the workers at its start,
        // because otherwise main would never notice a stuck worker.
        let ends_before_check = self.options.timeout.is_some_and(|timeout| timeout <= MOVE_AFTER);
        self.wait = Wait {
            since: Some(now),
            has_received: false,
            deadline: after(self.options.timeout),
            is_opening: false,
            warn_at: after(self.options.warn_after),
            move_at: ends_before_check.then_some(now),
            check_at: None,
            paused_at: None,
        };
    }

    /// Pauses a wait before the batch has arrived.
    pub(crate) fn pause_wait(&mut self, now: Instant) {
        self.wait.paused_at = Some(now);
    }

    /// Does what is due, and returns what to do next. Kills a worker that broke the protocol.
    pub(crate) fn poll(&mut self, now: Instant, crew: &mut impl Crew) -> Result<Next, Error> {
        self.now = now;
        loop {
            match self.do_due(crew) {
                Ok(next @ Next::Receive { .. }) => return Ok(next),
                Ok(next) => {
                    self.check_clock.end_wait(now);
                    return Ok(next);
                }
                Err(error) => {
                    self.check_clock.end_wait(now);
                    self.survive(error, crew)?;
                }
            }
        }
    }

    fn do_due(&mut self, crew: &mut impl Crew) -> Result<Next, Error> {
        if !self.fill(crew)? {
            return Ok(Next::End);
        }
        if self.schedule.is_ready() {
            return Ok(Next::Return);
        }
        let now = self.now;
        self.wait_for_opening();
        let is_late = self.wait.deadline.is_some_and(|deadline| now >= deadline);
        if is_late && std::mem::replace(&mut self.wait.has_received, true) {
            return Err(self.timed_out(crew));
        }
        self.wait.has_received = true;
        self.offer_warm_slots(crew)?;
        let move_at = *self.wait.move_at.get_or_insert(now + MOVE_AFTER);
        let is_early = now < move_at;
        if now >= self.wait.check_at.unwrap_or(move_at) {
            self.wait.check_at = Some(now + self.check_progress(crew));
        }
        let late_at = if is_early { None } else { self.move_or_hedge(crew)? };
        if self.wait.warn_at.is_some_and(|warn_at| now >= warn_at) {
            self.wait.warn_at = None;
            let after = self.options.warn_after.unwrap_or_default();
            crew.warn(&Warning::LongWait { after, waiting_for: self.awaited(crew) });
        }
        let next_check = if is_early { move_at } else { now + LIVENESS_INTERVAL };
        let starved_at = self.leasing.is_starved().then(|| now + STARVED_INTERVAL);
        let Wait { deadline, warn_at, check_at, .. } = self.wait;
        let due = [starved_at, late_at, check_at, warn_at, deadline];
        let until = due.into_iter().flatten().fold(next_check, Instant::min);
        Ok(Next::Receive { until, then_check_exits: !is_early })
    }

    /// Begins the `timeout` again if the awaited worker has not opened the dataset, for which it may have to load
    /// libraries, and once more when it has opened it.
    fn wait_for_opening(&mut self) {
        let Some(worker) = self.schedule.awaited_worker() else { return };
        let waited = self.wait.since.map(|since| self.now.saturating_duration_since(since));
        let is_opening = !self.roster.has_opened(worker) && waited.is_some_and(|waited| waited < MAX_OPENING);
        // Main may have slept since it last saw that the worker was opening the dataset.
        let was_opening = std::mem::replace(&mut self.wait.is_opening, is_opening);
        if is_opening || was_opening {
            self.wait.deadline = self.options.timeout.and_then(|timeout| self.now.checked_add(timeout));
        }
    }

    /// Gives slots to tasks that wait for one, and sends tasks if none is on its way. False if the epoch is
    /// over.
    fn fill(&mut self, crew: &mut impl Crew) -> Result<bool, Error> {
        if self.schedule.is_ready() {
            return Ok(true);
        }
        self.give_slots(true, crew)?;
        if self.schedule.is_ready() || !self.schedule.is_empty() {
            return Ok(true);
        }
        // Either the epoch is over, or memory has had no room for a single slot.
        self.dispatch(crew)?;
        // Without open lanes no task is left to wait for memory.
        Ok(!self.schedule.is_empty() || (self.leasing.is_starved() && !self.schedule.is_closed()))
    }

    /// Moves tasks to idle workers, and hedges the user's next batch once it is late. Returns when it will be
    /// late.
    fn move_or_hedge(&mut self, crew: &mut impl Crew) -> Result<Option<Instant>, Error> {
        self.move_tasks(crew)?;
        let patience = self.late_after(crew);
        let late_at = patience.zip(self.wait.since).and_then(|(patience, since)| since.checked_add(patience));
        if late_at.is_some_and(|late_at| self.now >= late_at) {
            self.hedge(crew)?;
            return Ok(None);
        }
        Ok(late_at)
    }

    fn timed_out(&mut self, crew: &impl Crew) -> Error {
        let after = self.options.timeout.unwrap_or_default();
        let waiting_for = self.awaited(crew);
        if self.stalls.note(after, waiting_for.pid, &crew.snapshot(waiting_for.worker)) {
            Error::WorkerStuck { after, waiting_for }
        } else {
            Error::TimedOut { after, waiting_for }
        }
    }

    /// Returns what the worker is doing that loads the user's next batch.
    fn awaited(&self, crew: &impl Crew) -> WorkerActivity {
        self.doing(self.schedule.awaited_worker().unwrap_or(0), crew)
    }

    /// Returns what a worker is doing, with the batch number that the user sees.
    pub(super) fn doing(&self, worker: usize, crew: &impl Crew) -> WorkerActivity {
        let doing = WorkerActivity::new(worker, crew.pid(worker), &crew.snapshot(worker));
        WorkerActivity { batch: self.number_of(doing.batch), ..doing }
    }

    /// Returns the batches that a worker has not answered, by the numbers that the user sees.
    pub(super) fn batches_of(&self, worker: usize) -> Vec<u64> {
        self.schedule.waiting_at(worker).into_iter().map(|task| self.number_of(task)).collect()
    }

    /// Returns the batch number of a task as the user sees it. For tasks of shards it counts the tasks before
    /// this one as if each of them gave a batch.
    fn number_of(&self, task: u64) -> u64 {
        let number = self.supply.number_of(task);
        if self.supply.has_shards() && self.schedule.get(task).is_some() {
            number + self.schedule.pending_before(task) as u64
        } else {
            number
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pause_of_a_wait_that_the_program_has_left_does_not_count() {
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let mut left = Wait { deadline: Some(after(3)), paused_at: Some(after(1)), ..Wait::default() };
        assert_eq!(left.go_on(after(60)), Some(Duration::from_secs(59)));
        assert_eq!((left.deadline, left.paused_at), (Some(after(62)), None));
        assert_eq!(left.go_on(after(61)), None);
    }
}
