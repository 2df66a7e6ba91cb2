//! Handles the deaths of workers.
//!
//! Tasks belong to main, and a worker's lease for a task ends with its process. Another process replaces it
//! and loads the unfinished tasks again. So the user gets each batch once and at its position, whatever
//! happens to workers.
//!
//! A batch that ends its worker each time must not end the epoch: main gives it up, and the error names its
//! samples.
//!
//! A death on a task counts for the task ([`Suspects`]). A death outside of tasks, or because the worker
//! broke the protocol, counts for the worker, so that a worker that cannot open the dataset, or that dies
//! whenever it waits, is not restarted without end. The count of a worker returns to zero when one of its
//! processes answers a task, so that kills from outside do not end a run that makes progress.

use std::{mem, time::Duration};

use loader_ipc::{
    control::{WorkerSnapshot, WorkerState},
    frame::{ExitStatus, StreamPosition},
    violation::ProtocolViolation,
};
use nix::sys::signal::Signal;

use super::{
    Coordinator, Phase,
    crew::Crew,
    pending::{Outcome, Pending},
    suspects::{Blame, DiedAt, Evidence, Suspects},
};
use crate::{
    data::fetch::BatchRequest,
    error::{
        Error,
        exit::{ExitCause, WorkerActivity, WorkerExit},
    },
    options::OnBadSample,
    report::warning::Warning,
};

/// Pause before main tries again to start a worker. Meanwhile descriptors or processes may become available.
const PAUSE: Duration = Duration::from_millis(100);

/// The deaths of workers in an epoch.
#[derive(Debug)]
pub(super) struct Deaths {
    /// Maximum number of consecutive deaths that count for a worker; 0 if dead workers are not replaced.
    max: u32,
    suspects: Suspects,
    /// Number of deaths after which another process was started.
    replaced: u64,
}

/// The deaths of one worker in an epoch.
#[derive(Debug, Default)]
pub(super) struct DeathRecord {
    /// Number of consecutive deaths that count for the worker.
    consecutive: u32,
    /// Why the worker is about to end, if main knows.
    cause: Option<Cause>,
    /// True if its current process has answered a task.
    was_useful: bool,
}

/// Why a worker is about to end.
#[derive(Debug)]
pub(super) enum Cause {
    /// Main killed it because it broke the protocol.
    Expelled(ProtocolViolation),
    /// Main killed it because it was on a sample for too long. `sample` is `None` if the worker was loading
    /// several samples at once.
    Stuck { task: u64, sample: Option<usize> },
    /// Main killed it because it made no progress, or could not continue.
    NoProgress(ExitCause),
    /// Main killed it because it took too long for a task that another worker has or has answered.
    LateAttempt,
    /// It ends by itself because it exceeds its memory limit.
    Oversized,
    /// It ends by itself because code of the loader in it has failed.
    LoaderFailed(String),
}

impl Cause {
    /// Returns the cause as the user sees it.
    fn public(&self) -> ExitCause {
        match self {
            Self::Expelled(violation) => ExitCause::Misbehaved(violation.clone()),
            Self::Stuck { .. } => ExitCause::SampleTimedOut,
            Self::NoProgress(cause) => cause.clone(),
            Self::LateAttempt => ExitCause::LateAttempt,
            Self::Oversized => ExitCause::MemoryLimitExceeded,
            Self::LoaderFailed(problem) => ExitCause::LoaderFailed(problem.clone()),
        }
    }
}

impl Deaths {
    pub(super) fn new(max: u32) -> Self {
        Self { max, suspects: Suspects::default(), replaced: 0 }
    }

    /// True if workers that die are replaced.
    pub(super) fn are_replaced(&self) -> bool {
        self.max > 0
    }

    /// Returns the number of deaths after which another process was started.
    pub(super) fn replaced(&self) -> u64 {
        self.replaced
    }
}

impl DeathRecord {
    /// Returns why the worker is about to end, or has ended, if main knows.
    pub(super) fn cause(&self) -> Option<ExitCause> {
        self.cause.as_ref().map(Cause::public)
    }

