//! A simulated worker process, which runs step by step. It follows the protocol as `loader_worker::commands`
//! and `loader_worker::inbox` do.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    mem,
    time::{Duration, Instant},
};

use loader_ipc::{
    arena::Encoded,
    control::WorkerState,
    frame::{
        AfterFailure, BadSampleRecord, Command, Event, ExitStatus, Failure, Indices, Lease, MAX_UNANSWERED,
        ONE_BY_ONE, Stage, StreamPosition, Task,
    },
};

use super::{
    dataset::{Content, Fault, SimulatedDataset},
    memory::Writer,
    shared::Shared,
};
use crate::options::OnBadSample;

/// The position of a shard that a failure has ended.
const SHARD_ENDED: u64 = u64::MAX;
/// The exit status of a worker that SIGSEGV has ended.
const CRASH: ExitStatus = ExitStatus::Signal { signal: 11, core_dumped: false };

/// A worker's process, and what the simulated main knows of it.
#[derive(Debug)]
pub(super) struct Worker {
    pub(super) pid: u32,
    /// How the process has ended; `None` while it runs.
    pub(super) ended: Option<ExitStatus>,
    pub(super) is_stopped: bool,
    /// True once the worker has sent an invalid event.
    pub(super) is_liar: bool,
    /// Number of events that main receives before the invalid event; `None` if main will receive no invalid
    /// event.
    pub(super) before_lie: Option<usize>,
    /// True if the reaper has missed the worker's exit.
    pub(super) is_exit_missed: bool,
    /// True if main has received the report of the exit, and has adopted no other process.
    pub(super) is_down: bool,
    pub(super) has_sentinel: bool,
    pub(super) restart: Restart,
    pub(super) commands: VecDeque<Option<Command>>,
    pub(super) notices: VecDeque<Notice>,
    pub(super) claims: [Claim; MAX_UNANSWERED],
    /// Events that main has not received.
    pub(super) events: VecDeque<Event>,
    /// Slots that main has told the worker about.
    pub(super) used: BTreeSet<u32>,
    /// What the control page says: the state, the task and the sample.
    pub(super) state: (WorkerState, u64, u64),
    /// When the worker entered `state`.
    pub(super) since: Instant,
    /// Time since then in which main has waited and checked the workers.
    pub(super) watched: Duration,
    pub(super) batches: u64,
    inbox: Inbox,
    activity: Activity,
    /// The number of items taken from each open shard.
    cursors: BTreeMap<u32, u64>,
    /// Epoch and number of each task begun.
    begun: BTreeSet<(u64, u64)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
/// The start of a process that takes the place of one that has ended.
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
    /// The worker loads a sample that never ends.
    Hung,
    /// The worker waits for a larger slot.
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
    /// Number of steps that the current sample still needs; `None` before the worker begins the sample.
    steps: Option<u32>,
    left_out: Vec<BadSampleRecord>,
}

