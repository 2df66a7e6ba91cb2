//! The workers of one epoch, as the main process sees them.
//!
//! A worker's states: started (its process runs) -> connected (the handshake is through) -> finishing (it was sent the sentinel)
//! -> exited (reaped). Tasks belong to main; a worker holds leases, which come back when it exits.

mod output;
mod reaper;
mod start;

use std::{
    collections::HashSet,
    os::fd::AsFd,
    sync::Arc,
    time::{Duration, Instant},
};

use loader_ipc::{
    control::{ControlPage, WorkerSnapshot},
    frame::{Event, ExitStatus, Lease, Order, Report, Task},
    handshake::Notice,
    lifeline::{Lifeline, LifelineError},
    process::WorkerProcess,
    queue::{ReceiveError, Receiver, SendError, Sender},
    slots::SlotPool,
};
use nix::sys::signal::Signal;

use crate::error::{Doing, Error};

use reaper::Reaper;
pub(crate) use start::{Launch, Program};

/// How long workers get to end by themselves before they are asked by signal, as in PyTorch.
const JOIN_DEADLINE: Duration = Duration::from_secs(5);
/// How long a signal gets to end a worker.
const SIGNAL_DEADLINE: Duration = Duration::from_secs(1);
/// How long a descriptor may take to be taken by a worker's lifeline before the worker counts as stuck.
const LIFELINE_DEADLINE: Duration = Duration::from_secs(5);

/// Running workers.
#[derive(Debug)]
pub(crate) struct Pool {
    workers: Vec<Worker>,
    results: Receiver<Report>,
    control: ControlPage,
    reaper: Option<Reaper>,
    slots: SlotPool,
    /// A forked child that inherits the pool must not shut it down.
    owner: u32,
    sentinels_sent: bool,
    /// Slots destroyed when workers were last told to forget.
    forgotten: u64,
}

#[derive(Debug)]
struct Worker {
    process: Arc<WorkerProcess>,
    lifeline: Lifeline,
    tasks: Sender<Option<Order>>,
    /// Slots whose memory this worker has mapped.
    mapped: HashSet<u32>,
    exited: Option<ExitStatus>,
}

impl Pool {
    /// Process ids, by number of the worker.
    pub(crate) fn pids(&self) -> Vec<u32> {
        self.workers.iter().map(|worker| worker.process.pid()).collect()
    }

    /// What `worker` is doing.
    pub(crate) fn snapshot(&self, worker: usize) -> WorkerSnapshot {
        self.control.read(worker)
    }

    /// True when the worker has `slot` mapped already.
    pub(crate) fn knows(&self, worker: usize, slot: u32) -> bool {
        self.workers[worker].mapped.contains(&slot)
    }

    /// Sends a task; first the memory of its slot, if the worker has not got it yet.
    pub(crate) fn send_task(&mut self, worker: usize, task: Task) -> Result<(), Error> {
        self.share_slot(worker, task.lease)?;
        self.order(worker, Order::Task(task))
    }

    /// Answers `NeedSlot`.
    pub(crate) fn grant(
        &mut self,
        worker: usize,
        task: u64,
        lease: Result<Lease, String>,
    ) -> Result<(), Error> {
        if let Ok(lease) = &lease {
            self.share_slot(worker, *lease)?;
        }
        let notice = Notice::Grant { task, lease };
        let sent = self.workers[worker].lifeline.send(&notice, &[], Instant::now() + LIFELINE_DEADLINE);
        sent.or_else(|error| lifeline_failed(worker, &error))
    }

    /// Tells workers to unmap slots that no longer exist.
    pub(crate) fn forget_destroyed_slots(&mut self) -> Result<(), Error> {
        let destroyed = self.slots.destroyed();
        if std::mem::replace(&mut self.forgotten, destroyed) == destroyed {
            return Ok(());
        }
        for worker in 0..self.workers.len() {
            let mapped = &mut self.workers[worker].mapped;
            let gone: Vec<u32> = mapped.extract_if(|&slot| !self.slots.exists(slot)).collect();
            for slot in gone {
                self.order(worker, Order::Forget { slot })?;
            }
        }
        Ok(())
    }

    /// Tells every worker that no more tasks come: it ends when it has done what it has.
    pub(crate) fn send_sentinels(&mut self) {
        if std::mem::replace(&mut self.sentinels_sent, true) {
            return;
        }
        for worker in self.workers.iter().filter(|worker| worker.exited.is_none()) {
            // A worker that is gone needs no sentinel, and the reaper reports it.
            drop(worker.tasks.send(&None));
        }
    }

