//! Workers that were started together, as the main process sees them: those of one epoch, or of several.
//!
//! A worker's states: started (its process runs) -> connected (the handshake is through) -> finishing (it was sent the sentinel)
//! -> exited (reaped). Tasks belong to main; a worker holds leases, which come back when it exits.

mod output;
mod reaper;
mod start;

use std::{
    collections::{BTreeSet, VecDeque},
    io, mem,
    os::fd::AsFd,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use loader_ipc::{
    channel::{ReceiveError, SendError},
    control::{ControlPage, WorkerSnapshot},
    frame::{Event, ExitStatus, Lease, MOST_FORGOTTEN, MOST_UNANSWERED, Order, Report, Task},
    handshake::Notice,
    lifeline::{Lifeline, LifelineError},
    process::WorkerProcess,
    queue::{OrderSender, ReportError, ReportReceiver},
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

/// How often to look at the processes where the result queue fails.
const LOOK_INTERVAL: Duration = Duration::from_millis(1);

/// Running workers.
#[derive(Debug)]
pub(crate) struct Pool {
    workers: Vec<Worker>,
    results: ReportReceiver,
    control: Arc<ControlPage>,
    reaper: Option<Reaper>,
    slots: SlotPool,
    /// A forked child that inherits the pool must not shut it down.
    owner: u32,
    /// Slots destroyed when workers' mappings were last looked through.
    looked_through: u64,
}

#[derive(Debug)]
struct Worker {
    process: Arc<WorkerProcess>,
    lifeline: Lifeline,
    orders: OrderSender,
    /// Slots whose memory this worker has mapped.
    mapped: BTreeSet<u32>,
    /// Slots that it is to unmap with its next task.
    to_forget: Vec<u32>,
    /// Tasks that wait here because the worker has enough to do.
    backlog: VecDeque<Task>,
    /// Tasks that it was sent and has not answered, each with its claim.
    unanswered: VecDeque<(u64, u32)>,
    /// The next task's claim: they are used in turn, and there are as many as tasks may be unanswered.
    next_claim: u32,
    /// It could not open the dataset, and fails every task.
    is_unfit: bool,
    sentinel_sent: bool,
    exited: Option<ExitStatus>,
}

impl Pool {
    /// Process ids, by number of the worker.
    pub(crate) fn pids(&self) -> Vec<u32> {
        self.workers.iter().map(|worker| worker.process.pid()).collect()
    }

    /// Number of workers.
    pub(crate) fn len(&self) -> usize {
        self.workers.len()
    }

    /// True while every worker runs, has opened the dataset, and has been told nothing of an end.
    pub(crate) fn is_whole(&self) -> bool {
        self.workers.iter().all(|worker| worker.exited.is_none() && !worker.is_unfit && !worker.sentinel_sent)
    }

    /// Says that what the workers are loading is not wanted, for a while.
    pub(crate) fn set_unwanted(&self) {
        self.control.set_unwanted(true);
    }

    /// Says that what the workers are given from now on is wanted.
    pub(crate) fn set_wanted(&self) {
        self.control.set_unwanted(false);
    }

    /// Tells every worker that another epoch begins; each reports when it has answered everything before.
    pub(crate) fn resume(&mut self, epoch: u64) -> Result<(), Error> {
        for worker in 0..self.workers.len() {
            self.order(worker, Order::Resume { epoch })?;
        }
        Ok(())
    }

    /// What `worker` is doing.
    pub(crate) fn snapshot(&self, worker: usize) -> WorkerSnapshot {
        self.control.read(worker)
    }

    /// True when the worker has `slot` mapped already.
    pub(crate) fn knows(&self, worker: usize, slot: u32) -> bool {
        self.workers[worker].mapped.contains(&slot)
    }

    /// Gives a task to a worker: at once, or when it has answered enough of those before. Never waits for the worker.
    pub(crate) fn give_task(&mut self, worker: usize, task: Task) -> Result<(), Error> {
        self.workers[worker].backlog.push_back(task);
        self.send_backlog(worker)
    }

    /// Notes that a worker has answered a task, or has seen that it was withdrawn.
    pub(crate) fn answered(&mut self, worker: usize, task: u64) -> Result<(), Error> {
        let unanswered = &mut self.workers[worker].unanswered;
        // The first one but for a worker that misbehaves, which is noticed elsewhere.
        if let Some(place) = unanswered.iter().position(|&(number, _)| number == task) {
            unanswered.remove(place);
        }
        self.send_backlog(worker)
    }

    /// Takes a task back from a worker. False when the worker has begun it.
    pub(crate) fn withdraw(&mut self, worker: usize, task: u64) -> bool {
        let Worker { backlog, unanswered, orders, .. } = &mut self.workers[worker];
        if let Some(place) = backlog.iter().position(|waiting| waiting.number == task) {
            return backlog.remove(place).is_some();
        }
        let sent = unanswered.iter().find(|&&(number, _)| number == task);
        sent.is_some_and(|&(_, claim)| orders.withdraw(claim))
    }

    /// True while tasks of other workers can be moved to this one.
    pub(crate) fn takes_moved_tasks(&self, worker: usize) -> bool {
        let worker = &self.workers[worker];
        !worker.is_unfit && !worker.sentinel_sent && worker.exited.is_none()
    }

    /// Notes that a worker fails every task: those of others are not moved to it.
    pub(crate) fn set_unfit(&mut self, worker: usize) {
        self.workers[worker].is_unfit = true;
    }

    /// Tells a worker that has no tasks that none come.
    pub(crate) fn finish(&mut self, worker: usize) {
        self.workers[worker].send_sentinel();
    }

    /// Sends waiting tasks while the worker's queue surely has room, each after the memory of its slot.
    fn send_backlog(&mut self, worker: usize) -> Result<(), Error> {
        while self.workers[worker].unanswered.len() < MOST_UNANSWERED {
            let Some(mut task) = self.workers[worker].backlog.pop_front() else { break };
            self.share_slot(worker, task.lease)?;
            let Worker { to_forget, unanswered, next_claim, .. } = &mut self.workers[worker];
            task.forget = to_forget.split_off(to_forget.len().saturating_sub(MOST_FORGOTTEN));
            task.claim = *next_claim;
            *next_claim = (task.claim + 1) % MOST_UNANSWERED as u32;
            unanswered.push_back((task.number, task.claim));
            self.order(worker, Order::Task(task))?;
        }
        Ok(())
    }

    /// Offers a better slot for a task that the worker was given and has probably not begun. False when it was not sent: the worker
    /// has enough to read.
    pub(crate) fn offer(&mut self, worker: usize, task: u64, lease: Lease) -> Result<bool, Error> {
        let busy = &self.workers[worker];
        if !busy.backlog.is_empty() || busy.unanswered.len() >= MOST_UNANSWERED || busy.sentinel_sent {
            return Ok(false);
        }
        self.share_slot(worker, lease)?;
        self.order(worker, Order::Offer { task, lease })?;
        Ok(true)
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
        sent.or_else(|error| lifeline_failed(worker, error))
    }

    /// Notes which workers have slots mapped that no longer exist.
    pub(crate) fn look_for_destroyed_slots(&mut self) {
        let destroyed = self.slots.destroyed();
        if mem::replace(&mut self.looked_through, destroyed) == destroyed {
            return;
        }
        for worker in &mut self.workers {
            let Worker { mapped, to_forget, .. } = worker;
            mapped.retain(|&slot| {
                let exists = self.slots.exists(slot);
                to_forget.extend((!exists).then_some(slot));
                exists
            });
        }
    }

    /// The next report, or `None` at `deadline`.
    pub(crate) fn receive(&mut self, deadline: Instant) -> Result<Option<Report>, Error> {
        match self.results.receive(deadline) {
            Ok(report) => {
                let number = report.worker;
                let worker = &mut self.workers[number];
                if let Event::Exited { status, .. } = report.event {
                    // Only the reaper reports this, and it has reaped first.
                    if !worker.process.is_reaped() {
                        let problem = "it reported its own exit".to_owned();
                        return Err(Error::WorkerMisbehaved { worker: number, problem });
                    }
                    worker.exited = Some(status);
                }
                Ok(Some(report))
            }
            Err(ReportError::TimedOut) => Ok(None),
            Err(ReportError::Malformed { worker, problem }) => {
                Err(Error::WorkerMisbehaved { worker, problem })
            }
            // The reaper in this process holds a sender, so closed is never the truth while it runs.
            Err(ReportError::Channel(ReceiveError::Io(source))) => {
                Err(Error::System { what: "receiving from workers", source })
            }
            Err(error) => {
                Err(Error::System { what: "receiving from workers", source: io::Error::other(error) })
            }
        }
    }

    /// The net under the reaper: workers that have ended without anybody saying so are reported, behind what they had sent.
    pub(crate) fn look_for_exits(&mut self) {
        let running = self.workers.iter().enumerate().filter(|(_, worker)| worker.exited.is_none());
        for (number, worker) in running {
            if let Some(status) = worker.process.try_reap() {
                self.results.note_exit(number, worker.process.pid(), status);
            }
        }
    }

    /// What `worker` is doing, for people.
    pub(crate) fn doing(&self, worker: usize) -> Doing {
        Doing::new(worker, self.workers[worker].process.pid(), &self.snapshot(worker))
    }

    /// The error for a worker that has exited.
    pub(crate) fn exited(&self, worker: usize, pid: u32, status: ExitStatus, batches: Vec<u64>) -> Error {
        let doing = self.doing(worker);
        Error::WorkerExited { worker, pid, status, batches, doing }
    }

    /// Asks every worker to end, and does not wait: what they are loading is no longer wanted.
    pub(crate) fn ask_to_end(&mut self) {
        self.control.set_done();
        for worker in &mut self.workers {
            worker.backlog.clear();
            worker.send_sentinel();
        }
    }

    /// True in the process that made the pool; false in a forked child, which has only a copy of it.
    pub(crate) fn is_owned(&self) -> bool {
        self.owner == std::process::id()
    }

    /// True when the worker's process is known to have ended: it can write no slot any more.
    pub(crate) fn has_ended(&self, worker: usize) -> bool {
        self.workers[worker].exited.is_some()
    }

    /// Ends every worker: done flag, sentinels, joining all at once until a deadline, SIGTERM, SIGKILL. Returns when each one
    /// is reaped, or cannot be killed.
    pub(crate) fn shut_down(&mut self) {
        let Some(reaper) = self.reaper.take() else { return };
        if !self.is_owned() {
            // A forked child: the workers are its parent's, and the reaper's thread does not exist here.
            mem::forget(reaper);
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
        while self.workers.iter().any(|worker| worker.exited.is_none()) && Instant::now() < deadline {
            match self.receive(deadline) {
                Ok(_) | Err(Error::WorkerMisbehaved { .. }) => {}
                // The queue is of no use any more: look at the processes themselves.
                Err(_) => {
                    self.look_for_exits();
                    thread::sleep(LOOK_INTERVAL);
                }
            }
        }
        // The net under the reaper, whatever the queue still holds.
        for worker in self.workers.iter_mut().filter(|worker| worker.exited.is_none()) {
            worker.exited = worker.process.try_reap();
        }
    }

    fn share_slot(&mut self, number: usize, lease: Lease) -> Result<(), Error> {
        let worker = &mut self.workers[number];
        if worker.mapped.contains(&lease.slot) {
            return Ok(());
        }
        let Some(fd) = self.slots.fd(lease.slot) else { return Ok(()) };
        let fd = fd.map_err(|source| Error::System { what: "sharing a slot with a worker", source })?;
        let notice = Notice::Slot { slot: lease.slot, len: lease.len };
        let sent = worker.lifeline.send(&notice, &[fd.as_fd()], Instant::now() + LIFELINE_DEADLINE);
        worker.mapped.insert(lease.slot);
        sent.or_else(|error| lifeline_failed(number, error))
    }

    fn order(&mut self, worker: usize, order: Order) -> Result<(), Error> {
        match self.workers[worker].orders.send(&Some(order)) {
            // Gone: the reaper's report says why.
            Ok(()) | Err(SendError::Closed) => Ok(()),
            Err(SendError::Io(source)) => Err(Error::System { what: "sending to a worker", source }),
            Err(error) => Err(Error::System { what: "sending to a worker", source: io::Error::other(error) }),
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shut_down();
    }
}

impl Worker {
    pub(super) fn new(process: Arc<WorkerProcess>, lifeline: Lifeline, orders: OrderSender) -> Self {
        Self {
            process,
            lifeline,
            orders,
            mapped: BTreeSet::new(),
            to_forget: Vec::new(),
            backlog: VecDeque::new(),
            unanswered: VecDeque::new(),
            next_claim: 0,
            is_unfit: false,
            sentinel_sent: false,
            exited: None,
        }
    }

    /// Never waits: the queue holds at most a few small tasks.
    fn send_sentinel(&mut self) {
        if !mem::replace(&mut self.sentinel_sent, true) && self.exited.is_none() {
            // A worker that is gone needs none, and the reaper reports it.
            drop(self.orders.send(&None));
        }
    }
}

fn lifeline_failed(worker: usize, error: LifelineError) -> Result<(), Error> {
    match error {
        // Gone: the reaper's report says why.
        LifelineError::Closed => Ok(()),
        LifelineError::Io(source) => Err(Error::System { what: "sending a slot to a worker", source }),
        error => Err(Error::WorkerMisbehaved { worker, problem: format!("its lifeline: {error}") }),
    }
}
