//! The number of workers, which may change while an epoch is loaded: workers are added, parked and removed.
//!
//! A parked worker gets no more tasks, and its process waits. So it costs nothing to use it again, for
//! example while the best number of workers is searched. A worker that stays parked is removed: its process
//! ends.
//!
//! The number of workers changes neither the order nor the content of the batches. The shards of an iterable
//! dataset are dealt out again: see [`Schedule`](super::schedule::Schedule).

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use loader_ipc::frame::Failure;

use super::{Coordinator, Phase, crew::Crew, deaths::DeathRecord, roster::Roster};
use crate::{error::Error, report::warning::Warning};

/// Time after which a parked worker is removed. Starting a process again takes milliseconds to seconds.
const MAX_PARKED: Duration = Duration::from_secs(10);
/// Time after which a removed worker that has not ended is killed. Workers get as much at the end of an
/// iterator.
const MAX_LEAVING: Duration = Duration::from_secs(5);

/// How many workers get tasks, and which are being started.
#[derive(Debug)]
pub(super) struct Workforce {
    /// Number of workers that should work.
    target: usize,
    /// The worker that is being added: its process is being started, or opens the dataset. Workers are added
    /// one at a time.
    adding: Option<usize>,
    /// The workers whose process is being started, also to replace one that has ended.
    starting: BTreeSet<usize>,
}

/// Whether a worker gets tasks, and whether it has a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    /// Gets tasks.
    Working,
    /// Was added, and gets tasks once it has opened the dataset.
    Joining,
    /// Gets no more tasks since this time.
    Parked(Instant),
    /// Was told at this time to end.
    Leaving(Instant),
    /// Has no process.
    Removed,
}

impl Workforce {
    pub(super) fn new(workers: usize) -> Self {
        Self { target: workers, adding: None, starting: BTreeSet::new() }
    }
}

impl Roster {
    /// Says of each worker whether it gets tasks.
    pub(super) fn are_working(&self) -> Vec<bool> {
        self.members().iter().map(|member| member.standing == Standing::Working).collect()
    }

    /// True if the worker gets tasks.
    pub(super) fn is_working(&self, worker: usize) -> bool {
        self[worker].standing == Standing::Working
    }

    /// True if the worker has a process that was not told to end.
    pub(super) fn is_present(&self, worker: usize) -> bool {
        matches!(self[worker].standing, Standing::Working | Standing::Joining | Standing::Parked(_))
    }

    /// True if the worker was told to end because it was removed.
    pub(super) fn is_leaving(&self, worker: usize) -> bool {
        matches!(self[worker].standing, Standing::Leaving(_))
    }

    fn working(&self) -> usize {
        self.members().iter().filter(|member| member.standing == Standing::Working).count()
    }

    /// Returns the first worker whose standing `is_it` accepts.
    fn first(&self, is_it: impl Fn(Standing) -> bool) -> Option<usize> {
        self.members().iter().position(|member| is_it(member.standing))
    }
}

impl Coordinator {
    /// Sets the number of workers that get tasks, from 1 to the maximum of the crew. Workers are parked at
    /// once; a worker that must be started gets tasks as soon as it has opened the dataset.
    pub(crate) fn set_workers(&mut self, workers: usize, now: Instant, crew: &mut impl Crew) {
        self.now = now;
        self.workforce.target = workers.max(1);
        self.reach_target(crew);
    }

    /// Returns the number of workers that get tasks, or will once they run.
    pub(crate) fn workers(&self) -> usize {
        self.workforce.target
    }

    /// True if the number of workers that get tasks is the target: none is still starting.
    pub(crate) fn has_all_workers(&self) -> bool {
        self.roster.working() == self.workforce.target
    }

    /// Sets the number of batches that are loaded ahead for each worker.
    pub(crate) fn set_prefetch_factor(&mut self, prefetch_factor: usize) {
        self.options.prefetch_factor = prefetch_factor;
        self.schedule.set_per_worker(prefetch_factor);
    }

    /// Parks, or uses again, or starts workers until the target is reached.
    pub(super) fn reach_target(&mut self, crew: &mut impl Crew) {
        while self.roster.working() > self.workforce.target {
            // First those that have nothing to do any more.
            let working = || (0..self.roster.len()).rev().filter(|&worker| self.roster.is_working(worker));
            let last =
                working().find(|&worker| self.schedule.is_finished(worker)).or_else(|| working().next());
            let Some(worker) = last else { break };
            self.park_worker(worker, crew);
        }
        while self.roster.working() < self.workforce.target {
            match self.roster.first(|standing| matches!(standing, Standing::Parked(_))) {
                Some(worker) => self.employ(worker),
                None => return self.add_worker(crew),
            }
        }
    }

    /// Gives a worker no more tasks. It answers those that it has, unless idle workers take them over. If main has
    /// already told the worker that no more tasks follow, it is leaving, or removed if it has no process.
    fn park_worker(&mut self, worker: usize, crew: &impl Crew) {
        self.roster[worker].standing = if !self.schedule.is_finished(worker) {
            Standing::Parked(self.now)
        } else if crew.is_down(worker) && !self.workforce.starting.contains(&worker) {
            Standing::Removed
        } else {
            Standing::Leaving(self.now)
        };
        self.schedule.set_working(worker, false);
    }

