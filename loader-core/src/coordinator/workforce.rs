//! The number of workers, which may change while an epoch is loaded: workers are added, parked and removed.
//!
//! A parked worker gets no more tasks, and its process waits. So it costs nothing to use it again, for example
//! while the best number of workers is searched. A worker that stays parked is removed: its process ends.
//!
//! The number of workers changes neither the order nor the content of the batches. The shards of an iterable
//! dataset are dealt out again: see [`Schedule`](super::schedule::Schedule).

use std::time::{Duration, Instant};

use super::{Coordinator, Phase, crew::Crew};
use crate::{error::Error, report::WorkerReport, warning::Warning};

/// Time after which a parked worker is removed. Starting a process again takes milliseconds to seconds.
const MAX_PARKED: Duration = Duration::from_secs(10);

/// Which workers get tasks, and which have a process.
#[derive(Debug)]
pub(super) struct Workforce {
    standings: Vec<Standing>,
    /// Number of workers that should work.
    target: usize,
    /// The worker whose process is being started. Workers are added one at a time.
    starting: Option<usize>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    /// Gets tasks.
    Working,
    /// Gets no more tasks since this time.
    Parked(Instant),
    /// Was told to end.
    Leaving,
    /// Has no process.
    Removed,
}

impl Workforce {
    pub(super) fn new(workers: usize) -> Self {
        Self { standings: vec![Standing::Working; workers], target: workers, starting: None }
    }

    /// Returns the number of workers, including those that were removed.
    pub(super) fn len(&self) -> usize {
        self.standings.len()
    }

    /// Says of each worker whether it gets tasks.
    pub(super) fn are_working(&self) -> Vec<bool> {
        self.standings.iter().map(|standing| *standing == Standing::Working).collect()
    }

    /// True if the worker gets tasks.
    pub(super) fn is_working(&self, worker: usize) -> bool {
        self.standings[worker] == Standing::Working
    }

    /// True if the worker has a process that was not told to end.
    pub(super) fn is_present(&self, worker: usize) -> bool {
        matches!(self.standings[worker], Standing::Working | Standing::Parked(_))
    }

    /// True if the worker was told to end because it was removed.
    pub(super) fn is_leaving(&self, worker: usize) -> bool {
        self.standings[worker] == Standing::Leaving
    }

    fn working(&self) -> usize {
        self.standings.iter().filter(|standing| **standing == Standing::Working).count()
    }
}

impl Coordinator {
    /// Sets the number of workers that get tasks, from 1 to the maximum of the crew. Workers are parked at
    /// once; a worker that must be started gets tasks as soon as it runs.
    pub(crate) fn set_workers(
        &mut self,
        workers: usize,
        now: Instant,
        crew: &mut impl Crew,
    ) -> Result<(), Error> {
        self.now = now;
        self.workforce.target = workers.max(1);
        self.reach_target(crew)
    }

    /// Returns the number of workers that get tasks, or will once they run.
    pub(crate) fn workers(&self) -> usize {
        self.workforce.target
    }

    /// Parks, or uses again, or starts workers until as many work as should.
    pub(super) fn reach_target(&mut self, crew: &mut impl Crew) -> Result<(), Error> {
        while self.workforce.working() > self.workforce.target {
            // First those that have nothing to do any more.
            let working =
                || (0..self.workforce.len()).rev().filter(|&worker| self.workforce.is_working(worker));
            let last =
                working().find(|&worker| self.schedule.is_finished(worker)).or_else(|| working().next());
            let Some(worker) = last else { break };
            self.park_worker(worker, crew);
        }
        while self.workforce.working() < self.workforce.target {
            let is_parked = |standing: &Standing| matches!(standing, Standing::Parked(_));
            match self.workforce.standings.iter().position(is_parked) {
                Some(worker) => self.employ(worker),
                None => return self.start_worker(crew),
            }
        }
        Ok(())
    }

