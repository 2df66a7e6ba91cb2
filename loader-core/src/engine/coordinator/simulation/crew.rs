//! All simulated workers of one iterator. They implement the trait `Crew`, through which the coordinator
//! commands them.

use std::{io, mem, rc::Rc, time::Duration};

use loader_ipc::{
    control::{WorkerSnapshot, WorkerState},
    frame::{Command, ExitStatus, Lease, Report},
    process::{CpuUse, Halt},
    slots::SlotPool,
    template::TemplateError,
};
use rand::{RngExt, SeedableRng, rngs::ChaCha8Rng};

use super::{
    super::{Crew, UnsentTask},
    dataset::SimulatedDataset,
    lies,
    shared::Shared,
    worker::{Claim, Environment, Notice, Restart, Worker},
};
use crate::{
    error::{Error, start_error::WorkerStartError},
    report::warning::Warning,
};

/// The exit status of a worker that SIGKILL has ended.
const KILLED: ExitStatus = ExitStatus::Signal { signal: 9, core_dumped: false };

/// How often faults happen to workers, in thousandths of the steps.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Faults {
    /// Another process kills a worker.
    pub(super) kills: u32,
    pub(super) stops: u32,
    pub(super) continues: u32,
    /// A worker sends an invalid event.
    pub(super) lies: u32,
}

#[derive(Debug)]
pub(super) struct Workers {
    pub(super) all: Vec<Worker>,
    dataset: SimulatedDataset,
    shared: Rc<Shared>,
    rng: ChaCha8Rng,
    /// Number of the iterator.
    number: usize,
    slots: SlotPool,
    destroyed: u64,
    is_wanted: bool,
    next_pid: u32,
    has_memory_limit: bool,
    /// True if some exits are missed and some starts fail.
    has_rare_failures: bool,
    /// False if no process is left that can fork workers.
    pub(super) can_fork: bool,
    /// Number of times that a worker may still be stopped. Main gives up a batch after three stops.
    stops_left: u32,
    /// Number of kills and lies that may still happen. Without a bound, two iterators may wait for each
    /// other's memory for ever, because each death gives slots back.
    ends_left: u32,
}

