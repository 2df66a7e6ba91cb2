//! Decides what an epoch's workers do: which tasks they get, with which slots, what their reports mean, and
//! which of them are killed or replaced.
//!
//! The coordinator makes no system call, reads no clock, and starts no thread. Its inputs are reports of
//! workers, the time, and the user's calls; it commands the workers through [`Crew`]. So the same code runs
//! with processes ([`Pool`](crate::engine::pool::Pool)) and in a deterministic simulation.
//!
//! Each part owns its state, and the coordinator asks it:
//!
//! | part | owns |
//! |---|---|
//! | [`Supply`] | what was not sent yet: the plan of batches, or the shards |
//! | [`Schedule`] | the tasks that are not done, their order and their workers |
//! | [`Workforce`] | how many workers get tasks, and which are being started |
//! | [`Roster`] | each worker: whether it gets tasks, what it was sent and has said, its deaths and its progress |
//! | [`Leasing`] | slots: who waits for one, which were offered |
//! | [`Attempts`] | second attempts at tasks, and attempts that lost |
//! | [`Deaths`], [`KnownBad`] | on which tasks workers died, and which samples are not tried again |
//! | [`CheckClock`], [`Stalls`], [`Wait`] | how long main waits, and whether the awaited worker makes progress |

mod attempts;
mod crew;
mod deaths;
mod dispatch;
mod epochs;
mod hedging;
mod known_bad;
mod leasing;
mod memory;
mod pending;
mod progress;
mod reports;
mod roster;
mod schedule;
mod stalls;
mod supply;
mod suspects;
mod wait;
mod workforce;

use std::{
    collections::BTreeSet,
    mem,
    time::{Duration, Instant},
};

use loader_ipc::{
    frame::{BadSampleRecord, Lease, Report},
    slots::SlotPool,
};

use attempts::Attempts;
use deaths::Deaths;
use known_bad::KnownBad;
use leasing::Leasing;
use pending::Pending;
use progress::CheckClock;
use roster::{Roster, worker_report};
use schedule::Schedule;
use stalls::Stalls;
use wait::Wait;
use workforce::Workforce;

use crate::{
    data::fetch::{BatchRequest, FetchOptions},
    error::Error,
    report::{batch_info::BatchInfo, epoch_report::WorkerReport},
    state::Position,
};

pub(crate) use crew::{Crew, UnsentTask};
pub(crate) use pending::Outcome;
pub(crate) use supply::{ShardEnd, Supply};
pub(crate) use wait::{MAX_OPENING, Next};

/// How an epoch is loaded.
#[derive(Debug, Clone)]
pub(crate) struct WorkerOptions {
    /// Number of workers at first.
    pub(crate) workers: usize,
    /// Maximum number of workers that the tuner chooses; `workers` if their number is fixed.
    pub(crate) max_workers: usize,
    pub(crate) prefetch_factor: usize,
    pub(crate) in_order: bool,
    pub(crate) timeout: Option<Duration>,
    /// How long the user waits before a warning names the worker.
    pub(crate) warn_after: Option<Duration>,
    /// Maximum number of deaths of a worker in a row outside of tasks after which it is started again.
    pub(crate) max_worker_deaths: u32,
    pub(crate) fetch: FetchOptions,
    /// Maximum time for a sample.
    pub(crate) sample_timeout: Option<Duration>,
    /// Maximum number of bytes of its own that a worker may have in memory.
    pub(crate) memory_limit: Option<u64>,
    /// Idle workers take over tasks that wait behind a slow one.
    pub(crate) move_tasks: bool,
    /// Late batches are given to a second worker.
    pub(crate) hedge: bool,
    /// Number of the launcher's processes on this machine, which share its memory.
    pub(crate) processes: usize,
}

/// The state of an epoch and of the workers that load it.
#[derive(Debug)]
pub(crate) struct Coordinator {
    options: WorkerOptions,
    phase: Phase,
    /// The latest reading of the clock, which stands still while main does not run.
    now: Instant,
    /// True if the workers are kept for another epoch.
    persistent: bool,
    supply: Supply,
    schedule: Schedule<Pending>,
    workforce: Workforce,
    roster: Roster,
    leasing: Leasing,
    attempts: Attempts,
    deaths: Deaths,
    known_bad: KnownBad,
    check_clock: CheckClock,
    stalls: Stalls,
    wait: Wait,
}

#[derive(Debug, PartialEq, Eq)]
enum Phase {
    /// An epoch is being loaded.
    Loading,
    /// The epoch is over or abandoned, and the workers stay.
    Resting,
    /// The workers were told that the next epoch begins. These have not said so too.
    Resuming { epoch: u64, awaited: BTreeSet<usize> },
}

