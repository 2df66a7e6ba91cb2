//! One worker's process: what it does, step by step. It keeps to the protocol as `loader_worker::commands`
//! and `loader_worker::inbox` do.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    mem,
    time::Instant,
};

use loader_ipc::{
    arena::Encoded,
    control::WorkerState,
    frame::{
        BadSampleRecord, Command, Event, ExitStatus, Failure, Indices, Lease, MAX_UNANSWERED, ONE_BY_ONE,
        Stage, Task,
    },
};

use super::{
    memory::Writer,
    shared::Shared,
    world::{Content, Fault, World},
};
use crate::options::OnBadSample;

/// The position of a shard that cannot be read any further.
const OVER: u64 = u64::MAX;
/// SIGSEGV.
const CRASH: ExitStatus = ExitStatus::Signal { signal: 11, core_dumped: false };

/// A worker's process, and what main knows of it.
#[derive(Debug)]
pub(super) struct Worker {
    pub(super) pid: u32,
    /// How the process has ended; `None` while it runs.
    pub(super) ended: Option<ExitStatus>,
    pub(super) is_stopped: bool,
    /// True once it has sent an invalid event.
    pub(super) is_liar: bool,
    /// Number of events that main receives before the invalid one, until main has received that.
    pub(super) before_lie: Option<usize>,
    /// True if the reaper has missed its exit.
    pub(super) is_exit_missed: bool,
    /// Main has received the report of its exit, and no other process was adopted.
    pub(super) is_down: bool,
    pub(super) has_sentinel: bool,
    pub(super) restart: Restart,
    pub(super) commands: VecDeque<Option<Command>>,
    pub(super) notices: VecDeque<Notice>,
    pub(super) claims: [Claim; MAX_UNANSWERED],
    /// Reports that main has not received.
    pub(super) events: VecDeque<Event>,
    /// Slots that it has used.
    pub(super) used: BTreeSet<u32>,
    /// What the control page says: what it does, on which task and sample.
    pub(super) state: (WorkerState, u64, u64),
    /// Since when.
    pub(super) since: Instant,
    pub(super) batches: u64,
    inbox: Inbox,
    activity: Activity,
    /// By shard that is open, the number of items that were taken from it.
    cursors: BTreeMap<u32, u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Restart {
    No,
    UnderWay,
    Done,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Claim {
    Open,
    Begun,
    Withdrawn,
}

#[derive(Debug)]
pub(super) enum Notice {
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
    Loading(Loading),
    /// In a sample that never ends.
    Hung,
    /// Waits for a larger slot.
    Waiting {
        loading: Loading,
        has_vacated: bool,
    },
}

/// A batch that is being loaded.
#[derive(Debug)]
struct Loading {
    task: Task,
    samples: Vec<u64>,
    /// Number of samples that are done.
    done: usize,
    /// Number of steps that the current sample still needs; `None` before it was begun.
    steps: Option<u32>,
    left_out: Vec<BadSampleRecord>,
}

/// What a process sees of its surroundings.
pub(super) struct Surroundings<'a> {
    pub(super) number: Writer,
    pub(super) world: &'a World,
    pub(super) shared: &'a Shared,
    /// False once the tasks that it has are not wanted any more.
    pub(super) is_wanted: bool,
    /// A number that says whether rare things happen after this batch.
    pub(super) luck: u32,
    pub(super) has_memory_limit: bool,
}

impl Worker {
    pub(super) fn new(pid: u32, now: Instant) -> Self {
        Self {
            pid,
            ended: None,
            is_stopped: false,
            is_liar: false,
            before_lie: None,
            is_exit_missed: false,
            is_down: false,
            has_sentinel: false,
            restart: Restart::No,
            commands: VecDeque::new(),
            notices: VecDeque::new(),
            claims: [Claim::Open; MAX_UNANSWERED],
            events: VecDeque::new(),
            used: BTreeSet::new(),
            state: (WorkerState::Starting, 0, 0),
            since: now,
            batches: 0,
            inbox: Inbox::default(),
            activity: Activity::Starting,
            cursors: BTreeMap::new(),
        }
    }

    /// A worker without a process.
    pub(super) fn absent(now: Instant) -> Self {
        Self { ended: Some(ExitStatus::Unknown), is_down: true, ..Self::new(0, now) }
    }

    pub(super) fn has_report(&self) -> bool {
        let has_exited = self.ended.is_some() && !self.is_down && !self.is_exit_missed;
        !self.events.is_empty() || has_exited || self.restart == Restart::Done
    }

    /// True if the process runs and has told main whether it could open the dataset.
    pub(super) fn has_opened(&self) -> bool {
        self.ended.is_none() && !matches!(self.activity, Activity::Starting)
    }