    /// True if main knows why the worker is about to end.
    pub(super) fn is_expected(&self) -> bool {
        self.cause.is_some()
    }

    /// Notes why the worker is about to end. Later causes are ignored.
    pub(super) fn expect(&mut self, cause: Cause) {
        self.cause.get_or_insert(cause);
    }

    /// Counts a death for the worker. True if there are more than `max`, so that it must not be started again.
    fn count(&mut self, max: u32) -> bool {
        self.consecutive += 1;
        self.consecutive > max
    }
}

impl Coordinator {
    /// Notes that a worker has answered a task.
    pub(super) fn note_answer(&mut self, worker: usize, task: u64) {
        let record = &mut self.roster[worker].death_record;
        (record.was_useful, record.consecutive) = (true, 0);
        self.deaths.suspects.acquit(task);
    }

    /// Handles the end of a worker's process. Everything that the worker had reported was handled before.
    pub(super) fn worker_exited(
        &mut self,
        worker: usize,
        pid: u32,
        status: ExitStatus,
        crew: &mut impl Crew,
    ) -> Result<(), Error> {
        let second = self.attempts.task_of(worker);
        self.forget_process(worker);
        if self.note_left(worker, &status.to_string(), crew) {
            return Ok(());
        }
        if self.phase != Phase::Loading {
            return Err(self.ended_while_idle(worker, pid, status, crew));
        }
        if self.schedule.is_over(worker) {
            return self.ended_after_its_tasks(worker, pid, status, crew);
        }
        let doing = self.doing(worker, crew);
        let task = self.task_of_death(worker, crew);
        // A death on a second attempt does not count for the task, whose first attempt continues.
        let is_at_task = task.is_some() || second.is_some();
        let batches = self.batches_of(worker);
        let record = &mut self.roster[worker].death_record;
        let (was_useful, cause) = (mem::take(&mut record.was_useful), record.cause.take());
        let is_counted = self.counts_for_worker(cause.as_ref(), is_at_task, was_useful);
        let mut exit = WorkerExit { status, cause: cause.as_ref().map(Cause::public) };
        // Only of a SIGKILL that main did not send.
        if exit.cause.is_none() && exit.is_sigkill() && crew.has_oom_killer_acted() {
            exit.cause = Some(ExitCause::OutOfMemory);
        }
        if is_counted && self.roster[worker].death_record.count(self.deaths.max) {
            return Err(match cause {
                Some(Cause::Expelled(violation)) => Error::misbehaved(worker, violation),
                _ => {
                    let (doing, deaths) = (Box::new(doing), self.roster[worker].death_record.consecutive);
                    Error::WorkerExited { worker, pid, exit, batches, doing, deaths }
                }
            });
        }
        let noted = match cause {
            None | Some(Cause::NoProgress(_) | Cause::LoaderFailed(_)) => {
                task.map_or(Ok(()), |task| self.note_death_on(task, &doing, &exit, crew))
            }
            Some(Cause::Stuck { task, sample }) => self.handle_stuck(worker, task, sample, crew),
            Some(Cause::Expelled(_) | Cause::LateAttempt | Cause::Oversized) => Ok(()),
        };
        // This may find that another worker has broken the protocol. The dead worker is replaced
        // nevertheless.
        noted.or_else(|error| self.survive(error, crew))?;
        let deaths = if is_counted { self.roster[worker].death_record.consecutive } else { 0 };
        let (batches, max) = (self.batches_of(worker), self.deaths.max);
        crew.warn(&Warning::WorkerReplaced {
            worker,
            pid,
            exit,
            doing,
            batches,
            deaths,
            max_worker_deaths: max,
        });
        self.deaths.replaced += 1;
        self.start_process(worker, Duration::ZERO, crew)?;
        self.send_again(worker, crew)
    }

