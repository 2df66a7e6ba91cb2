//! The tasks that each worker has to answer, and what each worker has reported about itself.

use std::{collections::VecDeque, mem};

use loader_ipc::{frame::MAX_UNANSWERED, violation::ProtocolViolation};

use super::crew::{Crew, UnsentTask};
use crate::error::Error;

/// The protocol state of every worker.
#[derive(Debug, Default)]
pub(super) struct Roster(Vec<Member>);

#[derive(Debug, Default)]
struct Member {
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

impl Roster {
    pub(super) fn new(workers: usize) -> Self {
        Self((0..workers).map(|_| Member::default()).collect())
    }

    /// Adds a worker.
    pub(super) fn add(&mut self) {
        self.0.push(Member::default());
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Sends a task to a worker, at once or after the worker has answered enough of its earlier tasks.
    pub(super) fn give(
        &mut self,
        worker: usize,
        task: UnsentTask,
        crew: &mut impl Crew,
    ) -> Result<(), Error> {
        self.0[worker].backlog.push_back(task);
        self.send_backlog(worker, crew)
    }

    /// Tells a worker that an epoch begins, at once or after main has sent the worker's backlog: the worker takes what
    /// follows for tasks of this epoch.
    pub(super) fn resume(&mut self, worker: usize, epoch: u64, crew: &mut impl Crew) -> Result<(), Error> {
        self.0[worker].resume = Some(epoch);
        self.send_backlog(worker, crew)
    }

    /// Sends tasks of the backlog while the worker's queue is certain to have room.
    pub(super) fn send_backlog(&mut self, worker: usize, crew: &mut impl Crew) -> Result<(), Error> {
        let member = &mut self.0[worker];
        while !crew.is_down(worker) && member.unanswered.len() < MAX_UNANSWERED {
            let Some(task) = member.backlog.pop_front() else { break };
            let claim = member.next_claim;
            member.next_claim = (claim + 1) % MAX_UNANSWERED as u32;
            member.unanswered.push_back(Unanswered { task: task.number, claim, is_withdrawn: false });
            crew.give(worker, task, claim)?;
        }
        match member.resume.take_if(|_| member.backlog.is_empty()) {
            Some(epoch) => crew.resume(worker, epoch),
            None => Ok(()),
        }
    }

    /// Withdraws a task. Returns false if the worker has begun it, or does not have it.
    pub(super) fn withdraw(&mut self, worker: usize, task: u64, crew: &mut impl Crew) -> bool {
        let Member { backlog, unanswered, .. } = &mut self.0[worker];
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
        match self.remove(worker, task, true) {
            true => self.send_backlog(worker, crew),
            false => Err(Error::misbehaved(worker, ProtocolViolation::NotWithdrawn { task })),
        }
    }

    /// Removes a task from the unanswered ones. Returns false if it is not among them.
    fn remove(&mut self, worker: usize, task: u64, is_withdrawn: bool) -> bool {
        let unanswered = &mut self.0[worker].unanswered;
        // A worker answers its tasks in order, so this finds the first entry unless the worker misbehaves.
        let is_answered = |sent: &Unanswered| sent.task == task && sent.is_withdrawn == is_withdrawn;
        let position = unanswered.iter().position(is_answered);
        position.is_some_and(|position| unanswered.remove(position).is_some())
    }

    /// True if the worker has answered all of its tasks.
    pub(super) fn is_free(&self, worker: usize) -> bool {
        let Member { backlog, unanswered, .. } = &self.0[worker];
        backlog.is_empty() && unanswered.is_empty()
    }

    /// True if an offer can reach the worker soon, and its queue has room for it.
    pub(super) fn takes_offers(&self, worker: usize, crew: &impl Crew) -> bool {
        let Member { backlog, unanswered, .. } = &self.0[worker];
        backlog.is_empty() && unanswered.len() < MAX_UNANSWERED && crew.takes_tasks(worker)
    }

    /// True if tasks of other workers can be moved to this one.
    pub(super) fn takes_moved_tasks(&self, worker: usize, crew: &impl Crew) -> bool {
        self.0[worker].is_fit != Some(false) && crew.takes_tasks(worker)
    }

    /// True if no worker has reported that it could not open the dataset.
    pub(super) fn all_are_fit(&self) -> bool {
        self.0.iter().all(|member| member.is_fit != Some(false))
    }

    /// Notes whether a worker could open the dataset. If not, it fails every task.
    ///
    /// # Errors
    /// If the worker has reported it before. Otherwise a worker could keep main busy with such reports
    /// forever.
    pub(super) fn note_opened(&mut self, worker: usize, is_fit: bool) -> Result<(), Error> {
        match self.0[worker].is_fit.replace(is_fit) {
            None => Ok(()),
            Some(_) => Err(Error::misbehaved(worker, ProtocolViolation::ReadyTwice)),
        }
    }

    /// True once the worker has reported whether it could open the dataset.
    pub(super) fn has_opened(&self, worker: usize) -> bool {
        self.0[worker].is_fit.is_some()
    }

    /// Notes a worker's report that it ends.
    ///
    /// # Errors
    /// If the worker has reported it before.
    pub(super) fn note_bye(&mut self, worker: usize) -> Result<(), Error> {
        match mem::replace(&mut self.0[worker].has_sent_bye, true) {
            false => Ok(()),
            true => Err(Error::misbehaved(worker, ProtocolViolation::ByeTwice)),
        }
    }

    /// True once the worker has reported that it ends.
    pub(super) fn has_sent_bye(&self, worker: usize) -> bool {
        self.0[worker].has_sent_bye
    }

    /// Forgets the tasks and reports of a worker whose process has ended.
    pub(super) fn forget(&mut self, worker: usize) {
        self.0[worker] = Member::default();
    }
}