    pub(super) fn is_hung(&self) -> bool {
        matches!(self.activity, Activity::Hung)
    }

    /// A task that it was sent and has not begun.
    pub(super) fn waiting_task(&self) -> Option<(u64, Lease)> {
        self.commands.iter().find_map(|command| match command {
            Some(Command::Task(task)) => Some((task.number, task.lease)),
            _ => None,
        })
    }

    /// True if it still has a task with this claim.
    pub(super) fn has_claim(&self, claim: u32) -> bool {
        let in_queue = self
            .commands
            .iter()
            .any(|command| matches!(command, Some(Command::Task(task)) if task.claim == claim));
        in_queue || self.inbox.tasks.iter().any(|task| task.claim == claim)
    }

    /// True if the process, or its start, would do something.
    pub(super) fn can_step(&self) -> bool {
        let has_work = || match &self.activity {
            Activity::Starting | Activity::Loading(_) => true,
            Activity::Hung => false,
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
        self.restart == Restart::UnderWay || (self.ended.is_none() && !self.is_stopped && has_work())
    }

    /// Does one step.
    pub(super) fn step(&mut self, around: &Surroundings<'_>) {
        if self.restart == Restart::UnderWay {
            self.restart = Restart::Done;
            return;
        }
        match mem::replace(&mut self.activity, Activity::Idle) {
            Activity::Starting => {
                self.enter(WorkerState::Idle, 0, 0, around);
                self.events.push_back(Event::Ready);
            }
            Activity::Idle => self.idle(around),
            Activity::Loading(loading) => self.load(loading, around),
            Activity::Hung => self.activity = Activity::Hung,
            Activity::Waiting { loading, has_vacated } => self.wait(loading, has_vacated, around),
        }
    }

    fn enter(&mut self, state: WorkerState, task: u64, sample: u64, around: &Surroundings<'_>) {
        (self.state, self.since) = ((state, task, sample), around.shared.now());
    }

    /// Ends the process.
    pub(super) fn end(&mut self, status: ExitStatus, number: Writer, shared: &Shared) {
        self.ended.get_or_insert(status);
        shared.memory.borrow_mut().forget(number);
    }

    /// Reads what has come, and begins a task.
    fn idle(&mut self, around: &Surroundings<'_>) {
        self.read();
        let inbox = &mut self.inbox;
        if let Some((task, lease)) = inbox.unused.pop() {
            return self.events.push_back(Event::Unused { task, lease });
        }
        let Some(front) = inbox.tasks.front_mut() else {
            if let Some(epoch) = inbox.resume.take() {
                self.cursors.clear();
                self.events.push_back(Event::Resumed { epoch });
            } else if inbox.is_ended {
                self.events.push_back(Event::Bye);
                self.end(ExitStatus::Code(0), around.number, around.shared);
            }
            return;
        };
        let claim = &mut self.claims[front.claim as usize];
        if !inbox.is_first_begun && *claim == Claim::Withdrawn {
            let number = front.number;
            let offered = inbox.offers.remove(&number);
            inbox.unused.extend(offered.map(|lease| (number, lease)));
            inbox.tasks.pop_front();
            around.shared.count("tasks withdrawn");
            return self.events.push_back(Event::Withdrawn { task: number });
        }
        *claim = Claim::Begun;
        inbox.is_first_begun = true;
        if let Some(offered) = inbox.offers.remove(&front.number) {
            // The snapshot is in the task's first slot.
            let is_bound = matches!(front.indices, Indices::NextOf { snapshot: Some(_), .. });
            let lease = if is_bound { offered } else { mem::replace(&mut front.lease, offered) };
            let task = front.number;
            around.shared.count("slots offered");
            return self.events.push_back(Event::Unused { task, lease });
        }
        inbox.is_first_begun = false;
        let Some(task) = inbox.tasks.pop_front() else { return };
        self.begin(task, around);
    }

    fn read(&mut self) {
        let inbox = &mut self.inbox;
        for command in self.commands.drain(..) {
            match command {
                Some(Command::Task(task)) => inbox.tasks.push_back(task),
                Some(Command::Offer { task, lease }) => {
                    match inbox.tasks.iter().any(|waiting| waiting.number == task) {
                        true => drop(inbox.offers.insert(task, lease)),
                        false => inbox.unused.push((task, lease)),
                    }
                }
                Some(Command::Resume { epoch }) => inbox.resume = Some(epoch),
                None => inbox.is_ended = true,
            }
        }
    }

    fn begin(&mut self, task: Task, around: &Surroundings<'_>) {
        if !around.is_wanted {
            let (task, lease) = (task.number, task.lease);
            return self.events.push_back(Event::Skipped { task, lease, held: false });
        }
        let samples = match task.indices {
            Indices::NextOf { shard, position, .. } => {
                let cursor = self.cursors.entry(shard).or_insert(position);
                // As `Cursors::forget_stale`: another worker has read the shard since.
                if position > 0 {
                    *cursor = position;
                }
                let from = *cursor;
                let end = around.world.shard_len(shard).min(from.saturating_add(around.world.batch_size));
                (from..end).collect()
            }
            ref indices => World::samples(indices),
        };
        let first = match task.indices {
            // It reads the shard from its beginning, or from the snapshot, to reach the task's first item.
            Indices::NextOf { position, skip, .. } => position - skip,
            _ => samples.first().copied().unwrap_or(0),
        };
        self.enter(WorkerState::Fetching, task.number, first, around);
        around.shared.memory.borrow_mut().start_writing(task.lease.slot, around.number);
        let (done, steps, left_out) = (0, None, Vec::new());
        self.activity = Activity::Loading(Loading { task, samples, done, steps, left_out });
    }

    /// Goes on with a batch.
    fn load(&mut self, mut loading: Loading, around: &Surroundings<'_>) {
        if !around.is_wanted {
            return self.give_back(&loading, around, |task, lease| Event::Skipped {
                task,
                lease,
                held: false,
            });
        }
        match loading.steps {
            None if loading.done == loading.samples.len() => return self.finish_samples(loading, around),
            None => return self.begin_sample(loading, around),
            Some(0) => (loading.done, loading.steps) = (loading.done + 1, None),
            Some(steps) => loading.steps = Some(steps - 1),
        }
        self.activity = Activity::Loading(loading);
    }

    fn begin_sample(&mut self, mut loading: Loading, around: &Surroundings<'_>) {
        let (world, shared) = (around.world, around.shared);
        let (place, sample) = (loading.done, loading.samples[loading.done]);
        let known_bad = &loading.task.known_bad;
        let is_map_style = !matches!(loading.task.indices, Indices::NextOf { .. });
        let is_many = is_map_style && world.loads_many && !known_bad.contains(&ONE_BY_ONE);
        let state = if is_many { WorkerState::FetchingMany } else { WorkerState::Fetching };
        self.enter(state, loading.task.number, sample, around);
        let leave_out = |loading: &mut Loading, reason: &str| {
            let (place, reason) = (place as u32, reason.to_owned());
            loading.left_out.push(BadSampleRecord { place, index: sample, replaced_by: None, reason });
            (loading.done, loading.steps) = (place as usize + 1, None);
        };
        if known_bad.contains(&sample) {
            leave_out(&mut loading, "");
            self.activity = Activity::Loading(loading);
            return;
        }
        let fault = match loading.task.indices {
            Indices::NextOf { shard, .. } => world.fault_of_item(shard, sample),
            _ => world.fault(sample),
        };
        match fault {
            Fault::Fails if world.on_bad_sample == OnBadSample::Error => {
                shared.count("samples that fail");
                return self.fail(&loading, sample, around);
            }
            Fault::Fails => leave_out(&mut loading, "it is bad"),
            Fault::Crashes => {
                shared.count("samples that crash");
                return self.end(CRASH, around.number, shared);
            }
            Fault::Hangs => {
                shared.count("samples that hang");
                self.activity = Activity::Hung;
                return;
            }
            Fault::HangsOnce if shared.is_first_try(sample) => {
                shared.count("samples that hang once");
                self.activity = Activity::Hung;
                return;
            }
            Fault::None | Fault::HangsOnce => loading.steps = Some(world.steps(sample)),
        }
        self.activity = Activity::Loading(loading);
    }

    /// Ends the task whose samples are loaded.
    fn finish_samples(&mut self, loading: Loading, around: &Surroundings<'_>) {
        if loading.samples.is_empty() {
            return self.give_back(&loading, around, |task, lease| Event::Exhausted {
                task,
                lease,
                held: false,
            });
        }
        if loading.left_out.len() == loading.samples.len() {
            let bad = loading.left_out.clone();
            let event = |task, lease| Event::AllSamplesBad { task, lease, held: false, position: 0, bad };
            return self.give_back(&loading, around, event);
        }
        let needed = around.world.size(loading.content());
        let (task, lease) = (loading.task.number, loading.task.lease);
        self.enter(WorkerState::Sending, task, 0, around);
        if needed > lease.len {
            self.events.push_back(Event::NeedSlot { task, lease, needed });
            self.activity = Activity::Waiting { loading, has_vacated: false };
            return;
        }
        self.send(loading, lease, around);
    }

    /// Reports the batch.
    fn send(&mut self, loading: Loading, lease: Lease, around: &Surroundings<'_>) {
        let content = loading.content();
        let position = self.pass(content);
        let mut memory = around.shared.memory.borrow_mut();
        memory.finish_writing(lease.slot, around.number, Some(content));
        let held = around.luck < 20;
        if held {
            around.shared.count("tensors kept by workers");
            memory.keep(lease.slot, around.number);
        }
        drop(memory);
        self.batches += 1;
        let (task, bad) = (loading.task.number, loading.left_out);
        let encoded = Encoded { start: 0, len: around.world.size(content) };
        self.enter(WorkerState::Idle, task, 0, around);
        self.events.push_back(Event::Done { task, lease, encoded, held, position, bad });
        if around.has_memory_limit && around.luck > 960 {
            around.shared.count("workers that are too large");
            self.events.push_back(Event::Oversized { resident: 1 << 40 });
            self.end(ExitStatus::Code(0), around.number, around.shared);
        }
    }

    /// Reports that user code has failed on a sample.
    fn fail(&mut self, loading: &Loading, sample: u64, around: &Surroundings<'_>) {
        let mut ended = false;
        if let Indices::NextOf { shard, .. } = loading.task.indices {
            // Half of the failures of a shard are panics, which end it.
            ended = sample % 2 == 1;
            self.pass(loading.content());
            if ended {
                self.cursors.insert(shard, OVER);
            }
        }
        let position = match loading.content() {
            Content::Items { to, .. } => to,
            Content::Samples { .. } => 0,
        };
        let chain = vec!["it fails".to_owned()];
        let failure =
            Failure { stage: Stage::Fetch, index: Some(sample), chain, panicked: ended, backtrace: None };
        let event = |task, lease| Event::Failed { task, lease, failure, held: false, position, ended };
        self.give_back(loading, around, event);
    }

    /// Answers a task with an event that gives its slot back.
    fn give_back(
        &mut self,
        loading: &Loading,
        around: &Surroundings<'_>,
        event: impl FnOnce(u64, Lease) -> Event,
    ) {
        let Task { number, lease, .. } = loading.task;
        around.shared.memory.borrow_mut().finish_writing(lease.slot, around.number, None);
        self.enter(WorkerState::Sending, number, 0, around);
        self.events.push_back(event(number, lease));
    }

    /// Goes on after a request for a larger slot.
    fn wait(&mut self, loading: Loading, has_vacated: bool, around: &Surroundings<'_>) {
        let (task, old) = (loading.task.number, loading.task.lease);
        let give_up_old = || around.shared.memory.borrow_mut().finish_writing(old.slot, around.number, None);
        match self.notices.pop_front() {
            None => self.activity = Activity::Waiting { loading, has_vacated },
            Some(Notice::Vacate) => {
                around.shared.count("slots vacated");
                give_up_old();
                self.events.push_back(Event::Vacated { task, lease: old, held: false });
                self.activity = Activity::Waiting { loading, has_vacated: true };
            }
            Some(Notice::Grant(lease)) => {
                if !has_vacated {
                    give_up_old();
                }
                match lease {
                    Ok(lease) => {
                        let needed = around.world.size(loading.content());
                        assert!(lease.len >= needed, "too small a slot was granted: {lease:?} for {needed}");
                        around.shared.memory.borrow_mut().start_writing(lease.slot, around.number);
                        self.send(loading, lease, around);
                    }
                    Err(reason) => {
                        around.shared.count("larger slots refused");
                        let position = self.pass(loading.content());
                        let (failure, lease) = (Failure::to_send(reason), old);
                        let (held, ended) = (false, false);
                        self.events.push_back(Event::Failed { task, lease, failure, held, position, ended });
                    }
                }
            }
        }
    }

    /// Notes that the items of a batch were taken from its shard. Returns where the shard is then.
    fn pass(&mut self, content: Content) -> u64 {
        match content {
            Content::Items { shard, to, .. } => {
                self.cursors.insert(shard, to);
                to
            }
            Content::Samples { .. } => 0,
        }
    }
}

impl Loading {
    fn content(&self) -> Content {
        let first = self.samples[0];
        match self.task.indices {
            Indices::NextOf { shard, .. } => {
                Content::Items { shard, from: first, to: first + self.samples.len() as u64 }
            }
            _ => {
                let left_out = self.left_out.iter().map(|sample| 1 << sample.place).sum();
                Content::Samples { first, left_out }
            }
        }
    }
}