impl Workers {
    pub(super) fn new(
        count: usize,
        number: usize,
        dataset: SimulatedDataset,
        slots: &SlotPool,
        shared: &Rc<Shared>,
        seed: u64,
        has_memory_limit: bool,
    ) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        Self {
            all: (0..count).map(|worker| Worker::new(100 + worker as u32, shared.now())).collect(),
            dataset,
            shared: Rc::clone(shared),
            number,
            slots: slots.clone(),
            destroyed: slots.destroyed_regions(),
            is_wanted: true,
            next_pid: 1000,
            has_memory_limit,
            has_rare_failures: rng.random(),
            can_fork: true,
            stops_left: 2,
            ends_left: 60,
            rng,
        }
    }

    pub(super) fn has_report(&self) -> bool {
        self.all.iter().any(Worker::has_report)
    }

    /// Returns the next report of some worker, and whether it is an invalid event. A worker's exit comes
    /// after all of its events.
    pub(super) fn report(&mut self) -> Option<(Report, bool)> {
        let ready = self.all.iter().filter(|worker| worker.has_report()).count();
        let chosen = self.rng.random_range(0..ready.max(1));
        let mut ready = self.all.iter_mut().enumerate().filter(|(_, worker)| worker.has_report());
        let (worker, state) = ready.nth(chosen)?;
        if let Some(event) = state.events.pop_front() {
            let is_lie = state.before_lie == Some(0);
            state.before_lie = state.before_lie.and_then(|before| before.checked_sub(1));
            return Some((Report::Event { worker, event }, is_lie));
        }
        if state.restart == Restart::Done {
            state.restart = Restart::No;
            return Some((Report::Started { worker }, false));
        }
        state.is_down = true;
        Some((Report::Exited { worker, pid: state.pid, status: state.ended? }, false))
    }

    /// Finds the exits that the reaper has missed.
    pub(super) fn look_for_exits(&mut self) {
        self.all.iter_mut().for_each(|worker| worker.is_exit_missed = false);
    }

    /// Ends a worker's process by SIGKILL.
    pub(super) fn end(&mut self, worker: usize) {
        let (number, is_missed) =
            ((self.number, worker), self.has_rare_failures && self.rng.random_ratio(1, 4));
        let state = &mut self.all[worker];
        if state.ended.is_none() {
            state.is_exit_missed = is_missed;
            state.end(KILLED, number, &self.shared);
        }
    }

    pub(super) fn end_all(&mut self) {
        (0..self.all.len()).for_each(|worker| self.end(worker));
    }

    /// True if some worker can do a step.
    pub(super) fn can_step(&self) -> bool {
        self.all.iter().any(Worker::can_step)
    }

    /// Does one step of some worker, or causes a fault.
    pub(super) fn step(&mut self, faults: Faults) {
        let Faults { kills, stops, continues, lies } = faults;
        let worker = self.rng.random_range(0..self.all.len());
        let dice = self.rng.random_range(0..1000);
        if dice < kills {
            if self.all[worker].ended.is_none() && self.ends_left > 0 {
                self.ends_left -= 1;
                self.shared.count("kills");
                self.shared.log(|| format!("worker {:?} is killed", (self.number, worker)));
                self.end(worker);
            }
        } else if dice < kills + stops {
            if self.stops_left > 0 {
                self.stops_left -= 1;
                self.shared.count("stops");
                self.shared.log(|| format!("worker {:?} is stopped", (self.number, worker)));
                self.all[worker].is_stopped = true;
            }
        } else if dice < kills + stops + continues {
            self.all[worker].is_stopped = false;
        } else if dice < kills + stops + continues + lies {
            self.lie(worker);
        } else {
            self.step_one(worker);
        }
    }

    /// Does one step of the first worker from `worker` on that can do a step.
    fn step_one(&mut self, worker: usize) {
        let count = self.all.len();
        let next =
            (worker..worker + count).map(|worker| worker % count).find(|&worker| self.all[worker].can_step());
        let Some(worker) = next else { return };
        let env = Environment {
            number: (self.number, worker),
            dataset: &self.dataset,
            shared: &self.shared,
            is_wanted: self.is_wanted,
            chance: if self.has_rare_failures { self.rng.random_range(0..1000) } else { 500 },
            has_memory_limit: self.has_memory_limit,
        };
        self.all[worker].step(&env);
    }

    /// Adds a command to a worker's index queue.
    fn send(&mut self, worker: usize, command: Command) {
        self.shared.log(|| format!("main sends worker {:?} {command:?}", (self.number, worker)));
        self.all[worker].commands.push_back(Some(command));
    }

    /// Has a worker send an invalid event.
    fn lie(&mut self, worker: usize) {
        let state = &self.all[worker];
        if !state.has_opened() || state.is_stopped || state.is_liar || self.ends_left == 0 {
            return;
        }
        self.ends_left -= 1;
        let other = self.rng.random_range(0..self.all.len());
        let (task, lease) =
            self.all[other].waiting_task().unwrap_or((7, Lease { slot: 0, generation: 1, len: 1 << 16 }));
        let event = lies::invalid_event(&mut self.rng, task, lease);
        self.shared.count("lies");
        self.shared.log(|| format!("worker {:?} lies: {event:?}", (self.number, worker)));
        let worker = &mut self.all[worker];
        (worker.is_liar, worker.before_lie) = (true, Some(worker.events.len()));
        worker.events.push_back(event);
    }
}

impl Crew for Workers {
    fn give(&mut self, worker: usize, task: UnsentTask, claim: u32) -> Result<(), Error> {
        let state = &mut self.all[worker];
        assert!(!state.has_claim(claim), "two tasks of worker {worker} have one claim");
        state.claims[claim as usize] = Claim::Open;
        state.used.insert(task.lease.slot);
        self.send(worker, Command::Task(task.into_task(claim, Vec::new())));
        Ok(())
    }

    fn offer(&mut self, worker: usize, task: u64, lease: Lease) -> Result<(), Error> {
        self.all[worker].used.insert(lease.slot);
        self.send(worker, Command::Offer { task, lease });
        Ok(())
    }

    fn resume(&mut self, worker: usize, epoch: u64) -> Result<(), Error> {
        self.send(worker, Command::Resume { epoch });
        Ok(())
    }

    fn finish(&mut self, worker: usize) {
        let state = &mut self.all[worker];
        if !mem::replace(&mut state.has_sentinel, true) && !state.is_down {
            state.commands.push_back(None);
        }
    }

    fn withdraw(&mut self, worker: usize, claim: u32) -> bool {
        let claim = &mut self.all[worker].claims[claim as usize];
        let is_open = *claim == Claim::Open;
        if is_open {
            *claim = Claim::Withdrawn;
        }
        is_open
    }