/// A task whose outcome the user gets next.
#[derive(Debug)]
pub(crate) struct Taken {
    task: u64,
    worker: usize,
    batch: u64,
    wanted: BatchRequest,
}

impl Taken {
    /// The worker that has answered it.
    pub(crate) fn worker(&self) -> usize {
        self.worker
    }

    /// Its number.
    pub(crate) fn task(&self) -> u64 {
        self.task
    }

    /// Number of its batch, as the user sees it.
    pub(crate) fn batch(&self) -> u64 {
        self.batch
    }
}

impl Coordinator {
    /// Coordinates workers that have just been started. `persistent` is true if they load several epochs.
    pub(crate) fn new(
        options: WorkerOptions,
        supply: Supply,
        slots: &SlotPool,
        persistent: bool,
        now: Instant,
        crew: &impl Crew,
    ) -> Self {
        let workers = (Workforce::new(options.workers), Roster::new(options.workers, crew));
        Self::of(options, supply, slots, persistent, now, workers)
    }

    fn of(
        options: WorkerOptions,
        supply: Supply,
        slots: &SlotPool,
        persistent: bool,
        now: Instant,
        (workforce, roster): (Workforce, Roster),
    ) -> Self {
        Self {
            phase: Phase::Loading,
            now,
            persistent,
            schedule: supply.schedule(&roster.are_working(), options.prefetch_factor, options.in_order),
            supply,
            workforce,
            roster,
            leasing: Leasing::new(slots),
            attempts: Attempts::default(),
            deaths: Deaths::new(options.max_worker_deaths),
            known_bad: KnownBad::default(),
            check_clock: CheckClock::default(),
            stalls: Stalls::default(),
            wait: Wait::default(),
            options,
        }
    }

    /// Begins another epoch, after all workers have resumed.
    pub(crate) fn begin_epoch(
        &mut self,
        supply: Supply,
        slots: &SlotPool,
        now: Instant,
        crew: &mut impl Crew,
    ) {
        debug_assert!(self.attempts.is_empty(), "the workers have answered everything before");
        crew.set_wanted(true);
        self.roster.begin_epoch(crew);
        let workforce = mem::replace(&mut self.workforce, Workforce::new(0));
        let workers = (workforce, mem::take(&mut self.roster));
        *self = Self::of(self.options.clone(), supply, slots, self.persistent, now, workers);
    }

    /// Sends tasks while there is room for them. A worker that broke the protocol is ended.
    pub(crate) fn send_tasks(&mut self, now: Instant, crew: &mut impl Crew) -> Result<(), Error> {
        self.now = now;
        self.remove_parked_workers(crew);
        self.dispatch(crew).or_else(|error| self.survive(error, crew))
    }

    /// Handles a report. A worker that broke the protocol is ended.
    ///
    /// # Errors
    /// An error that ends the iteration, or that the user must know now.
    pub(crate) fn handle(&mut self, report: Report, now: Instant, crew: &mut impl Crew) -> Result<(), Error> {
        self.now = now;
        let is_exit = matches!(report, Report::Exited { .. });
        let heard = self.hear(report, crew);
        match self.phase {
            // The worker that has ended has broken the protocol too often, and is not replaced.
            Phase::Loading if is_exit => heard,
            Phase::Loading => heard.or_else(|error| self.survive(error, crew)),
            // Workers that cannot continue are all ended, and others are started.
            Phase::Resting | Phase::Resuming { .. } => heard,
        }
    }

    /// Handles a failure to receive a report.
    pub(crate) fn receive_failed(&mut self, error: Error, crew: &mut impl Crew) -> Result<(), Error> {
        match self.phase {
            Phase::Loading => self.survive(error, crew),
            Phase::Resting | Phase::Resuming { .. } => Err(error),
        }
    }

    /// Takes the task whose outcome the user gets next, if it has arrived.
    pub(crate) fn take_next(&mut self) -> Option<(Taken, Outcome)> {
        let (task, worker, pending) = self.schedule.next_ready()?;
        let batch = self.supply.number_of(task);
        let (wanted, outcome) = pending.into_parts();
        let mut outcome = outcome.expect("a task arrives with its outcome");
        if let Outcome::Lost(error) = &mut outcome {
            // For shards the batch number is only known now.
            match &mut **error {
                Error::BatchGivenUp { batch: number, doing, .. } => (*number, doing.batch) = (batch, batch),
                Error::DatasetFailed { batch: number, .. } => *number = batch,
                _ => {}
            }
        }
        Some((Taken { task, worker, batch, wanted }, outcome))
    }