    fn employ(&mut self, worker: usize) {
        self.roster[worker].standing = Standing::Working;
        self.schedule.set_working(worker, true);
    }

    /// Starts a process for a worker that was removed, or for a new one, unless one is being added.
    fn add_worker(&mut self, crew: &mut impl Crew) {
        // Numbers are reused, so that there are never more than the maximum: a worker that leaves keeps its
        // number until its process has ended.
        let leaving = self.roster.first(|standing| matches!(standing, Standing::Leaving(_)));
        if self.workforce.adding.is_some() || leaving.is_some() {
            return;
        }
        let removed = self.roster.first(|standing| standing == Standing::Removed);
        let worker = removed.unwrap_or(self.roster.len());
        match self.start_process(worker, Duration::ZERO, crew) {
            Ok(()) => self.workforce.adding = Some(worker),
            Err(error) => self.not_added(worker, error.to_string(), crew),
        }
    }

    /// Begins to start a process for a worker, after `pause`.
    pub(super) fn start_process(
        &mut self,
        worker: usize,
        pause: Duration,
        crew: &mut impl Crew,
    ) -> Result<(), Error> {
        crew.start(worker, pause)?;
        self.workforce.starting.insert(worker);
        Ok(())
    }

    /// Goes on with the workers that work, and tells the user why `worker` was not added.
    fn not_added(&mut self, worker: usize, problem: String, crew: &mut impl Crew) {
        self.workforce.adding = None;
        self.workforce.target = self.workforce.target.min(self.roster.working().max(1));
        crew.warn(&Warning::WorkerNotAdded { worker, problem });
    }

    /// Handles the end of the start of a worker's process. True if nothing is left to do: the worker was
    /// added, or it has no tasks and gets none.
    pub(super) fn take_started(&mut self, worker: usize, crew: &mut impl Crew) -> Result<bool, Error> {
        self.workforce.starting.remove(&worker);
        if self.workforce.adding != Some(worker) {
            return Ok(false);
        }
        match crew.adopt(worker) {
            Ok(()) if worker == self.roster.len() => {
                self.roster.add(crew);
                self.schedule.add_worker();
            }
            Ok(()) => self.roster[worker].standing = Standing::Joining,
            Err(error) => self.not_added(worker, error.to_string(), crew),
        }
        Ok(true)
    }

    /// Notes that a worker has opened the dataset, or that it could not: an added worker then gets tasks, or
    /// ends.
    pub(super) fn take_opened(&mut self, worker: usize, failure: Option<&Failure>, crew: &mut impl Crew) {
        if self.roster[worker].standing != Standing::Joining {
            return;
        }
        match failure {
            None => {
                self.workforce.adding = None;
                self.roster[worker].standing = Standing::Parked(self.now);
            }
            Some(failure) => {
                self.roster[worker].standing = Standing::Leaving(self.now);
                crew.finish(worker);
                self.not_added(worker, failure.chain.join(": "), crew);
            }
        }
        self.reach_target(crew);
    }

    /// Notes that a worker's process has ended, or could not be started. True if that worker needs no other
    /// process: it gets no tasks, and has none to answer.
    pub(super) fn note_left(&mut self, worker: usize, problem: &str, crew: &mut impl Crew) -> bool {
        if self.roster.is_working(worker) {
            return false;
        }
        if !self.schedule.is_free(worker) {
            // Another process answers its tasks. It is removed later.
            self.roster[worker].standing = Standing::Parked(self.now);
            return false;
        }
        let member = &mut self.roster[worker];
        member.standing = Standing::Removed;
        member.forget_process();
        member.death_record = DeathRecord::default();
        if let Phase::Resuming { awaited, .. } = &mut self.phase {
            awaited.remove(&worker);
        }
        if self.workforce.adding == Some(worker) {
            self.not_added(worker, problem.to_owned(), crew);
        }
        self.reach_target(crew);
        true
    }

    /// Tells workers that have been parked for some time to end, and kills those that do not.
    pub(super) fn remove_parked_workers(&mut self, crew: &mut impl Crew) {
        for worker in 0..self.roster.len() {
            let (since, max) = match self.roster[worker].standing {
                Standing::Parked(since) => (since, MAX_PARKED),
                Standing::Leaving(since) => (since, MAX_LEAVING),
                _ => continue,
            };
            if self.now.saturating_duration_since(since) < max {
                continue;
            }
            if self.roster.is_leaving(worker) {
                if !crew.is_down(worker) {
                    crew.kill(worker, true);
                }
                continue;
            }
            let is_free = self.schedule.is_free(worker) && self.roster.is_free(worker);
            // A slot that it was offered comes back from it, and the next epoch would not know of it.
            let has_slot = self.attempts.is_busy(worker) || self.leasing.has_offer(worker);
            if is_free && !has_slot && crew.takes_tasks(worker) {
                self.roster[worker].standing = Standing::Leaving(self.now);
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
