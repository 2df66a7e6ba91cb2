//! Simulated workers: what they do, step by step, and what main sees of them.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::{Duration, Instant},
};

use loader_ipc::{
    arena::Encoded,
    control::{WorkerSnapshot, WorkerState},
    frame::{Command, Event, ExitStatus, Failure, Indices, Lease, Report, Task},
    process::Halt,
    slots::SlotPool,
};

use super::{super::Crew, Content, World};
use crate::{error::Error, warning::Warning};

/// Number of claims of a worker, as in `loader_ipc::frame::MAX_UNANSWERED`.
const CLAIMS: usize = 16;

/// All workers, and the memory that they share with main.
#[derive(Debug)]
pub(super) struct Workers {
    pub(super) all: Vec<Worker>,
    pub(super) memory: Memory,
    pub(super) world: World,
    pub(super) now: Instant,
    slots: SlotPool,
    destroyed: u64,
    is_wanted: bool,
    next_pid: u32,
    /// Number of processes that replaced others or were added.
    starts: u64,
}

/// What the slots contain, by their number.
#[derive(Debug, Default)]
pub(super) struct Memory {
    contents: BTreeMap<u32, Content>,
    /// Slots that the user holds batches in.
    lent: BTreeSet<u32>,
    /// Slots that a worker is writing.
    writers: BTreeMap<u32, usize>,
}

impl Memory {
    fn start_writing(&mut self, slot: u32, worker: usize) {
        assert!(!self.lent.contains(&slot), "worker {worker} writes slot {slot}, which the user holds");
        let other = self.writers.insert(slot, worker);
        assert!(
            other.is_none_or(|other| other == worker),
            "workers {worker} and {other:?} write slot {slot}"
        );
        self.contents.remove(&slot);
    }

    fn finish_writing(&mut self, slot: u32, worker: usize, content: Option<Content>) {
        assert_eq!(self.writers.remove(&slot), Some(worker), "slot {slot} has another writer");
        if let Some(content) = content {
            self.contents.insert(slot, content);
        }
    }

    pub(super) fn lend(&mut self, slot: u32) -> Content {
        assert!(!self.writers.contains_key(&slot), "slot {slot} is lent while a worker writes it");
        assert!(self.lent.insert(slot), "slot {slot} is lent twice");
        *self.contents.get(&slot).unwrap_or_else(|| panic!("slot {slot} is lent without a batch"))
    }

    pub(super) fn take_back(&mut self, slot: u32) {
        assert!(self.lent.remove(&slot));
    }
}