    /// Notes that the user gets the batch of a task, or its error. The batch ends at `end` in its shard.
    pub(crate) fn returned(
        &mut self,
        taken: Taken,
        end: ShardEnd,
        mut bad: Vec<BadSampleRecord>,
    ) -> BatchInfo {
        self.known_bad.give_reasons(&mut bad);
        self.stalls.end();
        let Taken { task, worker, wanted, .. } = taken;
        self.supply.returned(task, wanted, worker, end, bad)
    }

    /// Puts a task back whose error ends the iteration. The user's position stays before its batch, so that a resumed
    /// run loads it.
    pub(crate) fn put_back(&mut self, taken: Taken) {
        let Taken { task, worker, wanted, .. } = taken;
        let lane = match wanted {
            BatchRequest::Samples(_) => worker,
            BatchRequest::NextOf { shard, .. } => shard,
        };
        self.schedule.put_back(task, lane, worker, Pending::new(wanted, None));
    }

    /// Returns the slots, from which batches are lent to the user.
    pub(crate) fn slots(&self) -> &SlotPool {
        self.leasing.slots()
    }

    /// True if workers send the hashes of the samples with each batch: with the option `digest`.
    pub(crate) fn has_hashes(&self) -> bool {
        self.options.fetch.digest
    }

    /// True for an iterable dataset.
    pub(crate) fn has_shards(&self) -> bool {
        self.supply.has_shards()
    }

    /// Returns the user's position in the epoch, also at its end.
    pub(crate) fn position(&self) -> Position {
        self.supply.position(&self.schedule)
    }

    /// True if it is known that the epoch has no more batches, and that no part of it is left for a resumed run.
    pub(crate) fn is_over(&self) -> bool {
        self.schedule.is_closed() && self.schedule.is_empty() && !self.supply.has_rest()
    }

    /// True if an error has left a part of the epoch for a resumed run.
    pub(crate) fn has_rest(&self) -> bool {
        self.supply.has_rest()
    }

    /// Returns the number of batches that the sampler announced and the number that it has given, once they
    /// differ.
    pub(crate) fn miscount(&self) -> Option<(usize, u64)> {
        self.supply.miscount()
    }

    /// Returns bounds of the number of batches that the user has not got.
    pub(crate) fn size_hint(&self) -> (usize, Option<usize>) {
        // A task of a shard may have no batch.
        let sent = if self.supply.has_shards() { 0 } else { self.schedule.len() };
        let (low, high) = self.supply.size_hint();
        (low + sent, high.map(|high| high + sent))
    }

    /// Returns the number of the epoch.
    pub(crate) fn epoch(&self) -> u64 {
        self.supply.epoch()
    }

    /// Number of workers that have died in this epoch and were replaced.
    pub(crate) fn restarts(&self) -> u64 {
        self.deaths.replaced()
    }

    /// Returns what each worker has done in this epoch.
    pub(crate) fn worker_reports(&self, crew: &impl Crew) -> impl Iterator<Item = WorkerReport> {
        let members = self.roster.members().iter().enumerate();
        members.map(|(worker, member)| worker_report(worker, crew).since(&member.counters_before))
    }

    /// Returns the number of batches that the workers have loaded in this epoch. A batch that two workers
    /// have loaded counts twice.
    pub(crate) fn loaded(&self, crew: &impl Crew) -> u64 {
        let members = self.roster.members().iter().enumerate();
        let loaded = members.map(|(worker, member)| {
            crew.snapshot(worker).batches.saturating_sub(member.counters_before.batches)
        });
        loaded.fold(0, u64::saturating_add)
    }

    /// Returns the number of tasks whose batches the user has not got.
    pub(crate) fn unreturned(&self) -> usize {
        self.schedule.len()
    }

    /// Removes and returns every lease that a worker may still write under, each with its worker, and those
    /// of batches that the user has not got. Only when the workers were ended.
    pub(crate) fn take_leases(&mut self) -> Vec<(usize, Lease)> {
        let tasks = self.schedule.abandon().into_iter();
        let tasks = tasks.filter_map(|(_, worker, _, mut pending)| Some((worker, pending.take_lease()?)));
        let attempts = self.attempts.take_all().into_iter().map(|attempt| (attempt.worker, attempt.lease));
        tasks.chain(attempts).chain(self.leasing.take_offers()).collect()
    }
}

#[cfg(test)]
mod simulation;
