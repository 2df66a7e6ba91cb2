//! Iterates over an epoch on worker processes: takes batches from the coordinator, decodes and returns them.

use std::{
    io,
    marker::PhantomData,
    sync::Arc,
    time::{Duration, Instant},
};

use loader_ipc::{
    Loan,
    arena::Encoded,
    fault::{self, Point},
    frame::{AfterFailure, BadSampleRecord},
    lent::{self, DecodeError},
    schema::Schema,
    slots::SlotPool,
};

use super::{
    Step,
    team::{Summary, Team, WeakIdleTeam},
    tuning::{SharedTuner, Tuning},
};
use crate::{
    data::{collate::Batch, fetch::ShardBatch},
    engine::{
        coordinator::{Coordinator, Outcome, ShardEnd, Taken},
        interrupt::Interrupt,
    },
    error::Error,
    report::{
        epoch_report::WorkerReport,
        figures::ResourceUse,
        load_times::LoadTimes,
        stats::{IterStats, SharedStats},
        trace::PassTracer,
        tuning_decision::TuningDecision,
    },
    state::Position,
};

/// The batches of one epoch.
pub(crate) struct WorkerIter<B> {
    /// `None` once the workers were ended or given to `idle`.
    team: Option<Team>,
    /// Where the team goes at the end of the epoch, if the workers are persistent.
    idle: Option<WeakIdleTeam>,
    /// What is known of the epoch once `team` is `None`.
    summary: Summary,
    /// The iterator's slots. The iterator counts as their user until it is dropped.
    slots: SlotPool,
    /// `None` if the number of workers and the prefetch factor are fixed.
    tuning: Option<Tuning>,
    /// An error that ends the iteration and that occurred while a batch was returned. The next call returns
    /// it.
    last_error: Option<Error>,
    /// True after the end of the epoch, and after an error that ends the iteration.
    is_ended: bool,
    interrupt: Option<Interrupt>,
    batch: PhantomData<fn() -> B>,
}

impl<B: Batch> WorkerIter<B> {
    /// Takes over a team, and sends the first tasks.
    pub(crate) fn new(
        mut team: Team,
        idle: Option<WeakIdleTeam>,
        tuner: Option<SharedTuner>,
    ) -> Result<Self, Error> {
        let tuning = tuner.map(|tuner| Tuning::start(tuner, &mut team));
        // An error that does not end the iteration, such as a lack of memory, is ignored here: the first call
        // of `next` tries again, and returns the error.
        if let Err(error) = team.send_tasks()
            && error.ends_iteration()
        {
            return Err(error);
        }
        Ok(Self {
            slots: team.coordinator.slots().clone(),
            team: Some(team),
            idle,
            tuning,
            summary: Summary::default(),
            last_error: None,
            is_ended: false,
            interrupt: None,
            batch: PhantomData,
        })
    }

    /// Ends the iteration before the end of the epoch. Does not wait for the workers, which may be stuck; the
    /// next call of `step`, or the drop, waits for them.
    pub(super) fn end(&mut self) {
        self.is_ended = true;
        self.idle = None;
        if let Some(team) = &mut self.team {
            team.pool.ask_to_end();
        }
    }

    /// Ends the epoch before the end of its stream. Persistent workers are kept.
    pub(super) fn finish(&mut self) {
        self.is_ended = true;
    }

    pub(super) fn step(&mut self) -> Option<Step<B>> {
        if self.is_ended {
            self.close();
        }
        let team = self.team.as_mut()?;
        if !team.pool.is_owned() {
            return Some((None, Err(in_forked_process())));
        }
        let asked = self.tuning.as_ref().map(|_| Instant::now());
        let step = match self.last_error.take() {
            Some(error) => Err(error),
            None => next_batch(team, self.interrupt.as_mut(), &mut self.last_error),
        };
        if let (Some(tuning), Some(asked)) = (&mut self.tuning, asked) {
            match &step {
                Ok(Some((_, Ok(Some(_))))) => tuning.note_batch(asked, team),
                _ => tuning.note_wait(asked),
            }
        }
        match step {
            Ok(Some(step)) => Some(step),
            Ok(None) => {
                self.is_ended = true;
                self.close();
                None
            }
            Err(error) => {
                if error.ends_iteration() {
                    self.end();
                }
                Some((None, Err(error)))
            }
        }
    }

