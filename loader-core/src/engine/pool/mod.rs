//! A pool of workers that were started together, with their processes and channels. It serves one epoch, or
//! several with persistent workers.
//!
//! A worker's process starts, connects (completes the handshake), finishes (main has sent the sentinel) and
//! exits (the reaper reaps it). Another process may then replace it. The [coordinator](crate::engine::coordinator)
//! decides what each worker does.

mod carry_out;
mod forked;
mod output;
mod program;
mod reaper;
mod restart;
mod start;
mod surroundings;
mod template;
mod worker;
mod worker_program;

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
    patience::Patience,
    process::WorkerProcess,
    profile::ProfileArea,
    queue::{NoteSender, ReportError, ReportReceiver},
    slots::SlotPool,
};
use nix::sys::signal::Signal;

use crate::{
    error::Error,
    report::{
        stats::{IterStats, SharedStats},
        warning::Warn,
    },
};

pub use forked::ForkedTemplate;
pub(crate) use program::Program;
pub use program::launchers_variables;
use reaper::Reaper;
use restart::Restart;
pub(crate) use start::Launch;
use start::{Greeted, Starter};
use worker::Worker;
pub use worker_program::WorkerProgram;

/// Maximum time for workers to end by themselves before main sends them SIGTERM, as in PyTorch.
const JOIN_DEADLINE: Duration = Duration::from_secs(5);
/// Time that workers get to end before main sends them SIGCONT, in case they were stopped.
const CONTINUE_AFTER: Duration = Duration::from_millis(100);
/// Maximum time for workers to end after SIGTERM, and again after SIGKILL.
const SIGNAL_DEADLINE: Duration = Duration::from_secs(1);

/// Interval at which main checks the processes if the result queue fails.
const LOOK_INTERVAL: Duration = Duration::from_millis(1);

/// Running workers.
#[derive(Debug)]
pub(crate) struct Pool {
    workers: Vec<Worker>,
    results: ReportReceiver,
    notes: NoteSender,
    control: Arc<ControlPage>,
    starter: Arc<Starter>,
    /// Attempts to start workers, by number of the worker.
    restarts: BTreeMap<usize, Restart>,
    reaper: Option<Reaper>,
    slots: SlotPool,
    /// Process id of the process that started the workers. A forked child that inherits the pool must not end
    /// them.
    owner: u32,
    /// Number of destroyed regions when main last checked which regions workers must unmap.
    looked_through: u64,
    oom: OomWatch,
    warn: Warn,
}

impl Pool {
    /// Returns the process ids of the workers, by number of the worker.
    pub(crate) fn pids(&self) -> Vec<u32> {
        self.workers.iter().map(|worker| worker.process.pid()).collect()
    }

    /// Returns the process ids of the workers that have not ended.
    pub(crate) fn running(&self) -> impl Iterator<Item = &WorkerProcess> {
        self.workers.iter().filter(|worker| worker.exited.is_none()).map(|worker| &*worker.process)
    }

    /// Returns the maximum number of workers.
    pub(crate) fn max_workers(&self) -> usize {
        self.control.max_workers()
    }

    /// Returns the id of the worker's process, or of its last process if that has ended.
    pub(crate) fn pid(&self, worker: usize) -> u32 {
        self.workers[worker].process.pid()
    }

    /// Returns what the worker is doing, as it says on the control page.
    pub(crate) fn snapshot(&self, worker: usize) -> WorkerSnapshot {
        self.control.read(worker)
    }

    /// Returns the number of workers that have a process, or had one.
    pub(crate) fn len(&self) -> usize {
        self.workers.len()
    }

    /// Makes the state of the workers, which load `epoch`, readable through the loader's statistics.
    pub(crate) fn publish_to(&self, stats: &SharedStats, own: &Arc<IterStats>, epoch: u64) {
        stats.set_workers(own, &self.control, self.workers.len(), epoch);
    }