    /// Handles the end of a worker that gets no more tasks in this epoch. It is not replaced. The next epoch would need
    /// it, so all workers end after this epoch.
    fn ended_after_its_tasks(
        &mut self,
        worker: usize,
        pid: u32,
        status: ExitStatus,
        crew: &mut impl Crew,
    ) -> Result<(), Error> {
        if self.persistent {
            let error = self.ended_while_idle(worker, pid, status, crew);
            if !self.deaths.are_replaced() && !self.roster[worker].death_record.is_expected() {
                return Err(error);
            }
            crew.warn(&Warning::WorkersReplaced { problem: error.to_string() });
            self.persistent = false;
        }
        // It must not get the shards of workers that are parked later.
        self.schedule.finish(worker);
        // Another process may take its number later, and must not count as one that main has killed.
        self.roster[worker].death_record = DeathRecord::default();
        Ok(())
    }

    /// Forgets the commands sent to a worker's process, its requests and its offers, and releases the slots
    /// of its second attempts and of its attempts that have lost.
    fn forget_process(&mut self, worker: usize) {
        self.roster[worker].forget_process();
        self.leasing.forget_worker(worker);
        while let Some(attempt) = self.attempts.take_any_of(worker) {
            self.leasing.slots().release(attempt.lease, false);
        }
    }

    /// True if a death counts for the worker, not for the task that it was on.
    fn counts_for_worker(&self, cause: Option<&Cause>, is_at_task: bool, was_useful: bool) -> bool {
        match cause {
            None | Some(Cause::NoProgress(_) | Cause::LoaderFailed(_)) => {
                !is_at_task || !self.deaths.are_replaced()
            }
            // Main had told the worker that the sample is bad, and the worker loaded it nevertheless.
            Some(Cause::Stuck { sample, .. }) => sample.is_some_and(|sample| self.known_bad.contains(sample)),
            Some(Cause::Expelled(_)) => true,
            Some(Cause::LateAttempt) => false,
            // A worker that is too large before it has answered a task would otherwise be replaced without
            // end.
            Some(Cause::Oversized) => !was_useful,
        }
    }

    /// Returns the task that a dead worker was on, unless the worker had answered it.
    fn task_of_death(&self, worker: usize, crew: &impl Crew) -> Option<u64> {
        let WorkerSnapshot { state, task, .. } = crew.snapshot(worker);
        let is_at_task = matches!(
            state,
            WorkerState::Fetching | WorkerState::FetchingMany | WorkerState::Collating | WorkerState::Sending
        );
        let is_its_own = self.schedule.worker_of(task) == Some(worker);
        (is_at_task && self.schedule.is_waiting(task) && is_its_own).then_some(task)
    }

    /// Handles a worker's report that it ends because it exceeds its memory limit.
    pub(super) fn worker_oversized(
        &mut self,
        worker: usize,
        resident: u64,
        crew: &mut impl Crew,
    ) -> Result<(), Error> {
        let Some(limit) = self.options.memory_limit else {
            return Err(Error::misbehaved(worker, ProtocolViolation::NoMemoryLimit));
        };
        self.roster.note_bye(worker)?;
        crew.warn(&Warning::WorkerOversized { worker, pid: crew.pid(worker), resident, limit });
        self.roster[worker].death_record.expect(Cause::Oversized);
        Ok(())
    }

    /// Handles a worker's report that it ends because code of the loader in it has failed.
    pub(super) fn loader_failed(&mut self, worker: usize, problem: String) -> Result<(), Error> {
        self.roster.note_bye(worker)?;
        self.roster[worker].death_record.expect(Cause::LoaderFailed(problem));
        Ok(())
    }

