//! The commands that this worker has read and not yet carried out.

use std::{
    collections::{BTreeMap, VecDeque},
    mem,
    time::{Duration, Instant},
};

use anyhow::Context;
use loader_ipc::{
    channel::ReceiveError,
    fault::{self, Point},
    frame::{Command, Indices, Lease, MIN_OFFERED, Task},
    queue::CommandReceiver,
};

/// Maximum duration of one wait for a command. The worker then waits again. The watchdog ends the process if
/// main is gone.
const IDLE_INTERVAL: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
pub(crate) struct Inbox {
    tasks: VecDeque<Task>,
    offers: BTreeMap<u64, Lease>,
    /// Leases of offers that came too late, each with its task.
    unused: Vec<(u64, Lease)>,
    /// Number of the next epoch, which begins once `tasks` is empty.
    resume: Option<u64>,
    /// True if the worker has begun the first of `tasks`, so that main cannot withdraw it any more.
    is_first_begun: bool,
    is_ended: bool,
}

/// What the worker does next.
#[derive(Debug)]
pub(crate) enum Next {
    Load(Task),
    /// Skip the task, which main has withdrawn.
    Withdrawn(Task),
    /// Give back a lease that is not needed. The worker does so at once, because main may be waiting for it.
    GiveBack {
        task: u64,
        lease: Lease,
    },
    /// Begin another epoch.
    Resume {
        epoch: u64,
    },
    /// End: the worker has read the sentinel, or main is gone.
    End,
}

impl Inbox {
    /// Returns what the worker does next. Waits for it without a deadline.
    pub(crate) fn next(&mut self, queue: &mut CommandReceiver) -> anyhow::Result<Next> {
        while self.tasks.is_empty() && self.unused.is_empty() && self.resume.is_none() && !self.is_ended {
            self.read(queue, Instant::now() + IDLE_INTERVAL)?;
        }
        // Further commands may contain an offer for a large task.
        let is_large = |task: &Task| task.lease.len >= MIN_OFFERED;
        while self.tasks.front().is_some_and(is_large)
            && !self.is_ended
            && self.read(queue, Instant::now())?
        {}
        if let Some((task, lease)) = self.unused.pop() {
            return Ok(Next::GiveBack { task, lease });
        }
        let Some(task) = self.tasks.front_mut() else {
            return Ok(self.resume.take().map_or(Next::End, |epoch| Next::Resume { epoch }));
        };
        // The worker begins the task before it gives back one of the task's two leases. If main has withdrawn
        // the task, the worker gives back the offered lease; otherwise it gives back the lease that the task
        // does not use.
        if !self.is_first_begun && !queue.begin(task.claim) {
            let offered = self.offers.remove(&task.number).map(|lease| (task.number, lease));
            self.unused.extend(offered);
            return Ok(self.tasks.pop_front().map_or(Next::End, Next::Withdrawn));
        }
        self.is_first_begun = true;
        // The task's indices or snapshot are in its first slot, so the task must use that slot.
        let is_bound =
            matches!(task.indices, Indices::InSlot { .. } | Indices::NextOf { snapshot: Some(_), .. });
        match self.offers.remove(&task.number) {
            Some(offered) => {
                fault::point(Point::WorkerGiveBack);
                let lease = if is_bound { offered } else { mem::replace(&mut task.lease, offered) };
                Ok(Next::GiveBack { task: task.number, lease })
            }
            None => {
                self.is_first_begun = false;
                Ok(self.tasks.pop_front().map_or(Next::End, Next::Load))
            }
        }
    }

    /// Reads one command. Returns false if none arrives before `deadline`.
    fn read(&mut self, queue: &mut CommandReceiver, deadline: Instant) -> anyhow::Result<bool> {
        match queue.receive(deadline) {
            Ok(Some(Command::Task(task))) => self.tasks.push_back(task),
            Ok(Some(Command::Offer { task, lease })) => {
                if self.tasks.iter().any(|waiting| waiting.number == task) {
                    self.offers.insert(task, lease);
                } else {
                    // The offer is too late: the worker has begun or skipped the task.
                    self.unused.push((task, lease));
                }
            }
            // Main sends no further task before the worker has answered this command.
            Ok(Some(Command::Resume { epoch })) => self.resume = Some(epoch),
            Ok(None) | Err(ReceiveError::Closed) => self.is_ended = true,
            Err(ReceiveError::TimedOut) => return Ok(false),
            Err(error) => return Err(error).context("reading a command"),
        }
        Ok(true)
    }
}
