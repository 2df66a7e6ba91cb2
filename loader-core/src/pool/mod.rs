//! Workers that were started together, as the main process sees them: those of one epoch, or of several.
//!
//! A worker's states: started (its process runs) -> connected (the handshake is through) -> finishing (it was sent the sentinel)
//! -> exited (reaped), and perhaps started again. Tasks belong to main; a worker holds leases, which come back when it exits.

mod output;
mod reaper;
mod restart;
mod start;
mod worker;

use std::{
    collections::BTreeMap,
    io, mem,
    os::fd::AsFd,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use loader_ipc::{
    channel::{ReceiveError, SendError},
    control::{ControlPage, WorkerSnapshot},
    fault::{self, Point},
    frame::{Lease, MOST_FORGOTTEN, MOST_UNANSWERED, Order, Report, Task},
    handshake::Notice,
    lifeline::LifelineError,
    oom::OomWatch,
    process::Halt,
    queue::{NoteSender, ReportError, ReportReceiver},
    slots::SlotPool,
};
use nix::sys::signal::Signal;

use crate::error::{Doing, Error};

use reaper::Reaper;
use restart::Restart;
use start::{Greeted, Starter};
pub(crate) use start::{Launch, Program};
use worker::Worker;

/// How long workers get to end by themselves before they are asked by signal, as in PyTorch.
const JOIN_DEADLINE: Duration = Duration::from_secs(5);
/// How long a worker may take to end before it is continued, in case it was stopped.
const CONTINUE_AFTER: Duration = Duration::from_millis(100);
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
    notes: NoteSender,
    control: Arc<ControlPage>,
    starter: Arc<Starter>,
    /// Workers that are being started again.
    restarts: BTreeMap<usize, Restart>,
    reaper: Option<Reaper>,
    slots: SlotPool,
    /// A forked child that inherits the pool must not shut it down.
    owner: u32,
    /// Slots destroyed when workers' mappings were last looked through.
    looked_through: u64,
    oom: OomWatch,
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

    /// True when the worker has used `slot` before: its pages are in the worker's page table.
    pub(crate) fn knows(&self, worker: usize, slot: u32) -> bool {
        self.workers[worker].used.contains(&slot)
    }

    /// Gives a task to a worker: at once, or when it has answered enough of those before. Never waits for the worker.
    pub(crate) fn give_task(&mut self, worker: usize, task: Task) -> Result<(), Error> {
        self.workers[worker].backlog.push_back(task);
        self.send_backlog(worker)
    }

    /// Notes that a worker has answered a task; false when it was not asked.
    pub(crate) fn answered(&mut self, worker: usize, task: u64) -> Result<bool, Error> {
        let was_asked = self.workers[worker].answer(task, false);
        self.send_backlog(worker)?;
        Ok(was_asked)
    }

    /// Notes that a worker has seen that a task was withdrawn; false when it was not.
    pub(crate) fn saw_withdrawn(&mut self, worker: usize, task: u64) -> Result<bool, Error> {
        let was_withdrawn = self.workers[worker].answer(task, true);
        self.send_backlog(worker)?;
        Ok(was_withdrawn)
    }

    /// Takes a task back from a worker. False when the worker has begun it.
    pub(crate) fn withdraw(&mut self, worker: usize, task: u64) -> bool {
        self.workers[worker].withdraw(task)
    }

    /// True while tasks of other workers can be moved to this one.
    pub(crate) fn takes_moved_tasks(&self, worker: usize) -> bool {
        let worker = &self.workers[worker];
        !worker.is_unfit && !worker.sentinel_sent && worker.exited.is_none()
    }

    /// Notes that a worker has opened the dataset, or that it could not: it then fails every task, and those of others are not moved
    /// to it.
    ///
    /// # Errors
    /// When it has said that before: what a worker may say without end would hold up main.
    pub(crate) fn note_opened(&mut self, worker: usize, is_fit: bool) -> Result<(), Error> {
        let running = &mut self.workers[worker];
        running.is_unfit = !is_fit;
        match mem::replace(&mut running.has_opened, true) {
            false => Ok(()),
            true => Err(Error::misbehaved(worker, "it said twice whether it is ready")),
        }
    }

    /// True once the worker has said whether it could open the dataset.
    pub(crate) fn has_opened(&self, worker: usize) -> bool {
        self.workers[worker].has_opened
    }

    /// True once the worker has said that it ends.
    pub(crate) fn has_said_bye(&self, worker: usize) -> bool {
        self.workers[worker].has_said_bye
    }

    /// Notes that a worker says that it ends.
    ///
    /// # Errors
    /// When it has said that before.
    pub(crate) fn note_last_word(&mut self, worker: usize) -> Result<(), Error> {
        match mem::replace(&mut self.workers[worker].has_said_bye, true) {
            false => Ok(()),
            true => Err(Error::misbehaved(worker, "it said twice that it ends")),
        }
    }

    /// Tells a worker that has no tasks that none come.
    pub(crate) fn finish(&mut self, worker: usize) {
        self.workers[worker].send_sentinel();
    }

    /// Sends waiting tasks while the worker's queue surely has room, each after the memory of its slot.
    pub(crate) fn send_backlog(&mut self, worker: usize) -> Result<(), Error> {
        while self.workers[worker].exited.is_none() && self.workers[worker].unanswered.len() < MOST_UNANSWERED
        {
            let Some(mut task) = self.workers[worker].backlog.pop_front() else { break };
            self.share_slot(worker, task.lease)?;
            let Worker { to_forget, .. } = &mut self.workers[worker];
            task.forget = to_forget.split_off(to_forget.len().saturating_sub(MOST_FORGOTTEN));
            task.claim = self.workers[worker].claim(task.number);
            self.order(worker, Order::Task(task))?;
        }
        Ok(())
    }

    /// Offers a better slot for a task that the worker was given and has probably not begun. False when it was not sent: the worker
    /// has enough to read.
    pub(crate) fn offer(&mut self, worker: usize, task: u64, lease: Lease) -> Result<bool, Error> {
        let busy = &self.workers[worker];
        if !busy.backlog.is_empty()
            || busy.unanswered.len() >= MOST_UNANSWERED
            || busy.sentinel_sent
            || busy.exited.is_some()
        {
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

    /// Asks a worker that waits for a larger slot for the one that it has.
    pub(crate) fn vacate(&self, worker: usize, task: u64) -> Result<(), Error> {
        let deadline = Instant::now() + LIFELINE_DEADLINE;
        let sent = self.workers[worker].lifeline.send(&Notice::Vacate { task }, &[], deadline);
        sent.or_else(|error| lifeline_failed(worker, error))
    }

    /// Notes which workers have regions mapped that no longer exist. True when some region was destroyed since the last call.
    pub(crate) fn look_for_destroyed_slots(&mut self) -> bool {
        let destroyed = self.slots.destroyed();
        if mem::replace(&mut self.looked_through, destroyed) == destroyed {
            return false;
        }
        for worker in &mut self.workers {
            let Worker { regions, used, to_forget, .. } = worker;
            regions.retain(|&first| {
                let exists = self.slots.has_region(first);
                to_forget.extend((!exists).then_some(first));
                exists
            });
            used.retain(|&slot| self.slots.exists(slot));
        }
        true
    }

    /// The next report, or `None` at `deadline`. An exit comes once.
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
                // The reaper and the net under it may both have seen it.
                if worker.exited.is_some() || worker.process.pid() != pid {
                    continue;
                }
                worker.exited = Some(status);
                worker.forget_tasks();
            }
            return Ok(Some(report));
        }
    }

    /// The net under the reaper: workers that have ended without anybody saying so are reported, behind what they had sent.
    pub(crate) fn look_for_exits(&self) {
        for (worker, running) in self.workers.iter().enumerate() {
            if running.exited.is_none()
                && let Some(status) = running.process.try_reap()
            {
                self.notes.send(Report::Exited { worker, pid: running.process.pid(), status });
            }
        }
    }

    /// Ends a worker at once. What it has said so far counts, unless it is not to be `trusted`.
    pub(crate) fn kill(&mut self, worker: usize, trusted: bool) {
        if !trusted {
            self.results.give_up(worker);
        }
        self.workers[worker].process.signal(Signal::SIGKILL);
    }

    /// Why the worker's process does not go on by itself; `None` when it may go on.
    pub(crate) fn halt(&self, worker: usize) -> Option<Halt> {
        self.workers[worker].process.halt()
    }

    /// True when the kernel's OOM killer has ended a process since the last call, or since the workers were started.
    pub(crate) fn has_oom_killer_acted(&mut self) -> bool {
        self.oom.has_acted()
    }

    /// Begins to start a worker that has ended again. It has no tasks; those that it is given meanwhile wait for it.
    ///
    /// `pause` comes before, for what kept it from starting to pass.
    pub(crate) fn restart(&mut self, worker: usize, pause: Duration) -> Result<(), Error> {
        self.control.reset(worker);
        let (starter, notes) = (Arc::clone(&self.starter), self.notes.clone());
        let restart = Restart::begin(worker, starter, notes, pause)?;
        self.restarts.insert(worker, restart);
        Ok(())
    }

    /// Takes a worker in that has been started again, after [`Report::Started`]. [`send_backlog`](Self::send_backlog) follows.
    ///
    /// # Errors
    /// Why it could not be started; it can be tried again.
    pub(crate) fn adopt(&mut self, worker: usize) -> Result<(), Error> {
        let Some(restart) = self.restarts.remove(&worker) else { return Ok(()) };
        let Greeted { worker: new, watched, reader } = restart.finish()?;
        self.results.replace(worker, reader);
        self.workers[worker].become_started(new);
        if let Some(reaper) = &self.reaper {
            reaper.watch(worker, watched);
        }
        Ok(())
    }

    /// True while the worker's process is gone and it has none, or is about to have one.
    pub(crate) fn is_down(&self, worker: usize) -> bool {
        self.workers[worker].exited.is_some()
    }

    /// The worker's process id, of the last process that it had.
    pub(crate) fn pid(&self, worker: usize) -> u32 {
        self.workers[worker].process.pid()
    }

    /// What `worker` is doing, for people.
    pub(crate) fn doing(&self, worker: usize) -> Doing {
        Doing::new(worker, self.workers[worker].process.pid(), &self.snapshot(worker))
    }

    /// Asks every worker to end, and does not wait: what they are loading is no longer wanted.
    pub(crate) fn ask_to_end(&mut self) {
        self.control.set_done();
        self.restarts.values().for_each(Restart::call_off);
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
            mem::take(&mut self.restarts).into_values().for_each(mem::forget);
            return;
        }
        fault::point(Point::MainDrop);
        self.ask_to_end();
        let deadline = Instant::now() + JOIN_DEADLINE;
        self.join(Instant::now() + CONTINUE_AFTER);
        // One that was stopped ends by itself then; nothing but SIGKILL would end it as it is. The others do not notice.
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
        if !worker.used.insert(lease.slot) {
            return Ok(());
        }
        let Some(region) = self.slots.region_of(lease.slot) else { return Ok(()) };
        if !worker.regions.insert(region.first) {
            return Ok(());
        }
        let notice = Notice::Slots { first: region.first, count: region.count, slot_len: region.slot_len };
        let sent = worker.lifeline.send(&notice, &[region.as_fd()], Instant::now() + LIFELINE_DEADLINE);
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

fn lifeline_failed(worker: usize, error: LifelineError) -> Result<(), Error> {
    match error {
        // Gone: the reaper's report says why.
        LifelineError::Closed => Ok(()),
        LifelineError::Io(source) => Err(Error::System { what: "sending a slot to a worker", source }),
        error => Err(Error::WorkerMisbehaved { worker, problem: format!("its lifeline: {error}") }),
    }
}