    /// The next report, or `None` at `deadline`.
    pub(crate) fn receive(&mut self, deadline: Instant) -> Result<Option<Report>, Error> {
        match self.results.receive(deadline) {
            Ok(report) => {
                let number = report.worker as usize;
                let Some(worker) = self.workers.get_mut(number) else {
                    let problem = format!("a report names worker {number} of {}", self.workers.len());
                    return Err(Error::WorkerMisbehaved { worker: number, problem });
                };
                if let Event::Exited { status, .. } = report.event {
                    worker.exited = Some(status);
                }
                Ok(Some(report))
            }
            Err(ReceiveError::TimedOut) => Ok(None),
            // The reaper in this process holds a sender, so this is never the truth while it runs.
            Err(ReceiveError::Closed) => {
                let source = std::io::Error::other("the result queue is closed");
                Err(Error::System { what: "receiving from workers", source })
            }
            Err(ReceiveError::Io(source)) => Err(Error::System { what: "receiving from workers", source }),
            // Nobody knows whose it is.
            Err(error) => {
                Err(Error::System { what: "receiving from workers", source: std::io::Error::other(error) })
            }
        }
    }

    /// The error for a worker that has exited.
    pub(crate) fn exited(&self, worker: usize, pid: u32, status: ExitStatus, batches: Vec<u64>) -> Error {
        let doing = Doing::new(worker, &self.snapshot(worker));
        Error::WorkerExited { worker, pid, status, batches, doing }
    }

    /// Asks every worker to end, and does not wait: what they are loading is no longer wanted.
    pub(crate) fn ask_to_end(&mut self) {
        self.control.set_done();
        self.send_sentinels();
    }

    /// Ends every worker: done flag, sentinels, joining all at once until a deadline, SIGTERM, SIGKILL. Returns when each one
    /// is reaped, or cannot be killed.
    pub(crate) fn shut_down(&mut self) {
        let Some(reaper) = self.reaper.take() else { return };
        if self.owner != std::process::id() {
            // A forked child: the workers are its parent's, and the reaper's thread does not exist here.
            std::mem::forget(reaper);
            return;
        }
        self.ask_to_end();
        self.join(Instant::now() + JOIN_DEADLINE);
        for signal in [Signal::SIGTERM, Signal::SIGKILL] {
            let running: Vec<_> = self.workers.iter().filter(|worker| worker.exited.is_none()).collect();
            if running.is_empty() {
                break;
            }
            running.iter().for_each(|worker| worker.process.signal(signal));
            self.join(Instant::now() + SIGNAL_DEADLINE);
        }
        reaper.stop();
    }

    /// Reads reports until every worker has exited. Reading also frees those that are blocked on a full queue.
    fn join(&mut self, deadline: Instant) {
        while self.workers.iter().any(|worker| worker.exited.is_none()) {
            match self.receive(deadline) {
                Ok(None) => return,
                Ok(Some(_)) | Err(Error::WorkerMisbehaved { .. }) => {}
                Err(_) => return,
            }
        }
    }

    fn share_slot(&mut self, number: usize, lease: Lease) -> Result<(), Error> {
        let worker = &mut self.workers[number];
        if !worker.mapped.insert(lease.slot) {
            return Ok(());
        }
        let notice = Notice::Slot { slot: lease.slot, len: lease.len };
        let deadline = Instant::now() + LIFELINE_DEADLINE;
        let sent =
            self.slots.with_fd(lease.slot, |fd| worker.lifeline.send(&notice, &[fd.as_fd()], deadline));
        sent.unwrap_or(Ok(())).or_else(|error| lifeline_failed(number, &error))
    }

    fn order(&self, worker: usize, order: Order) -> Result<(), Error> {
        match self.workers[worker].tasks.send(&Some(order)) {
            // Gone: the reaper's report says why.
            Ok(()) | Err(SendError::Closed) => Ok(()),
            Err(SendError::Io(source)) => Err(Error::System { what: "sending to a worker", source }),
            Err(error) => {
                Err(Error::System { what: "sending to a worker", source: std::io::Error::other(error) })
            }
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shut_down();
    }
}

fn lifeline_failed(worker: usize, error: &LifelineError) -> Result<(), Error> {
    match error {
        // Gone: the reaper's report says why.
        LifelineError::Closed => Ok(()),
        error => Err(Error::WorkerMisbehaved { worker, problem: format!("its lifeline: {error}") }),
    }
}
