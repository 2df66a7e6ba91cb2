//! Workers that were started together, with their processes and channels: those of one epoch, or of several.
//!
//! A worker's process is started, then connected (the handshake is done), then finishing (it was sent the sentinel), then
//! exited (reaped), and perhaps started again. What the worker is told to do is decided by the
//! [coordinator](crate::coordinator).

mod carry_out;
mod output;
mod reaper;
mod restart;
mod start;
mod worker;

use std::{
    collections::BTreeMap,
    io, mem,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use loader_ipc::{
    channel::ReceiveError,
    control::{ControlPage, WorkerSnapshot},
    fault::{self, Point},
    frame::Report,
    oom::OomWatch,
    queue::{NoteSender, ReportError, ReportReceiver},
    slots::SlotPool,
};
use nix::sys::signal::Signal;

use crate::{error::Error, warning::Warn};

use reaper::Reaper;
use restart::Restart;
use start::{Greeted, Starter};
pub(crate) use start::{Launch, Program};
use worker::Worker;

/// How long workers may take to end by themselves before main sends them SIGTERM, as in PyTorch.
const JOIN_DEADLINE: Duration = Duration::from_secs(5);
/// How long a worker may take to end before main sends it SIGCONT, in case it was stopped.
const CONTINUE_AFTER: Duration = Duration::from_millis(100);
/// How long a worker may take to end after a signal.
const SIGNAL_DEADLINE: Duration = Duration::from_secs(1);

/// How often to look at the processes where the result queue fails.
const LOOK_INTERVAL: Duration = Duration::from_millis(1);

/// Running workers.
#[derive(Debug)]
pub(crate) struct Pool {
    workers: Vec<Worker>,
    results: ReportReceiver,
    notes: NoteSender,
    control: Arc<ControlPage>,
    starter: Arc<Starter>,
    /// Workers that are being started again, by number.
    restarts: BTreeMap<usize, Restart>,
    reaper: Option<Reaper>,
    slots: SlotPool,
    /// The process that started the workers. A forked child that inherits the pool must not end them.
    owner: u32,
    /// Number of regions that had been destroyed when the workers' mappings were last checked.
    looked_through: u64,
    oom: OomWatch,
    warn: Warn,
}

impl Pool {
    /// Returns the process ids, by number of the worker.
    pub(crate) fn pids(&self) -> Vec<u32> {
        self.workers.iter().map(|worker| worker.process.pid()).collect()
    }

    /// Returns the process id of the worker's process, or of the last one that it had.
    pub(crate) fn pid(&self, worker: usize) -> u32 {
        self.workers[worker].process.pid()
    }

    /// Returns what the worker is doing.
    pub(crate) fn snapshot(&self, worker: usize) -> WorkerSnapshot {
        self.control.read(worker)
    }

    /// Returns the next report, or `None` at `deadline`. An exit comes once.
    pub(crate) fn receive(&mut self, deadline: Instant) -> Result<Option<Report>, Error> {
        loop {
            let report = match self.results.receive(deadline) {
                Ok(report) => report,
                Err(ReportError::TimedOut) => return Ok(None),
                Err(ReportError::Malformed { worker, problem }) => {
                    return Err(Error::WorkerMisbehaved { worker, problem });
                }
                Err(ReportError::Channel(ReceiveError::Io(source))) => {
                    return Err(Error::System { what: "receiving from workers", source });
                }
                Err(error) => {
                    let source = io::Error::other(error);
                    return Err(Error::System { what: "receiving from workers", source });
                }
            };
            if let Report::Exited { worker, pid, status } = report {
                let worker = &mut self.workers[worker];
                // The reaper and `look_for_exits` may both have seen it.
                if worker.exited.is_some() || worker.process.pid() != pid {
                    continue;
                }
                worker.exited = Some(status);
            }
            return Ok(Some(report));
        }
    }

    /// Reports workers that have ended, in case the reaper has missed them. The report comes after what they had sent.
    pub(crate) fn look_for_exits(&self) {
        for (worker, running) in self.workers.iter().enumerate() {
            if running.exited.is_none()
                && let Some(status) = running.process.try_reap()
            {
                self.notes.send(Report::Exited { worker, pid: running.process.pid(), status });
            }
        }
    }

    /// Asks every worker to end, and does not wait. What they are loading is not wanted any more.
    pub(crate) fn ask_to_end(&mut self) {
        self.control.set_done();
        self.restarts.values().for_each(Restart::call_off);
        for worker in &mut self.workers {
            worker.send_sentinel();
        }
    }

    /// True in the process that started the workers; false in a forked child, which has only a copy of the pool.
    pub(crate) fn is_owned(&self) -> bool {
        self.owner == std::process::id()
    }

    /// True if the worker's process is known to have ended, so that it cannot write to a slot any more.
    pub(crate) fn has_ended(&self, worker: usize) -> bool {
        self.workers[worker].exited.is_some()
    }

    /// Ends every worker: done flag, sentinels, joining all at once until a deadline, SIGTERM, SIGKILL. Returns once each
    /// worker is reaped, or cannot be killed.
    pub(crate) fn shut_down(&mut self) {
        let Some(reaper) = self.reaper.take() else { return };
        if !self.is_owned() {
            // A forked child: the workers are its parent's, and the reaper's thread does not exist here.
            mem::forget(reaper);
            mem::take(&mut self.restarts).into_values().for_each(mem::forget);
            return;
        }
        fault::point(Point::MainDrop);
        self.ask_to_end();
        let deadline = Instant::now() + JOIN_DEADLINE;
        self.join(Instant::now() + CONTINUE_AFTER);
        // A worker that was stopped then ends by itself. Otherwise only SIGKILL would end it. The others do not notice.
        self.signal_running(Signal::SIGCONT);
        self.join(deadline);
        mem::take(&mut self.restarts).into_values().for_each(Restart::forget);
        for signal in [Signal::SIGTERM, Signal::SIGKILL] {
            self.signal_running(signal);
            self.join(Instant::now() + SIGNAL_DEADLINE);
        }
        reaper.stop();
    }

    fn signal_running(&self, signal: Signal) {
        let running = self.workers.iter().filter(|worker| worker.exited.is_none());
        running.for_each(|worker| worker.process.signal(signal));
    }

    /// Reads reports until every worker has exited. Reading also frees workers that are blocked on a full queue.
    fn join(&mut self, deadline: Instant) {
        while self.workers.iter().any(|worker| worker.exited.is_none()) && Instant::now() < deadline {
            match self.receive(deadline) {
                Ok(_) | Err(Error::WorkerMisbehaved { .. }) => {}
                // The queue cannot be used any more: look at the processes themselves.
                Err(_) => {
                    self.look_for_exits();
                    thread::sleep(LOOK_INTERVAL);
                }
            }
        }
        // In case the reaper has missed an exit, or the queue still holds its report.
        for worker in self.workers.iter_mut().filter(|worker| worker.exited.is_none()) {
            worker.exited = worker.process.try_reap();
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shut_down();
    }
}