    /// Sets the number of workers that get tasks. Without effect after the end.
    pub(super) fn set_workers(&mut self, workers: usize) -> Result<(), Error> {
        let Some(team) = self.team.as_mut().filter(|_| !self.is_ended) else { return Ok(()) };
        if !team.pool.is_owned() {
            return Err(in_forked_process());
        }
        let max = team.pool.max_workers();
        if workers == 0 || workers > max {
            let problem =
                format!("{workers} workers were requested of a running iterator, which has from 1 to {max}");
            return Err(Error::invalid_option("num_workers", problem));
        }
        team.set_workers(workers);
        if let Some(tuning) = &mut self.tuning {
            tuning.fix_workers(workers);
        }
        // Other errors, such as a lack of memory, do not belong here: the next call of `next` returns them.
        match team.send_tasks() {
            Err(error) if error.ends_iteration() => {
                self.end();
                Err(error)
            }
            _ => Ok(()),
        }
    }

    /// Asks `interrupt` whether to end a wait for a batch.
    pub(super) fn interrupt_when(&mut self, interrupt: Interrupt) {
        self.interrupt = Some(interrupt);
    }
}

impl<B> WorkerIter<B> {
    /// Returns the user's position in the epoch, also at its end.
    pub(super) fn position(&self) -> Position {
        self.team.as_ref().map_or_else(|| self.summary.position.clone(), |team| team.coordinator.position())
    }

    /// True if it is known that the epoch has no more batches, and that no part of it is left for a resumed run.
    pub(super) fn is_over(&self) -> bool {
        self.team.as_ref().map_or(self.summary.is_over, |team| team.coordinator.is_over())
    }

    /// True if an error has left a part of the epoch for a resumed run.
    pub(super) fn has_rest(&self) -> bool {
        self.team.as_ref().map_or(self.summary.has_rest, |team| team.coordinator.has_rest())
    }

    pub(super) fn pids(&self) -> Vec<u32> {
        self.team.as_ref().map_or_else(|| self.summary.pids.clone(), |team| team.pool.pids())
    }

    /// Returns the number of workers that get tasks; 0 after the end.
    pub(super) fn workers(&self) -> usize {
        self.team.as_ref().map_or(0, |team| team.coordinator.workers())
    }

    /// Returns the number of workers that should get tasks, or should have at the end.
    pub(super) fn target_workers(&self) -> usize {
        self.team.as_ref().map_or(self.summary.target_workers, |team| team.coordinator.workers())
    }

    /// Returns how many workers the memory has room for; `None` after the end of the epoch.
    pub(super) fn affordable_workers(&self) -> Option<usize> {
        let team = self.team.as_ref()?;
        Some(team.affordable_workers(team.largest_worker()?))
    }

    pub(super) fn measured(&self) -> (LoadTimes, Vec<WorkerReport>) {
        let summary = || (self.summary.times.clone(), self.summary.workers.clone());
        self.team.as_ref().map_or_else(summary, Team::measured)
    }

    pub(super) fn main_decode(&self) -> Option<Duration> {
        self.team.as_ref().map_or(self.summary.main_decode, |team| team.decoding.mean())
    }

    /// Makes the state of the workers readable through the loader's statistics.
    pub(super) fn publish_to(&self, stats: &SharedStats, own: &Arc<IterStats>) {
        if let Some(team) = &self.team {
            team.pool.publish_to(stats, own, team.coordinator.epoch());
        }
    }

    /// Adds what the workers have done since the last call to the trace.
    pub(super) fn collect_spans(&mut self) {
        if let Some(team) = &mut self.team {
            team.collect_spans();
        }
    }

    /// Returns the number of batches that are ready, if the program has got `returned` batches of this epoch;
    /// `None` after its end.
    pub(super) fn ready(&self, returned: u64) -> Option<u64> {
        self.team.as_ref().map(|team| team.loaded().saturating_sub(returned).min(team.window()))
    }

