//! The orders that have been read and not yet followed.

use std::{
    collections::{BTreeMap, VecDeque},
    mem,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use loader_ipc::{
    channel::ReceiveError,
    fault::{self, Point},
    frame::{Indices, LEAST_OFFERED, Lease, Order, Task},
    queue::OrderReceiver,
};

/// How long to wait for an order before looking around; the watchdog is what notices a dead main.
const IDLE_INTERVAL: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
pub(crate) struct Inbox {
    tasks: VecDeque<Task>,
    offers: BTreeMap<u64, Lease>,
    /// Leases of offers that came too late, each with its task.
    unused: Vec<(u64, Lease)>,
    /// Another epoch begins behind the tasks.
    resume: Option<u64>,
    /// The first task is this worker's for good.
    has_begun: bool,
    ended: bool,
}

/// What to do next.
#[derive(Debug)]
pub(crate) enum Next {
    Load(Task),
    /// Leave this one: main has withdrawn it.
    Withdrawn(Task),
    /// Give back a lease that is not needed, at once: main may be waiting for it.
    GiveBack {
        task: u64,
        lease: Lease,
    },
    /// Another epoch begins.
    Resume {
        epoch: u64,
    },
    /// The sentinel was read, or main is gone.
    End,
}

impl Inbox {
    /// What is next, waiting for it as long as it takes.
    pub(crate) fn next(&mut self, queue: &mut OrderReceiver) -> anyhow::Result<Next> {
        while self.tasks.is_empty() && self.unused.is_empty() && self.resume.is_none() && !self.ended {
            self.read(queue, Instant::now() + IDLE_INTERVAL)?;
        }
        // An offer for a task may lie behind it.
        let is_large = |task: &Task| task.lease.len >= LEAST_OFFERED;
        while self.tasks.front().is_some_and(is_large) && !self.ended && self.read(queue, Instant::now())? {}
        if let Some((task, lease)) = self.unused.pop() {
            return Ok(Next::GiveBack { task, lease });
        }
        let Some(task) = self.tasks.front_mut() else {
            return Ok(self.resume.take().map_or(Next::End, |epoch| Next::Resume { epoch }));
        };
        // Before one of its leases is given back: which one depends on whose the task is.
        if !self.has_begun && !queue.begin(task.claim) {
            let offered = self.offers.remove(&task.number).map(|lease| (task.number, lease));
            self.unused.extend(offered);
            return Ok(self.tasks.pop_front().map_or(Next::End, Next::Withdrawn));
        }
        self.has_begun = true;
        // What lies in the first slot binds the task to it.
        let is_bound =
            matches!(task.indices, Indices::InSlot { .. } | Indices::NextOf { snapshot: Some(_), .. });
        match self.offers.remove(&task.number) {
            Some(offered) => {
                fault::point(Point::WorkerGiveBack);
                // The lease that is not used.
                let lease = if is_bound { offered } else { mem::replace(&mut task.lease, offered) };
                Ok(Next::GiveBack { task: task.number, lease })
            }
            None => {
                self.has_begun = false;
                Ok(self.tasks.pop_front().map_or(Next::End, Next::Load))
            }
        }
    }

    /// Reads one order; false when there was none in time.
    fn read(&mut self, queue: &mut OrderReceiver, deadline: Instant) -> anyhow::Result<bool> {
        match queue.receive(deadline) {
            Ok(Some(Order::Task(task))) => self.tasks.push_back(task),
            Ok(Some(Order::Offer { task, lease })) => {
                if self.tasks.iter().any(|waiting| waiting.number == task) {
                    self.offers.insert(task, lease);
                } else {
                    // Too late: the task is done.
                    self.unused.push((task, lease));
                }
            }
            // Main sends no tasks behind it before it is answered.
            Ok(Some(Order::Resume { epoch })) => self.resume = Some(epoch),
            Ok(None) | Err(ReceiveError::Closed) => self.ended = true,
            Err(ReceiveError::TimedOut) => return Ok(false),
            Err(error) => return Err(error).context("reading an order"),
        }
        Ok(true)
    }
}