    /// Notes that a worker died on a task. If a sample is found to be the cause, it is noted as bad; if the
    /// task is, it is given up.
    fn note_death_on(
        &mut self,
        task: u64,
        doing: &WorkerActivity,
        exit: &WorkerExit,
        crew: &mut impl Crew,
    ) -> Result<(), Error> {
        let by_sample = self.options.fetch.on_bad_sample != OnBadSample::Error && !self.supply.has_shards();
        // Loading the samples one by one shows which sample of a `get_many` kills the worker.
        if doing.state == WorkerState::FetchingMany && by_sample && self.known_bad.load_one_by_one(task) {
            return Ok(());
        }
        let is_sample = doing.state == WorkerState::Fetching;
        let is_read_again =
            is_sample && self.schedule.get(task).is_some_and(|task| is_before(doing.index, task.wanted()));
        let at = DiedAt { state: doing.state, sample: is_sample.then_some(doing.index), is_read_again };
        let deaths = match self.deaths.suspects.note(task, at, evidence_of(exit), by_sample && is_sample) {
            None => return Ok(()),
            Some(Blame::Sample { deaths }) => {
                let reason = format!("it has ended {deaths} workers, the last one {exit}");
                if self.note_bad(task, doing.index, reason) {
                    return Ok(());
                }
                self.deaths.suspects.acquit(task);
                deaths
            }
            Some(Blame::Task { deaths }) => deaths,
        };
        let (exit, doing) = (exit.clone(), Box::new(doing.clone()));
        let WorkerActivity { worker, pid, batch, .. } = *doing;
        let error = |indices| Error::BatchGivenUp { batch, indices, deaths, worker, pid, exit, doing };
        self.give_up(task, error, crew)
    }

    /// Notes that a sample is bad. Returns false if the task must be given up instead: the list of bad
    /// samples in its frame is full without this one, so the next worker would load it again.
    pub(super) fn note_bad(&mut self, task: u64, sample: usize, reason: String) -> bool {
        self.known_bad.note(sample, reason);
        let told = self.schedule.get(task).map(|pending| self.known_bad.for_task(task, pending.wanted()));
        told.is_none_or(|told| told.contains(&(sample as u64)))
    }

    /// Handles the end of an attempt to start a worker: takes over the new process, or tries again if that can help.
    pub(super) fn worker_started(&mut self, worker: usize, crew: &mut impl Crew) -> Result<(), Error> {
        if self.take_started(worker, crew)? {
            return Ok(());
        }
        match crew.adopt(worker) {
            Ok(()) => self.roster.send_backlog(worker, crew),
            // The worker was parked meanwhile, and its tasks were moved.
            Err(error) if self.note_left(worker, &error.to_string(), crew) => Ok(()),
            Err(error) if is_final(&error) || self.roster[worker].death_record.count(self.deaths.max) => {
                Err(error)
            }
            Err(error) => {
                let (deaths, max_worker_deaths) =
                    (self.roster[worker].death_record.consecutive, self.deaths.max);
                let problem = error.to_string();
                crew.warn(&Warning::WorkerNotReplaced { worker, problem, deaths, max_worker_deaths });
                self.start_process(worker, PAUSE, crew)
            }
        }
    }

    /// Kills the worker if `error` says that it broke the protocol. It is then replaced after its exit.
    ///
    /// # Errors
    /// `error` itself if it is a different error, or if workers are not replaced.
    pub(super) fn survive(&mut self, error: Error, crew: &mut impl Crew) -> Result<(), Error> {
        let Error::WorkerMisbehaved { worker, violation } = error else { return Err(error) };
        // Main does not believe the worker's other reports either.
        crew.kill(worker, false);
        if !self.deaths.are_replaced() {
            return Err(Error::WorkerMisbehaved { worker, violation });
        }
        self.roster[worker].death_record.expect(Cause::Expelled(violation));
        Ok(())
    }

    /// Gives up a task: the error that `error` makes from the batch's indices takes the batch's place.
    pub(super) fn give_up(
        &mut self,
        task: u64,
        error: impl FnOnce(Vec<usize>) -> Error,
        crew: &mut impl Crew,
    ) -> Result<(), Error> {
        if let Some(second) = self.attempts.take_second_at(task) {
            self.lose(second, crew)?;
        }
        self.leasing.undefer(task);
        let Some(pending) = self.schedule.get_mut(task) else { return Ok(()) };
        let (indices, shard) = match pending.wanted() {
            BatchRequest::Samples(indices) => (indices.clone(), None),
            BatchRequest::NextOf { shard, .. } => (Vec::new(), Some(*shard)),
        };
        let lease = pending.take_lease();
        pending.set_outcome(Outcome::Lost(Box::new(error(indices))));
        if let Some(lease) = lease {
            self.leasing.slots().release(lease, false);
        }
        if let Some(shard) = shard {
            self.supply.reached(shard, StreamPosition::default(), true);
            self.end_shard(shard);
        }
        let was_waiting = self.schedule.arrived(task);
        debug_assert!(was_waiting, "the worker had not answered it");
        Ok(())
    }

