//! What main knows of each worker. Only this table and the lanes of the [`Schedule`](super::schedule::Schedule) have an
//! entry for each worker.

use std::{
    collections::VecDeque,
    mem,
    ops::{Index, IndexMut},
};

use loader_ipc::{frame::MAX_UNANSWERED, violation::ProtocolViolation};

use super::{
    crew::{Crew, UnsentTask},
    deaths::DeathRecord,
    progress::Observation,
    workforce::Standing,
};
use crate::{error::Error, report::epoch_report::WorkerReport};

/// The workers, by their numbers.
#[derive(Debug, Default)]
pub(super) struct Roster(Vec<Member>);

/// A worker, which has one process after another.
#[derive(Debug)]
pub(super) struct Member {
    /// Whether it gets tasks.
    pub(super) standing: Standing,
    /// What was sent to its process and heard from it.
    process: ProcessState,
    /// What main has observed of its process while it waited for batches; `None` for a worker without work.
    pub(super) observation: Option<Observation>,
    pub(super) death_record: DeathRecord,
    /// Its counters at the start of the epoch, or when it was added.
    pub(super) counters_before: WorkerReport,
}

/// The tasks that a worker has to answer, and what its process has reported about itself.
#[derive(Debug, Default)]
struct ProcessState {
    /// Tasks that main has not sent yet, because the worker has enough to do or its process is being
    /// replaced.
    backlog: VecDeque<UnsentTask>,
    /// The epoch of which main will tell the worker after its backlog; `None` once main has told it.
    resume: Option<u64>,
    /// Tasks that main has sent and the worker has not answered.
    unanswered: VecDeque<Unanswered>,
    /// Number of the claim of the next task. The `MAX_UNANSWERED` claims are used in turn, so two unanswered
    /// tasks never share a claim.
    next_claim: u32,
    /// True if the worker could open the dataset; `None` before it reports that.
    is_fit: Option<bool>,
    /// True once the worker has reported that it ends.
    has_sent_bye: bool,
}

/// A task that main has sent to a worker.
#[derive(Debug)]
struct Unanswered {
    task: u64,
    claim: u32,
    is_withdrawn: bool,
}

impl Member {
    fn new(standing: Standing, counters_before: WorkerReport) -> Self {
        let (process, observation, death_record) = Default::default();
        Self { standing, process, observation, death_record, counters_before }
    }

    /// Forgets the process, which has ended.
    pub(super) fn forget_process(&mut self) {
        (self.process, self.observation) = Default::default();
    }
}

impl Roster {
    pub(super) fn new(workers: usize, crew: &impl Crew) -> Self {
        Self((0..workers).map(|worker| Member::new(Standing::Working, worker_report(worker, crew))).collect())
    }

    /// Adds a worker, which gets tasks once it has opened the dataset.
    pub(super) fn add(&mut self, crew: &impl Crew) {
        self.0.push(Member::new(Standing::Joining, worker_report(self.len(), crew)));
    }

    /// Forgets what belongs to the last epoch.
    pub(super) fn begin_epoch(&mut self, crew: &impl Crew) {
        for (worker, member) in self.0.iter_mut().enumerate() {
            (member.observation, member.death_record) = Default::default();
            member.counters_before = worker_report(worker, crew);
        }
    }