    fn grant(&mut self, worker: usize, _task: u64, lease: Result<Lease, String>) -> Result<(), Error> {
        if let Ok(lease) = &lease {
            self.all[worker].used.insert(lease.slot);
        }
        self.shared.log(|| format!("main grants worker {:?} {lease:?}", (self.number, worker)));
        self.all[worker].notices.push_back(Notice::Grant(lease));
        Ok(())
    }

    fn vacate(&mut self, worker: usize, _task: u64) -> Result<(), Error> {
        self.all[worker].notices.push_back(Notice::Vacate);
        Ok(())
    }

    fn kill(&mut self, worker: usize, trusted: bool) {
        self.shared.log(|| format!("main kills worker {:?}, trusted: {trusted}", (self.number, worker)));
        if !trusted {
            assert!(self.all[worker].is_liar, "main expels worker {worker}, which has sent no invalid event");
            self.shared.count("workers expelled");
            // Main reads no more events of this worker.
            self.all[worker].events.clear();
        } else if self.all[worker].is_hung() {
            self.shared.count("hung workers killed");
        }
        self.end(worker);
    }

    fn start(&mut self, worker: usize, _pause: Duration) -> Result<(), Error> {
        if worker == self.all.len() {
            self.shared.count("workers added");
            self.all.push(Worker::absent(self.shared.now()));
        }
        let state = &mut self.all[worker];
        assert!(state.is_down && state.restart == Restart::No, "worker {worker} is started twice");
        (state.restart, state.has_sentinel) = (Restart::UnderWay, false);
        // The control page is reset.
        (state.state, state.since, state.batches) = ((WorkerState::Starting, 0, 0), self.shared.now(), 0);
        Ok(())
    }

    fn adopt(&mut self, worker: usize) -> Result<(), Error> {
        if !self.can_fork {
            let source = WorkerStartError::ForkFailed { source: TemplateError::NoAnswer, can_fork: false };
            return Err(Error::WorkerNotStarted { worker, source });
        }
        if self.has_rare_failures && self.rng.random_ratio(1, 8) {
            self.shared.count("starts refused");
            let source = io::Error::other("there are no processes");
            let source = WorkerStartError::NotSpawned { program: "a simulated worker".to_owned(), source };
            return Err(Error::WorkerNotStarted { worker, source });
        }
        let had_sentinel = self.all[worker].has_sentinel;
        self.all[worker] = Worker::new(self.next_pid, self.shared.now());
        self.next_pid += 1;
        if had_sentinel {
            self.finish(worker);
        }
        Ok(())
    }

    fn set_wanted(&mut self, is_wanted: bool) {
        self.is_wanted = is_wanted;
    }

    fn warn(&mut self, warning: &Warning) {
        self.shared.log(|| format!("warning: {warning}"));
    }

    fn pid(&self, worker: usize) -> u32 {
        self.all[worker].pid
    }

    fn is_down(&self, worker: usize) -> bool {
        self.all[worker].is_down
    }

    fn takes_tasks(&self, worker: usize) -> bool {
        let state = &self.all[worker];
        !state.is_down && !state.has_sentinel
    }

    fn cpu_use(&self, _worker: usize) -> CpuUse {
        CpuUse::default()
    }

    fn snapshot(&self, worker: usize) -> WorkerSnapshot {
        let Worker { state: (state, task, sample), since, batches, .. } = self.all[worker];
        WorkerSnapshot {
            state,
            task,
            sample,
            age: self.shared.now().saturating_duration_since(since),
            batches,
            samples: batches,
            page_faults: 0,
            busy: Duration::from_millis(batches),
        }
    }

    fn halt(&self, worker: usize) -> Option<Halt> {
        self.all[worker].is_stopped.then_some(Halt::Stopped { ticks: 1 })
    }

    fn has_oom_killer_acted(&mut self) -> bool {
        false
    }

    fn knows(&self, worker: usize, slot: u32) -> bool {
        self.all[worker].used.contains(&slot)
    }

    fn forget_destroyed_slots(&mut self) -> bool {
        let destroyed = self.slots.destroyed_regions();
        let before = mem::replace(&mut self.destroyed, destroyed);
        for worker in &mut self.all {
            worker.used.retain(|&slot| self.slots.exists(slot));
        }
        before != destroyed
    }
}