    /// Ends a shard whose batch was given up: main sends no more tasks of it. A worker would answer the next
    /// task with the samples of the lost batch, or, if the lost task was to open the shard again, with the
    /// samples at the beginning of the shard. Tasks of the shard that wait for a slot end without a batch.
    /// [`send_again`](Self::send_again) handles the tasks that have a slot, because their worker has died.
    fn end_shard(&mut self, shard: usize) {
        let is_of_shard =
            |task: &Pending| matches!(task.wanted(), BatchRequest::NextOf { shard: of, .. } if *of == shard);
        let is_it = |&task: &u64| self.schedule.get(task).is_some_and(is_of_shard);
        let deferred: Vec<u64> = self.leasing.deferred().filter(is_it).collect();
        deferred.into_iter().for_each(|task| self.end_without_batch(task, false));
        self.schedule.close_lane(shard);
    }

    /// Gives a worker that is being restarted the tasks that its last process had not answered.
    fn send_again(&mut self, worker: usize, crew: &mut impl Crew) -> Result<(), Error> {
        let over = self.supply.reopen(&self.schedule.lanes_of(worker));
        let tasks = self.schedule.waiting_at(worker);
        // A task without a slot must wait for one. The tasks behind it wait too, because a shard is read in
        // order.
        let all_have_slots = tasks.iter().all(|&task| self.schedule.get(task).is_some_and(Pending::has_slot));
        for number in tasks {
            let Some(task) = self.schedule.get_mut(number) else { continue };
            task.start_again();
            let lease = task.lease().filter(|_| all_have_slots);
            if let BatchRequest::NextOf { shard, .. } = *task.wanted() {
                if over.contains(&shard) {
                    self.end_without_batch(number, false);
                    continue;
                }
                task.set_wanted(self.supply.again(shard, lease.map_or(u64::MAX, |lease| lease.len)));
            }
            match lease {
                Some(lease) => self.give(number, worker, lease, crew)?,
                None => self.defer(number),
            }
        }
        over.into_iter().for_each(|shard| self.schedule.close_lane(shard));
        Ok(())
    }
}

/// True if a worker reads the item `position` of a shard before it comes to the first item that is wanted.
fn is_before(position: usize, wanted: &BatchRequest) -> bool {
    matches!(wanted, BatchRequest::NextOf { open_at, .. } if (position as u64) < open_at.position.items)
}

/// True if a worker did not start for a reason that does not go away.
fn is_final(error: &Error) -> bool {
    matches!(error, Error::WorkerNotStarted { source, .. } if source.is_final())
}

/// Returns what a death proves about its task.
fn evidence_of(exit: &WorkerExit) -> Evidence {
    match exit.status {
        _ if matches!(exit.cause, Some(ExitCause::LifelineClosed | ExitCause::LoaderFailed(_))) => {
            Evidence::Crash
        }
        // Main or the OOM killer has killed the worker.
        _ if exit.cause.is_some() => Evidence::Loss,
        status if is_crash(status) => Evidence::Crash,
        ExitStatus::Unknown => Evidence::Unknown,
        _ => Evidence::Kill,
    }
}

/// True if a process ended by itself, or by a signal for something that it did; false if another process may
/// have sent the signal.
fn is_crash(status: ExitStatus) -> bool {
    match status {
        ExitStatus::Code(_) => true,
        ExitStatus::Signal { signal, .. } => matches!(
            Signal::try_from(signal),
            Ok(Signal::SIGABRT
                | Signal::SIGBUS
                | Signal::SIGFPE
                | Signal::SIGILL
                | Signal::SIGSEGV
                | Signal::SIGSYS
                | Signal::SIGTRAP
                | Signal::SIGXCPU
                | Signal::SIGXFSZ)
        ),
        _ => false,
    }
}