/// One worker's process, and what main knows of it.
#[derive(Debug)]
pub(super) struct Worker {
    pid: u32,
    /// False once the process has ended.
    pub(super) runs: bool,
    pub(super) is_stopped: bool,
    /// Main has received the report of its exit, and no other process was adopted.
    is_down: bool,
    is_exit_reported: bool,
    has_sentinel: bool,
    restart: Restart,
    commands: VecDeque<Option<Command>>,
    notices: VecDeque<Notice>,
    claims: [Claim; CLAIMS],
    /// Reports that main has not received.
    events: VecDeque<Event>,
    used: BTreeSet<u32>,
    inbox: Inbox,
    activity: Activity,
    state: (WorkerState, u64, u64),
    since: Instant,
    batches: u64,
    /// By shard that is open, the number of items that were taken from it.
    cursors: BTreeMap<u32, u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Restart {
    No,
    UnderWay,
    Done,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Claim {
    Open,
    Begun,
    Withdrawn,
}

#[derive(Debug)]
enum Notice {
    Grant(Result<Lease, String>),
    Vacate,
}

#[derive(Debug, Default)]
struct Inbox {
    tasks: VecDeque<Task>,
    offers: BTreeMap<u64, Lease>,
    unused: Vec<(u64, Lease)>,
    resume: Option<u64>,
    is_ended: bool,
    is_first_begun: bool,
}

#[derive(Debug)]
enum Activity {
    Starting,
    Idle,
    /// Has this many more steps to do for the task.
    Loading {
        task: Task,
        steps: u32,
    },
    /// Waits for a slot of this many bytes.
    Waiting {
        task: Task,
        has_vacated: bool,
    },
}

impl Worker {
    fn new(pid: u32, now: Instant) -> Self {
        Self {
            pid,
            runs: true,
            is_stopped: false,
            is_down: false,
            is_exit_reported: false,
            has_sentinel: false,
            restart: Restart::No,
            commands: VecDeque::new(),
            notices: VecDeque::new(),
            claims: [Claim::Open; CLAIMS],
            events: VecDeque::new(),
            used: BTreeSet::new(),
            inbox: Inbox::default(),
            activity: Activity::Starting,
            state: (WorkerState::Starting, 0, 0),
            since: now,
            batches: 0,
            cursors: BTreeMap::new(),
        }
    }

    fn has_report(&self) -> bool {
        !self.events.is_empty() || (!self.runs && !self.is_exit_reported) || self.restart == Restart::Done
    }

    /// True if the process would do something.
    pub(super) fn can_step(&self) -> bool {
        let has_work = || match &self.activity {
            Activity::Starting | Activity::Loading { .. } => true,
            Activity::Waiting { .. } => !self.notices.is_empty(),
            Activity::Idle => {
                let inbox = &self.inbox;
                !self.commands.is_empty()
                    || !inbox.tasks.is_empty()
                    || !inbox.unused.is_empty()
                    || inbox.resume.is_some()
                    || inbox.is_ended
            }
        };
        self.restart == Restart::UnderWay || (self.runs && !self.is_stopped && has_work())
    }

    fn enter(&mut self, state: WorkerState, task: u64, sample: u64, now: Instant) {
        (self.state, self.since) = ((state, task, sample), now);
    }
}

impl Workers {
    pub(super) fn new(count: usize, world: World, slots: &SlotPool, now: Instant) -> Self {
        let all = (0..count).map(|worker| Worker::new(100 + worker as u32, now)).collect();
        Self {
            all,
            memory: Memory::default(),
            world,
            now,
            slots: slots.clone(),
            destroyed: slots.destroyed_regions(),
            is_wanted: true,
            next_pid: 1000,
            starts: 0,
        }
    }

    /// The workers of which main can receive a report.
    pub(super) fn with_reports(&self) -> Vec<usize> {
        (0..self.all.len()).filter(|&worker| self.all[worker].has_report()).collect()
    }

    /// The next report of a worker. Its exit comes behind all its events.
    pub(super) fn report(&mut self, worker: usize) -> Report {
        let state = &mut self.all[worker];
        if let Some(event) = state.events.pop_front() {
            return Report::Event { worker, event };
        }
        if state.restart == Restart::Done {
            state.restart = Restart::No;
            return Report::Started { worker };
        }
        (state.is_exit_reported, state.is_down) = (true, true);
        let status = ExitStatus::Signal { signal: 9, core_dumped: false };
        Report::Exited { worker, pid: state.pid, status }
    }

    /// Kills a worker's process, as another process would.
    pub(super) fn end(&mut self, worker: usize) {
        self.all[worker].runs = false;
        self.memory.writers.retain(|_, writer| *writer != worker);
    }

    /// One step of a worker's process.
    pub(super) fn step(&mut self, worker: usize) {
        let now = self.now;
        let state = &mut self.all[worker];
        if state.restart == Restart::UnderWay {
            state.restart = Restart::Done;
            return;
        }
        match std::mem::replace(&mut state.activity, Activity::Idle) {
            Activity::Starting => {
                state.enter(WorkerState::Idle, 0, 0, now);
                state.events.push_back(Event::Ready);
            }
            Activity::Idle => self.idle(worker),
            Activity::Loading { task, steps: 0 } => self.finish_task(worker, task),
            Activity::Loading { task, steps } => {
                state.enter(WorkerState::Fetching, task.number, u64::from(steps), now);
                state.activity = Activity::Loading { task, steps: steps - 1 };
            }
            Activity::Waiting { task, has_vacated } => self.wait(worker, task, has_vacated),
        }
    }

    /// Reads what has come, and begins a task.
    fn idle(&mut self, worker: usize) {
        let now = self.now;
        let state = &mut self.all[worker];
        for command in state.commands.drain(..) {
            match command {
                Some(Command::Task(task)) => state.inbox.tasks.push_back(task),
                Some(Command::Offer { task, lease }) => {
                    match state.inbox.tasks.iter().any(|waiting| waiting.number == task) {
                        true => drop(state.inbox.offers.insert(task, lease)),
                        false => state.inbox.unused.push((task, lease)),
                    }
                }
                Some(Command::Resume { epoch }) => state.inbox.resume = Some(epoch),
                None => state.inbox.is_ended = true,
            }
        }
        if let Some((task, lease)) = state.inbox.unused.pop() {
            return state.events.push_back(Event::Unused { task, lease });
        }
        let Some(front) = state.inbox.tasks.front_mut() else {
            if let Some(epoch) = state.inbox.resume.take() {
                state.cursors.clear();
                state.events.push_back(Event::Resumed { epoch });
            } else if state.inbox.is_ended {
                state.events.push_back(Event::Bye);
                state.runs = false;
            }
            return;
        };
        let claim = &mut state.claims[front.claim as usize];
        if !state.inbox.is_first_begun && *claim == Claim::Withdrawn {
            let number = front.number;
            let offered = state.inbox.offers.remove(&number);
            state.inbox.unused.extend(offered.map(|lease| (number, lease)));
            state.inbox.tasks.pop_front();
            return state.events.push_back(Event::Withdrawn { task: number });
        }
        *claim = Claim::Begun;
        state.inbox.is_first_begun = true;
        if let Some(offered) = state.inbox.offers.remove(&front.number) {
            let lease = std::mem::replace(&mut front.lease, offered);
            let task = front.number;
            return state.events.push_back(Event::Unused { task, lease });
        }
        state.inbox.is_first_begun = false;
        let Some(task) = state.inbox.tasks.pop_front() else { return };
        if !self.is_wanted {
            let (task, lease) = (task.number, task.lease);
            return state.events.push_back(Event::Skipped { task, lease, held: false });
        }
        state.enter(WorkerState::Fetching, task.number, 0, now);
        self.memory.start_writing(task.lease.slot, worker);
        let steps = self.world.steps(task.number);
        state.activity = Activity::Loading { task, steps };
    }

    /// Ends a task whose samples are loaded.
    fn finish_task(&mut self, worker: usize, task: Task) {
        let size = self.world.size(task.epoch, task.number);
        if self.next_content(worker, &task).is_none() {
            self.memory.finish_writing(task.lease.slot, worker, None);
            let (task, lease) = (task.number, task.lease);
            return self.all[worker].events.push_back(Event::Exhausted { task, lease, held: false });
        }
        if size > task.lease.len {
            let now = self.now;
            let state = &mut self.all[worker];
            state.enter(WorkerState::Sending, task.number, 0, now);
            state.events.push_back(Event::NeedSlot { task: task.number, lease: task.lease, needed: size });
            state.activity = Activity::Waiting { task, has_vacated: false };
            return;
        }
        self.done(worker, &task, task.lease);
    }

    /// What the worker loads for a task; `None` at the end of its shard.
    fn next_content(&mut self, worker: usize, task: &Task) -> Option<Content> {
        match &task.indices {
            Indices::Range { start, len } => Some(Content::Samples { first: *start, len: *len }),
            Indices::NextOf { shard, position, .. } => {
                let from = self.all[worker].cursors.entry(*shard).or_insert(*position);
                // As `Cursors::forget_stale`: another worker has read the shard since.
                if *position > 0 {
                    *from = *position;
                }
                let from = *from;
                let to = self.world.shard_len(*shard).min(from + self.world.batch_size);
                (from < to).then_some(Content::Items { shard: *shard, from, to })
            }
            other => panic!("the simulation has no tasks of {other:?}"),
        }
    }

    fn done(&mut self, worker: usize, task: &Task, lease: Lease) {
        let Some(content) = self.next_content(worker, task) else { return };
        self.memory.finish_writing(lease.slot, worker, Some(content));
        let now = self.now;
        let len = self.world.size(task.epoch, task.number);
        let state = &mut self.all[worker];
        let mut position = 0;
        if let Content::Items { shard, to, .. } = content {
            state.cursors.insert(shard, to);
            position = to;
        }
        state.batches += 1;
        state.enter(WorkerState::Idle, task.number, 0, now);
        let encoded = Encoded { start: 0, len };
        let (task, bad) = (task.number, Vec::new());
        state.events.push_back(Event::Done { task, lease, encoded, held: false, position, bad });
    }

    /// Goes on after a request for a larger slot.
    fn wait(&mut self, worker: usize, task: Task, has_vacated: bool) {
        let old = task.lease;
        let (number, notice) = (task.number, self.all[worker].notices.pop_front());
        match notice {
            None => self.all[worker].activity = Activity::Waiting { task, has_vacated },
            Some(Notice::Vacate) => {
                self.memory.finish_writing(old.slot, worker, None);
                let state = &mut self.all[worker];
                state.events.push_back(Event::Vacated { task: number, lease: old, held: false });
                state.activity = Activity::Waiting { task, has_vacated: true };
            }
            Some(Notice::Grant(lease)) => {
                if !has_vacated {
                    self.memory.finish_writing(old.slot, worker, None);
                }
                match lease {
                    Ok(lease) => {
                        assert!(
                            lease.len >= self.world.size(task.epoch, number),
                            "too small a slot was granted"
                        );
                        self.memory.start_writing(lease.slot, worker);
                        self.done(worker, &task, lease);
                    }
                    Err(reason) => {
                        let failure = Failure::to_send(reason);
                        let position = self.position(worker, &task);
                        let (held, ended) = (false, false);
                        let lease = old;
                        let event = Event::Failed { task: number, lease, failure, held, position, ended };
                        self.all[worker].events.push_back(event);
                    }
                }
            }
        }
    }

    /// Passes over a batch that failed. Returns where its shard is then.
    fn position(&mut self, worker: usize, task: &Task) -> u64 {
        match self.next_content(worker, task) {
            Some(Content::Items { shard, to, .. }) => {
                self.all[worker].cursors.insert(shard, to);
                to
            }
            _ => 0,
        }
    }
}

impl Crew for Workers {
    fn command(&mut self, worker: usize, command: Command) -> Result<(), Error> {
        let state = &mut self.all[worker];
        match &command {
            Command::Task(task) => {
                state.claims[task.claim as usize] = Claim::Open;
                state.used.insert(task.lease.slot);
            }
            Command::Offer { lease, .. } => drop(state.used.insert(lease.slot)),
            Command::Resume { .. } => {}
        }
        state.commands.push_back(Some(command));
        Ok(())
    }

    fn finish(&mut self, worker: usize) {
        let state = &mut self.all[worker];
        if !std::mem::replace(&mut state.has_sentinel, true) && !state.is_down {
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
        self.all[worker].notices.push_back(Notice::Grant(lease));
        Ok(())
    }

    fn vacate(&mut self, worker: usize, _task: u64) -> Result<(), Error> {
        self.all[worker].notices.push_back(Notice::Vacate);
        Ok(())
    }

    fn kill(&mut self, worker: usize, trusted: bool) {
        assert!(trusted, "worker {worker} is honest, and was expelled");
        self.end(worker);
    }

    fn start(&mut self, worker: usize, _pause: Duration) -> Result<(), Error> {
        if worker == self.all.len() {
            let absent =
                Worker { runs: false, is_down: true, is_exit_reported: true, ..Worker::new(0, self.now) };
            self.all.push(absent);
        }
        let state = &mut self.all[worker];
        assert!(state.is_down && state.restart == Restart::No, "worker {worker} is started twice");
        (state.restart, state.has_sentinel) = (Restart::UnderWay, false);
        Ok(())
    }

    fn adopt(&mut self, worker: usize) -> Result<(), Error> {
        self.starts += 1;
        if self.world.fails_to_start(self.starts) {
            self.all[worker].restart = Restart::No;
            return Err(Error::WorkerNotStarted { worker, problem: "the simulation refuses".into() });
        }
        let had_sentinel = self.all[worker].has_sentinel;
        self.all[worker] = Worker::new(self.next_pid, self.now);
        self.next_pid += 1;
        if had_sentinel {
            self.finish(worker);
        }
        Ok(())
    }

    fn set_wanted(&mut self, is_wanted: bool) {
        self.is_wanted = is_wanted;
    }

    fn warn(&mut self, _warning: &Warning) {}

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

    fn snapshot(&self, worker: usize) -> WorkerSnapshot {
        let Worker { state: (state, task, sample), since, batches, .. } = self.all[worker];
        WorkerSnapshot {
            state,
            task,
            sample,
            age: self.now.saturating_duration_since(since),
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
        let before = std::mem::replace(&mut self.destroyed, destroyed);
        for worker in &mut self.all {
            worker.used.retain(|&slot| self.slots.exists(slot));
        }
        before != destroyed
    }
}