    /// Returns the number of workers, including those that were removed.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn members(&self) -> &[Member] {
        &self.0
    }

    /// Sends a task to a worker, at once or after the worker has answered enough of its earlier tasks.
    pub(super) fn give(
        &mut self,
        worker: usize,
        task: UnsentTask,
        crew: &mut impl Crew,
    ) -> Result<(), Error> {
        self.0[worker].process.backlog.push_back(task);
        self.send_backlog(worker, crew)
    }

    /// Tells a worker that an epoch begins, at once or after main has sent the worker's backlog: the worker takes what
    /// follows for tasks of this epoch.
    pub(super) fn resume(&mut self, worker: usize, epoch: u64, crew: &mut impl Crew) -> Result<(), Error> {
        self.0[worker].process.resume = Some(epoch);
        self.send_backlog(worker, crew)
    }

    /// Sends tasks of the backlog while the worker's queue is certain to have room.
    pub(super) fn send_backlog(&mut self, worker: usize, crew: &mut impl Crew) -> Result<(), Error> {
        let process = &mut self.0[worker].process;
        while !crew.is_down(worker) && process.unanswered.len() < MAX_UNANSWERED {
            let Some(task) = process.backlog.pop_front() else { break };
            let claim = process.next_claim;
            process.next_claim = (claim + 1) % MAX_UNANSWERED as u32;
            process.unanswered.push_back(Unanswered { task: task.number, claim, is_withdrawn: false });
            crew.give(worker, task, claim)?;
        }
        match process.resume.take_if(|_| process.backlog.is_empty()) {
            Some(epoch) => crew.resume(worker, epoch),
            None => Ok(()),
        }
    }

    /// Withdraws a task. Returns false if the worker has begun it, or does not have it.
    pub(super) fn withdraw(&mut self, worker: usize, task: u64, crew: &mut impl Crew) -> bool {
        let ProcessState { backlog, unanswered, .. } = &mut self.0[worker].process;
        if let Some(position) = backlog.iter().position(|waiting| waiting.number == task) {
            return backlog.remove(position).is_some();
        }
        let sent = unanswered.iter_mut().find(|sent| sent.task == task && !sent.is_withdrawn);
        sent.is_some_and(|sent| {
            sent.is_withdrawn = crew.withdraw(worker, sent.claim);
            sent.is_withdrawn
        })
    }

    /// Notes that a worker has answered a task.
    pub(super) fn answered(&mut self, worker: usize, task: u64, crew: &mut impl Crew) -> Result<(), Error> {
        self.remove(worker, task, false);
        self.send_backlog(worker, crew)
    }

    /// Notes that a worker has skipped a withdrawn task.
    pub(super) fn saw_withdrawn(
        &mut self,
        worker: usize,
        task: u64,
        crew: &mut impl Crew,
    ) -> Result<(), Error> {
        if self.remove(worker, task, true) {
            self.send_backlog(worker, crew)
        } else {
            Err(Error::misbehaved(worker, ProtocolViolation::NotWithdrawn { task }))
        }
    }

    /// Removes a task from the unanswered ones. Returns false if it is not among them.
    fn remove(&mut self, worker: usize, task: u64, is_withdrawn: bool) -> bool {
        let unanswered = &mut self.0[worker].process.unanswered;
        // A worker answers its tasks in order, so this finds the first entry unless the worker misbehaves.
        let is_answered = |sent: &Unanswered| sent.task == task && sent.is_withdrawn == is_withdrawn;
        let position = unanswered.iter().position(is_answered);
        position.is_some_and(|position| unanswered.remove(position).is_some())
    }

    /// True if the worker has answered all of its tasks.
    pub(super) fn is_free(&self, worker: usize) -> bool {
        let ProcessState { backlog, unanswered, .. } = &self.0[worker].process;
        backlog.is_empty() && unanswered.is_empty()
    }

    /// True if an offer can reach the worker soon, and its queue has room for it.
    pub(super) fn takes_offers(&self, worker: usize, crew: &impl Crew) -> bool {
        let ProcessState { backlog, unanswered, .. } = &self.0[worker].process;
        backlog.is_empty() && unanswered.len() < MAX_UNANSWERED && crew.takes_tasks(worker)
    }

    /// True if tasks of other workers can be moved to this one.
    pub(super) fn takes_moved_tasks(&self, worker: usize, crew: &impl Crew) -> bool {
        self.0[worker].process.is_fit != Some(false) && crew.takes_tasks(worker)
    }

    /// True if no worker has reported that it could not open the dataset.
    pub(super) fn all_are_fit(&self) -> bool {
        self.0.iter().all(|member| member.process.is_fit != Some(false))
    }

    /// Notes whether a worker could open the dataset. If not, it fails every task.
    ///
    /// # Errors
    /// If the worker has reported it before. Otherwise a worker could keep main busy with such reports
    /// forever.
    pub(super) fn note_opened(&mut self, worker: usize, is_fit: bool) -> Result<(), Error> {
        match self.0[worker].process.is_fit.replace(is_fit) {
            None => Ok(()),
            Some(_) => Err(Error::misbehaved(worker, ProtocolViolation::ReadyTwice)),
        }
    }

    /// True once the worker has reported whether it could open the dataset.
    pub(super) fn has_opened(&self, worker: usize) -> bool {
        self.0[worker].process.is_fit.is_some()
    }

    /// Notes a worker's report that it ends.
    ///
    /// # Errors
    /// If the worker has reported it before.
    pub(super) fn note_bye(&mut self, worker: usize) -> Result<(), Error> {
        if mem::replace(&mut self.0[worker].process.has_sent_bye, true) {
            Err(Error::misbehaved(worker, ProtocolViolation::ByeTwice))
        } else {
            Ok(())
        }
    }

    /// True once the worker has reported that it ends.
    pub(super) fn has_sent_bye(&self, worker: usize) -> bool {
        self.0[worker].process.has_sent_bye
    }
}

impl Index<usize> for Roster {
    type Output = Member;

    fn index(&self, worker: usize) -> &Member {
        &self.0[worker]
    }
}

impl IndexMut<usize> for Roster {
    fn index_mut(&mut self, worker: usize) -> &mut Member {
        &mut self.0[worker]
    }
}

/// Returns what a worker has done since it was started.
pub(super) fn worker_report(worker: usize, crew: &impl Crew) -> WorkerReport {
    WorkerReport::new(&crew.snapshot(worker), crew.cpu_use(worker))
}
