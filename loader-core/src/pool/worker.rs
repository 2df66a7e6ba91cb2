//! One worker, as the pool sees it.

use std::{
    collections::{BTreeSet, VecDeque},
    mem,
    sync::Arc,
};

use loader_ipc::{
    frame::{ExitStatus, MOST_UNANSWERED, Task},
    lifeline::Lifeline,
    process::WorkerProcess,
    queue::OrderSender,
};

#[derive(Debug)]
pub(super) struct Worker {
    pub(super) process: Arc<WorkerProcess>,
    pub(super) lifeline: Lifeline,
    pub(super) orders: OrderSender,
    /// Regions of slots that this worker has mapped, by number of the first slot.
    pub(super) regions: BTreeSet<u32>,
    /// Slots that it has been given.
    pub(super) used: BTreeSet<u32>,
    /// Regions that it is to unmap with its next task.
    pub(super) to_forget: Vec<u32>,
    /// Tasks that wait here because the worker has enough to do, or is being started again.
    pub(super) backlog: VecDeque<Task>,
    /// Tasks that it was sent and has not answered.
    pub(super) unanswered: VecDeque<Unanswered>,
    /// The next task's claim: they are used in turn, and there are as many as tasks may be unanswered.
    next_claim: u32,
    /// It has said whether it could open the dataset.
    pub(super) has_opened: bool,
    /// It could not, and fails every task.
    pub(super) is_unfit: bool,
    /// It has said that it ends.
    pub(super) has_said_bye: bool,
    pub(super) sentinel_sent: bool,
    pub(super) exited: Option<ExitStatus>,
}

/// A task that a worker has been sent.
#[derive(Debug)]
pub(super) struct Unanswered {
    task: u64,
    claim: u32,
    is_withdrawn: bool,
}

impl Worker {
    pub(super) fn new(process: Arc<WorkerProcess>, lifeline: Lifeline, orders: OrderSender) -> Self {
        Self {
            process,
            lifeline,
            orders,
            regions: BTreeSet::new(),
            used: BTreeSet::new(),
            to_forget: Vec::new(),
            backlog: VecDeque::new(),
            unanswered: VecDeque::new(),
            next_claim: 0,
            has_opened: false,
            is_unfit: false,
            has_said_bye: false,
            sentinel_sent: false,
            exited: None,
        }
    }

    /// Notes that a task is about to be sent; gives its claim.
    pub(super) fn claim(&mut self, task: u64) -> u32 {
        let claim = self.next_claim;
        self.next_claim = (claim + 1) % MOST_UNANSWERED as u32;
        self.unanswered.push_back(Unanswered { task, claim, is_withdrawn: false });
        claim
    }

    /// Notes an answer to a task, which was withdrawn or not; false when none such is unanswered.
    pub(super) fn answer(&mut self, task: u64, is_withdrawn: bool) -> bool {
        // The first one but for a worker that misbehaves.
        let asked = |sent: &Unanswered| sent.task == task && sent.is_withdrawn == is_withdrawn;
        let place = self.unanswered.iter().position(asked);
        place.is_some_and(|place| self.unanswered.remove(place).is_some())
    }

    /// Takes a task back. False when it has been begun.
    pub(super) fn withdraw(&mut self, task: u64) -> bool {
        if let Some(place) = self.backlog.iter().position(|waiting| waiting.number == task) {
            return self.backlog.remove(place).is_some();
        }
        let sent = self.unanswered.iter_mut().find(|sent| sent.task == task && !sent.is_withdrawn);
        sent.is_some_and(|sent| {
            sent.is_withdrawn = self.orders.withdraw(sent.claim);
            sent.is_withdrawn
        })
    }

    /// Forgets what it was to do: its process has ended.
    pub(super) fn forget_tasks(&mut self) {
        self.backlog.clear();
        self.unanswered.clear();
    }

    /// Goes on with another process, with the tasks that have waited for it.
    pub(super) fn become_started(&mut self, new: Self) {
        let old = mem::replace(self, new);
        self.backlog = old.backlog;
        if old.sentinel_sent {
            self.send_sentinel();
        }
    }

    /// Never waits: the queue holds at most a few small tasks.
    pub(super) fn send_sentinel(&mut self) {
        if !mem::replace(&mut self.sentinel_sent, true) && self.exited.is_none() {
            // A worker that is gone needs none, and the reaper reports it.
            drop(self.orders.send(&None));
        }
    }
}