    /// Returns the epoch's part of the trace.
    pub(super) fn trace(&self) -> Option<PassTracer> {
        self.team.as_ref().and_then(|team| team.trace.clone())
    }

    /// Returns the number of the task whose batch was returned last.
    pub(super) fn last_task(&self) -> Option<u64> {
        self.team.as_ref().and_then(|team| team.last_task)
    }

    /// Returns the tuner's decisions in this epoch.
    pub(super) fn tuning_decisions(&self) -> Vec<TuningDecision> {
        self.tuning.as_ref().map_or_else(Vec::new, |tuning| tuning.decisions().to_vec())
    }

    /// True if the tuner has tried more workers without a gain.
    pub(super) fn has_tried_more_workers(&self) -> bool {
        self.tuning.as_ref().is_some_and(Tuning::has_tried_more_workers)
    }

    /// Returns what the workers have used in this epoch.
    pub(super) fn resource_use(&self) -> ResourceUse {
        self.team.as_ref().map_or(self.summary.used, Team::resource_use)
    }

    pub(super) fn restarts(&self) -> u64 {
        self.team.as_ref().map_or(self.summary.restarts, |team| team.coordinator.restarts())
    }

    pub(super) fn miscount(&self) -> Option<(usize, u64)> {
        self.team.as_ref().map_or(self.summary.miscount, |team| team.coordinator.miscount())
    }

    pub(super) fn shared_memory_bytes(&self) -> u64 {
        self.slots.bytes()
    }

    pub(super) fn size_hint(&self) -> (usize, Option<usize>) {
        match &self.team {
            Some(team) if !self.is_ended => team.coordinator.size_hint(),
            _ => (0, Some(0)),
        }
    }

    /// Ends the workers, or keeps them for the next epoch.
    fn close(&mut self) {
        let Some(mut team) = self.team.take() else { return };
        // A forked process has its parent's workers, and must not touch what the parent has found.
        if let Some(tuning) = self.tuning.as_mut().filter(|_| team.pool.is_owned()) {
            tuning.end(&mut team);
        }
        team.collect_spans();
        self.summary = team.summary();
        let unwanted = match self.idle.take() {
            Some(idle) => idle.put(team),
            None => Some(team),
        };
        if let Some(mut team) = unwanted {
            team.shut_down();
            // Include what the workers did while they ended.
            self.summary.workers = team.measured().1;
        }
    }
}

impl<B> Drop for WorkerIter<B> {
    fn drop(&mut self) {
        self.close();
    }
}

fn in_forked_process() -> Error {
    let problem = "a forked process cannot share its parent's workers; make an iterator of its own";
    Error::System { what: "loading in a forked process", source: io::Error::other(problem) }
}

/// Returns the next batch, or `None` at the end of the epoch.
///
/// # Errors
/// Errors that belong to no batch or end the iteration. Any other error of a batch is part of the [`Step`].
fn next_batch<B: Batch>(
    team: &mut Team,
    interrupt: Option<&mut Interrupt>,
    last_error: &mut Option<Error>,
) -> Result<Option<Step<B>>, Error> {
    if !team.wait(interrupt)? {
        return Ok(None);
    }
    let Some((taken, outcome)) = team.coordinator.take_next() else { return Ok(None) };
    let worker = taken.worker();
    let Team { coordinator, decoding, trace, last_task, .. } = team;
    *last_task = Some(taken.task());
    let trace = trace.as_ref().filter(|trace| trace.is_continuous()).map(|trace| (trace, Instant::now()));
    let Opened { end, hashes, mut batch, bytes, bad } =
        decoding.measure(|| open(coordinator, &taken, outcome));
    if let Some((trace, started)) = trace {
        trace.decoded(started, taken.batch());
    }
    if let Err(error) = batch.as_ref()
        && error.ends_iteration()
    {
        team.coordinator.put_back(taken);
        return batch.map(|_| None);
    }
    let mut info = team.coordinator.returned(taken, end, bad);
    info.bytes = bytes;
    if let Some(hashes) = hashes
        && !info.set_digest(&hashes)
    {
        let problem = format!("it has {} hashes for {} samples", hashes.len(), info.samples);
        batch = Err(Error::BatchNotReadable { batch: info.number, worker, problem });
    }
    // Send the next task before this batch is returned, so that its worker never waits for the user. If
    // memory is short, the next call tries again, and returns the error.
    *last_error = team.send_tasks().err().filter(Error::ends_iteration);
    fault::point(Point::MainReturn);
    Ok(Some((Some(info), batch)))
}