    /// Returns what the worker has measured.
    pub(crate) fn profile(&self, worker: usize) -> ProfileArea<'_> {
        self.control.area_of(worker)
    }

    /// Returns the next report, or `None` at `deadline`. Returns the exit of each process once.
    pub(crate) fn receive(&mut self, deadline: Instant) -> Result<Option<Report>, Error> {
        loop {
            let report = match self.results.receive(deadline) {
                Ok(report) => report,
                Err(ReportError::TimedOut) => return Ok(None),
                Err(ReportError::Misbehaved { worker, violation }) => {
                    return Err(Error::misbehaved(worker, violation));
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
                // The reaper and `look_for_exits` may both have reported it.
                if worker.exited.is_some() || worker.process.pid() != pid {
                    continue;
                }
                worker.exited = Some(status);
            }
            return Ok(Some(report));
        }
    }

    /// Reports workers that have ended, in case the reaper has missed them. [`receive`](Self::receive)
    /// returns the report after everything that the worker sent.
    pub(crate) fn look_for_exits(&self) {
        for (worker, running) in self.workers.iter().enumerate() {
            if running.exited.is_none()
                && let Some(status) = running.process.try_reap()
            {
                self.notes.send(Report::Exited { worker, pid: running.process.pid(), status });
            }
        }
    }

    /// Asks every worker to end, without waiting. What the workers are loading is no longer wanted.
    pub(crate) fn ask_to_end(&mut self) {
        self.control.set_done();
        self.restarts.values().for_each(Restart::cancel);
        for worker in &mut self.workers {
            worker.send_sentinel();
        }
    }

    /// True in the process that started the workers; false in a forked child, which only has a copy of the
    /// pool.
    pub(crate) fn is_owned(&self) -> bool {
        self.owner == std::process::id()
    }

    /// True if main knows that the worker's process has ended and can no longer write to a slot.
    pub(crate) fn has_ended(&self, worker: usize) -> bool {
        self.workers[worker].exited.is_some()
    }

    /// Ends every worker: sets the done flag, sends the sentinels, waits for all workers until a deadline,
    /// and then sends SIGTERM and SIGKILL to those that still run. Returns once all workers are reaped, or
    /// after the last deadline if one cannot be killed.
    pub(crate) fn shut_down(&mut self) {
        let Some(reaper) = self.reaper.take() else { return };
        if !self.is_owned() {
            // In a forked child, the workers belong to the parent, and the threads of the reaper and of the
            // restarts do not exist.
            mem::forget(reaper);
            mem::take(&mut self.restarts).into_values().for_each(mem::forget);
            return;
        }
        fault::point(Point::MainDrop);
        self.ask_to_end();
        self.join(CONTINUE_AFTER);
        // A stopped worker continues and ends by itself; otherwise only SIGKILL would end it. SIGCONT has no
        // effect on the others.
        self.signal_running(Signal::SIGCONT);
        self.join(JOIN_DEADLINE - CONTINUE_AFTER);
        mem::take(&mut self.restarts).into_values().for_each(Restart::forget);
        for signal in [Signal::SIGTERM, Signal::SIGKILL] {
            self.signal_running(signal);
            self.join(SIGNAL_DEADLINE);
        }
        reaper.stop();
        template::reap_ended();
    }

    fn signal_running(&self, signal: Signal) {
        let running = self.workers.iter().filter(|worker| worker.exited.is_none());
        running.for_each(|worker| worker.process.signal(signal));
    }

    /// Reads reports until every worker has exited, or for at most `limit`. Reading also frees workers that are
    /// blocked because the result queue is full.
    fn join(&mut self, limit: Duration) {
        let mut patience = Patience::new(limit);
        while self.workers.iter().any(|worker| worker.exited.is_none()) && !patience.is_over() {
            patience.step(|step| match self.receive(Instant::now() + step) {
                Ok(_) | Err(Error::WorkerMisbehaved { .. }) => {}
                // The result queue has failed, so check the processes themselves.
                Err(_) => {
                    self.look_for_exits();
                    thread::sleep(LOOK_INTERVAL);
                }
            });
        }
        // The reaper may have missed an exit, or the queue may still hold its report.
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