/// What a worker process can see and use.
pub(super) struct Environment<'a> {
    pub(super) number: Writer,
    pub(super) dataset: &'a SimulatedDataset,
    pub(super) shared: &'a Shared,
    /// False once the epoch was abandoned, or all workers are to end.
    pub(super) is_wanted: bool,
    /// A random number below 1000. After a batch, the worker keeps a tensor if the number is below 20, and
    /// exceeds its memory limit if it is above 960.
    pub(super) chance: u32,
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
            watched: Duration::ZERO,
            batches: 0,
            inbox: Inbox::default(),
            activity: Activity::Starting,
            cursors: BTreeMap::new(),
            begun: BTreeSet::new(),
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

    /// True if the process runs and user code loads a sample.
    pub(super) fn is_in_sample(&self) -> bool {
        self.ended.is_none() && matches!(self.state.0, WorkerState::Fetching | WorkerState::FetchingMany)
    }

    /// Returns a task that main has sent and the worker has not read.
    pub(super) fn waiting_task(&self) -> Option<(u64, Lease)> {
        self.commands.iter().find_map(|command| match command {
            Some(Command::Task(task)) => Some((task.number, task.lease)),
            _ => None,
        })
    }

    /// True if the worker has a task with this claim that it has not begun.
    pub(super) fn has_claim(&self, claim: u32) -> bool {
        let in_queue = self
            .commands
            .iter()
            .any(|command| matches!(command, Some(Command::Task(task)) if task.claim == claim));
        in_queue || self.inbox.tasks.iter().any(|task| task.claim == claim)
    }

    /// True if the process can do a step, or is being started.
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
    pub(super) fn step(&mut self, env: &Environment<'_>) {
        if self.restart == Restart::UnderWay {
            self.restart = Restart::Done;
            return;
        }
        match mem::replace(&mut self.activity, Activity::Idle) {
            Activity::Starting => {
                self.enter(WorkerState::Idle, 0, 0, env);
                self.events.push_back(Event::Ready);
            }
            Activity::Idle => self.idle(env),
            Activity::Loading(loading) => self.load(loading, env),
            Activity::Hung => self.activity = Activity::Hung,
            Activity::Waiting { loading, has_vacated } => self.wait(loading, has_vacated, env),
        }
    }

    fn enter(&mut self, state: WorkerState, task: u64, sample: u64, env: &Environment<'_>) {
        (self.state, self.since, self.watched) = ((state, task, sample), env.shared.now(), Duration::ZERO);
    }

    /// Ends the process.
    pub(super) fn end(&mut self, status: ExitStatus, number: Writer, shared: &Shared) {
        self.ended.get_or_insert(status);
        shared.memory.borrow_mut().forget(number);
    }

    /// Reads the commands, then begins or skips a task, gives back a lease, resumes, or ends.
    fn idle(&mut self, env: &Environment<'_>) {
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
                self.end(ExitStatus::Code(0), env.number, env.shared);
            }
            return;
        };
        let claim = &mut self.claims[front.claim as usize];
        if !inbox.is_first_begun && *claim == Claim::Withdrawn {
            let number = front.number;
            let offered = inbox.offers.remove(&number);
            inbox.unused.extend(offered.map(|lease| (number, lease)));
            inbox.tasks.pop_front();
            env.shared.count("tasks withdrawn");
            return self.events.push_back(Event::Withdrawn { task: number });
        }
        *claim = Claim::Begun;
        inbox.is_first_begun = true;
        if let Some(offered) = inbox.offers.remove(&front.number) {
            // The snapshot is in the task's first slot, so the task must use that slot.
            let is_bound = matches!(front.indices, Indices::NextOf { snapshot: Some(_), .. });
            let lease = if is_bound { offered } else { mem::replace(&mut front.lease, offered) };
            let task = front.number;
            env.shared.count("slots offered");
            return self.events.push_back(Event::Unused { task, lease });
        }
        inbox.is_first_begun = false;
        let Some(task) = inbox.tasks.pop_front() else { return };
        self.begin(task, env);
    }

    fn read(&mut self) {
        let inbox = &mut self.inbox;
        for command in self.commands.drain(..) {
            match command {
                Some(Command::Task(task)) => inbox.tasks.push_back(task),
                Some(Command::Offer { task, lease }) => {
                    if inbox.tasks.iter().any(|waiting| waiting.number == task) {
                        inbox.offers.insert(task, lease);
                    } else {
                        inbox.unused.push((task, lease));
                    }
                }
                Some(Command::Resume { epoch }) => inbox.resume = Some(epoch),
                None => inbox.is_ended = true,
            }
        }
    }

    fn begin(&mut self, task: Task, env: &Environment<'_>) {
        if !env.is_wanted {
            let (task, lease) = (task.number, task.lease);
            return self.events.push_back(Event::Skipped { task, lease, held: false });
        }
        let is_first = self.begun.insert((task.epoch, task.number));
        assert!(is_first || !env.dataset.depends_on_worker, "task {} is loaded twice", task.number);
        let samples = match task.indices {
            Indices::NextOf { shard, position, .. } => {
                assert_eq!(position, position_after(position.items), "main has mixed up two positions");
                let position = position.items;
                let cursor = self.cursors.entry(shard).or_insert(position);
                // As in `Cursors::forget_stale`: another worker may have read the shard meanwhile.
                if position > 0 {
                    *cursor = position;
                }
                let from = *cursor;
                let end = env.dataset.shard_len(shard).min(from.saturating_add(env.dataset.batch_size));
                (from..end).collect()
            }
            ref indices => SimulatedDataset::samples(indices),
        };
        let first = match task.indices {
            // The worker first reads the items before the task again, from the snapshot or the beginning.
            Indices::NextOf { start, .. } => {
                assert_eq!(start, position_after(start.items), "main has mixed up two positions");
                start.items
            }
            _ => samples.first().copied().unwrap_or(0),
        };
        self.enter(WorkerState::Fetching, task.number, first, env);
        env.shared.memory.borrow_mut().start_writing(task.lease.slot, env.number);
        let (done, steps, left_out) = (0, None, Vec::new());
        self.activity = Activity::Loading(Loading { task, samples, done, steps, left_out });
    }

    /// Does the next step of a batch.
    fn load(&mut self, mut loading: Loading, env: &Environment<'_>) {
        if !env.is_wanted {
            return self.give_back(&loading, env, |task, lease| Event::Skipped { task, lease, held: false });
        }
        match loading.steps {
            None if loading.done == loading.samples.len() => return self.finish_samples(loading, env),
            None => return self.begin_sample(loading, env),
            Some(0) => (loading.done, loading.steps) = (loading.done + 1, None),
            Some(steps) => loading.steps = Some(steps - 1),
        }
        self.activity = Activity::Loading(loading);
    }

    fn begin_sample(&mut self, mut loading: Loading, env: &Environment<'_>) {
        let (dataset, shared) = (env.dataset, env.shared);
        let (position, sample) = (loading.done, loading.samples[loading.done]);
        let known_bad = &loading.task.known_bad;
        let is_map_style = !matches!(loading.task.indices, Indices::NextOf { .. });
        let is_many = is_map_style && dataset.loads_many && !known_bad.contains(&ONE_BY_ONE);
        let state = if is_many { WorkerState::FetchingMany } else { WorkerState::Fetching };
        self.enter(state, loading.task.number, sample, env);
        let leave_out = |loading: &mut Loading, reason: &str| {
            let (position, reason) = (position as u32, reason.to_owned());
            loading.left_out.push(BadSampleRecord { position, index: sample, replaced_by: None, reason });
            (loading.done, loading.steps) = (position as usize + 1, None);
        };
        if known_bad.contains(&sample) {
            leave_out(&mut loading, "");
            self.activity = Activity::Loading(loading);
            return;
        }
        let fault = match loading.task.indices {
            Indices::NextOf { shard, .. } => dataset.fault_of_item(shard, sample),
            _ => dataset.fault(sample),
        };
        match fault {
            Fault::Fails if dataset.on_bad_sample == OnBadSample::Error => {
                shared.count("samples that fail");
                return self.fail(&loading, sample, env);
            }
            Fault::Fails => leave_out(&mut loading, "it is bad"),
            Fault::Crashes => {
                shared.count("samples that crash");
                return self.end(CRASH, env.number, shared);
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
            Fault::None | Fault::HangsOnce => loading.steps = Some(dataset.steps(sample)),
        }
        self.activity = Activity::Loading(loading);
    }

    /// Reports the batch whose samples are loaded, or asks for a larger slot for it.
    fn finish_samples(&mut self, loading: Loading, env: &Environment<'_>) {
        if loading.samples.is_empty() {
            return self.give_back(&loading, env, |task, lease| Event::Exhausted {
                task,
                lease,
                held: false,
            });
        }
        if loading.left_out.len() == loading.samples.len() {
            let bad = loading.left_out.clone();
            let event = |task, lease| Event::AllSamplesBad {
                task,
                lease,
                held: false,
                position: position_after(0),
                bad,
            };
            return self.give_back(&loading, env, event);
        }
        let needed = env.dataset.size(loading.content());
        let (task, lease) = (loading.task.number, loading.task.lease);
        self.enter(WorkerState::Sending, task, 0, env);
        if needed > lease.len {
            self.events.push_back(Event::NeedSlot { task, lease, needed });
            self.activity = Activity::Waiting { loading, has_vacated: false };
            return;
        }
        self.send(loading, lease, env);
    }

    /// Writes the batch into a slot and reports it.
    fn send(&mut self, loading: Loading, lease: Lease, env: &Environment<'_>) {
        let content = loading.content();
        let position = self.advance_cursor(content);
        let mut memory = env.shared.memory.borrow_mut();
        memory.finish_writing(lease.slot, env.number, Some(content));
        let held = env.chance < 20;
        if held {
            env.shared.count("tensors kept by workers");
            memory.keep(lease.slot, env.number);
        }
        drop(memory);
        self.batches += 1;
        let (task, bad) = (loading.task.number, loading.left_out);
        let encoded = Encoded { start: 0, len: env.dataset.size(content) };
        self.enter(WorkerState::Idle, task, 0, env);
        self.events.push_back(Event::Done { task, lease, encoded, held, position, bad, schema: None });
        if env.has_memory_limit && env.chance > 960 {
            env.shared.count("workers that are too large");
            self.events.push_back(Event::Oversized { resident: 1 << 40 });
            self.end(ExitStatus::Code(0), env.number, env.shared);
        }
    }

    /// Reports that user code has failed on a sample.
    fn fail(&mut self, loading: &Loading, sample: u64, env: &Environment<'_>) {
        let mut after = AfterFailure::Continues;
        if let Indices::NextOf { shard, .. } = loading.task.indices {
            // Some failures of a shard are panics, and some say that the shard cannot be read further.
            after = match sample % 4 {
                1 => AfterFailure::Ends,
                3 => AfterFailure::EndsForEpoch,
                _ => AfterFailure::Continues,
            };
            self.advance_cursor(loading.content());
            if after != AfterFailure::Continues {
                self.cursors.insert(shard, SHARD_ENDED);
            }
        }
        let position = match loading.content() {
            Content::Items { from, .. } if after == AfterFailure::EndsForEpoch => from,
            Content::Items { to, .. } => to,
            Content::Samples { .. } => 0,
        };
        let position = position_after(position);
        let panicked = after == AfterFailure::Ends;
        let chain = vec!["it fails".to_owned()];
        let failure = Failure { stage: Stage::Fetch, index: Some(sample), chain, panicked, backtrace: None };
        let event = |task, lease| Event::Failed { task, lease, failure, held: false, position, after };
        self.give_back(loading, env, event);
    }

    /// Answers a task with an event that gives its slot back.
    fn give_back(
        &mut self,
        loading: &Loading,
        env: &Environment<'_>,
        event: impl FnOnce(u64, Lease) -> Event,
    ) {
        let Task { number, lease, .. } = loading.task;
        env.shared.memory.borrow_mut().finish_writing(lease.slot, env.number, None);
        self.enter(WorkerState::Sending, number, 0, env);
        self.events.push_back(event(number, lease));
    }

    /// Handles the next notice of main while the worker waits for a larger slot.
    fn wait(&mut self, loading: Loading, has_vacated: bool, env: &Environment<'_>) {
        let (task, old) = (loading.task.number, loading.task.lease);
        let stop_writing_old = || env.shared.memory.borrow_mut().finish_writing(old.slot, env.number, None);
        match self.notices.pop_front() {
            None => self.activity = Activity::Waiting { loading, has_vacated },
            Some(Notice::Vacate) => {
                env.shared.count("slots vacated");
                stop_writing_old();
                self.events.push_back(Event::Vacated { task, lease: old, held: false });
                self.activity = Activity::Waiting { loading, has_vacated: true };
            }
            Some(Notice::Grant(lease)) => {
                if !has_vacated {
                    stop_writing_old();
                }
                match lease {
                    Ok(lease) => {
                        let needed = env.dataset.size(loading.content());
                        assert!(lease.len >= needed, "too small a slot was granted: {lease:?} for {needed}");
                        env.shared.memory.borrow_mut().start_writing(lease.slot, env.number);
                        self.send(loading, lease, env);
                    }
                    Err(reason) => {
                        env.shared.count("larger slots refused");
                        let position = self.advance_cursor(loading.content());
                        let (failure, lease) = (Failure::to_send(reason), old);
                        let (held, after) = (false, AfterFailure::Continues);
                        self.events.push_back(Event::Failed { task, lease, failure, held, position, after });
                    }
                }
            }
        }
    }

    /// Moves the cursor of a batch's shard behind the batch. Returns the new position; the beginning without
    /// shards.
    fn advance_cursor(&mut self, content: Content) -> StreamPosition {
        match content {
            Content::Items { shard, to, .. } => {
                self.cursors.insert(shard, to);
                position_after(to)
            }
            Content::Samples { .. } => position_after(0),
        }
    }
}

/// Returns the position after `items` items of any shard. Its hash depends on `items`, so a worker notices if main
/// sends it the hash of another position.
fn position_after(items: u64) -> StreamPosition {
    StreamPosition { items, errors: items.wrapping_mul(0x9E37_79B9_7F4A_7C15) }
}

impl Loading {
    fn content(&self) -> Content {
        let first = self.samples[0];
        match self.task.indices {
            Indices::NextOf { shard, .. } => {
                Content::Items { shard, from: first, to: first + self.samples.len() as u64 }
            }
            _ => {
                let left_out = self.left_out.iter().map(|sample| 1 << sample.position).sum();
                Content::Samples { first, left_out }
            }
        }
    }
}