    /// Gives a worker no more tasks. It answers those that it has, unless idle workers take them over.
    fn park_worker(&mut self, worker: usize, crew: &impl Crew) {
        self.workforce.standings[worker] = match self.schedule.is_finished(worker) {
            true if crew.is_down(worker) => Standing::Removed,
            true => Standing::Leaving,
            false => Standing::Parked(self.now),
        };
        self.schedule.set_working(worker, false);
    }

    fn employ(&mut self, worker: usize) {
        self.workforce.standings[worker] = Standing::Working;
        self.schedule.set_working(worker, true);
    }

    /// Starts a process for a worker that was removed, or for a new one, unless one is being started.
    fn start_worker(&mut self, crew: &mut impl Crew) -> Result<(), Error> {
        // Numbers are reused, so that there are never more than the maximum: a worker that leaves keeps its
        // number until its process has ended.
        let is_leaving = |standing: &Standing| *standing == Standing::Leaving;
        if self.workforce.starting.is_some() || self.workforce.standings.iter().any(is_leaving) {
            return Ok(());
        }
        let removed = self.workforce.standings.iter().position(|standing| *standing == Standing::Removed);
        let worker = removed.unwrap_or(self.workforce.len());
        crew.start(worker, Duration::ZERO)?;
        self.workforce.starting = Some(worker);
        Ok(())
    }

    /// Handles the end of the start of an added worker. False if `worker` is not being added. If the worker
    /// could not be started, the user is warned, and as many workers go on as there are.
    pub(super) fn takes_added(&mut self, worker: usize, crew: &mut impl Crew) -> Result<bool, Error> {
        if self.workforce.starting != Some(worker) {
            return Ok(false);
        }
        self.workforce.starting = None;
        if let Err(error) = crew.adopt(worker) {
            crew.warn(&Warning::WorkerNotAdded { worker, problem: error.to_string() });
            self.workforce.target = self.workforce.target.min(self.workforce.working());
            return Ok(true);
        }
        if worker == self.workforce.len() {
            self.workforce.standings.push(Standing::Working);
            self.roster.add();
            self.deaths.add();
            self.looks.add();
            self.counters.push(WorkerReport::new(&crew.snapshot(worker)));
            self.schedule.add_worker();
            if let Phase::Resuming { resumed, .. } = &mut self.phase {
                resumed.push(true);
            }
        } else {
            self.employ(worker);
        }
        self.reach_target(crew)?;
        Ok(true)
    }

    /// Notes that a worker's process has ended. True if that worker needs no other process: it did not get
    /// tasks, and has none to answer.
    pub(super) fn note_left(&mut self, worker: usize) -> bool {
        let (is_free, now) = (self.schedule.is_free(worker), self.now);
        match &mut self.workforce.standings[worker] {
            Standing::Working => false,
            standing if is_free => {
                *standing = Standing::Removed;
                self.deaths.forget(worker);
                true
            }
            // Another process answers its tasks. It is removed later.
            standing => {
                *standing = Standing::Parked(now);
                false
            }
        }
    }

    /// Tells workers that have been parked for some time to end.
    pub(super) fn remove_parked_workers(&mut self, crew: &mut impl Crew) {
        for worker in 0..self.workforce.len() {
            let Standing::Parked(since) = self.workforce.standings[worker] else { continue };
            let is_due = self.now.saturating_duration_since(since) >= MAX_PARKED;
            let is_free = self.schedule.is_free(worker)
                && self.roster.is_free(worker)
                && !self.attempts.is_busy(worker);
            if is_due && is_free && crew.takes_tasks(worker) {
                self.workforce.standings[worker] = Standing::Leaving;
                crew.finish(worker);
            }
        }
    }

    /// Gives the shards that change their worker to the new worker, once the old one has answered.
    pub(super) fn hand_over_shards(&mut self) {
        let shards = self.schedule.hand_over();
        let over = self.supply.reopen(&shards);
        over.into_iter().for_each(|shard| self.schedule.close_lane(shard));
    }
}