/// An outcome, with its batch decoded.
struct Opened<B> {
    end: ShardEnd,
    /// The hashes of the samples, with the option `digest`.
    hashes: Option<Vec<u128>>,
    /// `None` if all samples of the batch were left out.
    batch: Result<Option<B>, Error>,
    /// Number of bytes that the batch takes in its slot.
    bytes: u64,
    bad: Vec<BadSampleRecord>,
}

/// Decodes the batch of an outcome. Its tensors stay in the slot.
fn open<B: Batch>(coordinator: &Coordinator, taken: &Taken, outcome: Outcome) -> Opened<B> {
    let (worker, batch) = (taken.worker(), taken.batch());
    let failed = |end, error| Opened { end, hashes: None, batch: Err(error), bytes: 0, bad: Vec::new() };
    let (lease, encoded, held, position, bad, schema) = match outcome {
        // Main does not know where the lost batch ends in its shard. A resumed run begins with this batch.
        Outcome::Lost(error) => {
            return failed(ShardEnd { after: AfterFailure::EndsForEpoch, ..ShardEnd::default() }, *error);
        }
        Outcome::Failed { failure, position, after } => {
            let end = ShardEnd { position, snapshot: None, after };
            return failed(end, Error::from_failure(*failure, batch, Some(worker)));
        }
        Outcome::AllSamplesBad { position, bad } => {
            let end = ShardEnd { position, ..ShardEnd::default() };
            return Opened { end, hashes: None, batch: Ok(None), bytes: 0, bad };
        }
        Outcome::Batch { lease, encoded, held, position, bad, schema } => {
            (lease, encoded, held, position, bad, schema)
        }
    };
    let unreadable = |problem: String| Error::BatchNotReadable { batch, worker, problem };
    let used = encoded.start.saturating_add(encoded.len);
    let loan = coordinator.slots().lend(lease, used, held).map_err(|error| unreadable(error.to_string()));
    let schema = schema.as_deref();
    let decoded = loan.and_then(|loan| {
        let decoded: Result<(_, ShardBatch<B>), _> =
            match (coordinator.has_shards(), coordinator.has_hashes()) {
                (false, false) => decode(loan, encoded, schema).map(|batch| (None, (None, batch))),
                (false, true) => {
                    decode(loan, encoded, schema).map(|(hashes, batch)| (Some(hashes), (None, batch)))
                }
                (true, false) => decode(loan, encoded, schema).map(|batch| (None, batch)),
                (true, true) => decode(loan, encoded, schema).map(|(hashes, batch)| (Some(hashes), batch)),
            };
        decoded.map_err(|problem| match problem {
            Problem::Decode(error) => unreadable(error.to_string()),
            Problem::Differs(difference) => Error::ProgramsDiffer { batch, worker, difference },
        })
    });
    let (hashes, snapshot, batch) = match decoded {
        Ok((hashes, (snapshot, batch))) => (hashes, snapshot, Ok(Some(batch))),
        Err(error) => (None, None, Err(error)),
    };
    let bytes = if batch.is_ok() { used } else { 0 };
    Opened { end: ShardEnd { position, snapshot, ..ShardEnd::default() }, hashes, batch, bytes, bad }
}

/// Why main does not return a batch.
enum Problem {
    Decode(DecodeError),
    /// The batch has another schema in the worker. Contains what differs.
    Differs(String),
}

/// Decodes a batch, and compares its schema with the one that the worker has sent, if it has. The worker is then
/// another program.
fn decode<B: Batch>(loan: Loan, encoded: Encoded, schema: Option<&Schema>) -> Result<B, Problem> {
    let batch = lent::decode(loan, encoded).map_err(Problem::Decode)?;
    match schema.and_then(|worker| Schema::of(&batch).difference(worker)) {
        Some(difference) => Err(Problem::Differs(format!("in the batches, {difference}"))),
        None => Ok(batch),
    }
}
