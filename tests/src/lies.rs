//! Ways to break the protocol: a worker program that speaks the protocol and sends main something false.

use std::{
    env, fs,
    fs::File,
    os::unix::fs::FileExt,
    path::PathBuf,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use loader_ipc::{
    arena::Encoded,
    control::WorkerState,
    frame::{AfterFailure, BadSampleRecord, Command, Event, Failure, Lease, Task},
    handshake::{Bootstrap, Connected, Notice},
    patience::Patience,
    process::take_lifeline_from_stdin,
};
use nix::sys::signal::{Signal, raise};
use serde::{Deserialize, Serialize};

/// Time after which a lying worker ends if main has not killed it.
const DEADLINE: Duration = Duration::from_secs(30);
/// Time that [`Lie::VacatedLate`] waits, in which another worker loads its task.
pub const LATE: Duration = Duration::from_millis(300);

/// What a worker does at its first task instead of loading it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Lie {
    /// Answers a task of another worker.
    OtherWorkersTask,
    /// Answers a task that main has not sent yet.
    FutureTask,
    /// Answers with a slot on which it has no lease.
    OtherSlot,
    /// Answers with its slot under another lease.
    OtherGeneration,
    /// Answers with a slot larger than its own.
    LargerSlot,
    /// Answers with a batch that extends beyond its slot.
    BeyondSlot,
    /// Answers with a batch whose end overflows.
    EndlessBatch,
    /// Leaves out all samples.
    AllSamplesBad,
    /// Leaves out one sample.
    SampleLeftOut,
    /// Leaves out more samples than a frame may name.
    ManyLeftOut,
    /// Says that the shard of a map-style dataset is exhausted.
    Exhausted,
    /// Skips the task, as if its epoch were over.
    Skipped,
    /// Says that main has withdrawn the task.
    Withdrawn,
    /// Says that it has resumed another epoch.
    Resumed,
    /// Gives back a slot that main did not offer.
    Unused,
    /// Gives back its slot, which main did not ask for.
    Vacated,
    /// Asks for a larger slot twice, the second time under the old lease.
    AsksTwice,
    /// Asks twice for a slot that is too large.
    AsksAgain,
    /// Asks for a slot that is not larger.
    AsksForNothing,
    /// Says without end that it is ready.
    RepeatsReady,
    /// Says that it ends, and does not end.
    SaysBye,
    /// Says that it exceeds its memory limit, and does not end.
    Oversized,
    /// Writes noise over its queues until it is killed.
    Noise,
    /// Shrinks and enlarges all memory that it has; ends if the system refuses each change.
    Truncates,
    /// Writes noise over the control page, which all workers share.
    NoiseForAll,
    /// Reports its task as done, at this position in its shard.
    Advances(u64),
    /// Reports its task as failed, at the last possible position.
    FailsFarAhead,
    /// Sends nothing and shows itself as idle.
    Silent,
    /// Asks for a larger slot and, when main asks it to vacate the one that it has, says that its shard is
    /// exhausted. Kills itself if its task is the first one, because main does not ask for the slot of the
    /// batch that the user waits for.
    ExhaustedWhenAsked,
    /// Gives back its slot, which main did not ask for, when another worker has loaded the task.
    VacatedLate,
}

impl Lie {
    /// Makes the next process that calls [`taken`](Self::taken) tell this lie.
    ///
    /// # Panics
    /// Panics if the file cannot be written.
    pub fn prepare(self) {
        fs::write(file(), serde_json::to_vec(&self).expect("a lie is encodable"))
            .expect("the folder is writable");
    }

    /// Waits until a process has taken the prepared lie.
    pub fn wait_until_taken() {
        while file().exists() {
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Returns the prepared lie to the first process that calls this.
    pub fn taken() -> Option<Self> {
        let lie = serde_json::from_slice(&fs::read(file()).ok()?).ok()?;
        fs::remove_file(file()).ok().map(|()| lie)
    }

    /// Acts as an honest worker until its first task, and then tells the lie. Returns if main does not kill
    /// it.
    ///
    /// # Errors
    /// Fails if main does not answer.
    pub fn tell(self) -> anyhow::Result<()> {
        let (mut patience, deadline) = (Patience::new(DEADLINE), Instant::now() + DEADLINE);
        let lifeline = Arc::new(take_lifeline_from_stdin()?);
        let (bootstrap, fds) = Bootstrap::receive(&lifeline, &mut patience)?;
        let memory: Vec<File> =
            fds.iter().map(|fd| fd.try_clone().map(File::from)).collect::<Result<_, _>>()?;
        let listening = bootstrap.listen(&lifeline, |_| Ok(()), &mut patience)?;
        let connected = listening.accept(bootstrap, fds, &lifeline, &mut patience)?;
        let Connected { bootstrap, control, mut commands, mut results, .. } = connected;
        results.send(&Event::Ready)?;
        control.line_of(bootstrap.worker as usize).enter(WorkerState::Idle);
        let Some(Command::Task(task)) = commands.receive(deadline)? else { return Ok(()) };
        commands.begin(task.claim);
        match self {
            Self::RepeatsReady => loop {
                results.send(&Event::Ready)?;
            },
            Self::Noise => write_noise(&memory[QUEUES], deadline)?,
            Self::NoiseForAll => write_noise(&memory[CONTROL], deadline)?,
            Self::Truncates => {
                for memory in &memory {
                    let len = memory.metadata()?.len();
                    if [0, 1, len - 1, len + 1].into_iter().any(|other| memory.set_len(other).is_ok()) {
                        thread::sleep(DEADLINE);
                    }
                }
            }
            Self::ExhaustedWhenAsked => {
                if task.number == 0 {
                    raise(Signal::SIGKILL)?;
                }
                let Task { number: task, lease, .. } = task;
                results.send(&Event::NeedSlot { task, lease, needed: lease.len + 1 })?;
                while !matches!(lifeline.receive::<Notice>(deadline)?.0, Notice::Vacate { .. }) {}
                results.send(&Event::Exhausted { task, lease, held: false })?;
                thread::sleep(DEADLINE);
            }
            _ => {
                if self == Self::VacatedLate {
                    thread::sleep(LATE);
                }
                for event in self.events(&task) {
                    results.send(&event)?;
                }
                thread::sleep(DEADLINE);
            }
        }
        Ok(())
    }

    /// Returns the events that it sends about the task.
    fn events(self, &Task { number: task, lease, .. }: &Task) -> Vec<Event> {
        let done_with = |task, lease, (start, len), bad| {
            let encoded = Encoded { start, len };
            Event::Done { task, lease, encoded, held: false, position: 0.into(), bad, schema: None }
        };
        let done = |task, lease| done_with(task, lease, (0, 8), Vec::new());
        let encoded = |start, len| done_with(task, lease, (start, len), Vec::new());
        let bad = |position| BadSampleRecord {
            position,
            index: 0,
            replaced_by: None,
            reason: "it is not readable".into(),
        };
        let left_out = |bad| Event::AllSamplesBad { task, lease, held: false, position: 0.into(), bad };
        let asks = |needed| Event::NeedSlot { task, lease, needed };
        let event = match self {
            Self::OtherWorkersTask => done(task + 1, lease),
            Self::FutureTask => done(task + 1000, lease),
            Self::OtherSlot => done(task, Lease { slot: lease.slot + 1, ..lease }),
            Self::OtherGeneration => done(task, Lease { generation: lease.generation + 1, ..lease }),
            Self::LargerSlot => done(task, Lease { len: 2 * lease.len, ..lease }),
            Self::BeyondSlot => encoded(1, lease.len),
            Self::EndlessBatch => encoded(u64::MAX, u64::MAX),
            Self::AllSamplesBad => left_out(Vec::new()),
            Self::SampleLeftOut => done_with(task, lease, (0, 8), vec![bad(0)]),
            Self::ManyLeftOut => left_out((0..300).map(bad).collect()),
            Self::Exhausted => Event::Exhausted { task, lease, held: false },
            Self::Skipped => Event::Skipped { task, lease, held: false },
            Self::Withdrawn => Event::Withdrawn { task },
            Self::Resumed => Event::Resumed { epoch: 7 },
            Self::Unused => Event::Unused { task, lease },
            Self::Vacated | Self::VacatedLate => Event::Vacated { task, lease, held: false },
            Self::AsksTwice => return vec![asks(lease.len + 1); 2],
            Self::AsksAgain => return vec![asks(u64::MAX); 2],
            Self::AsksForNothing => asks(lease.len),
            Self::Advances(items) => {
                let position = items.into();
                let (encoded, bad) = (Encoded { start: 0, len: 8 }, Vec::new());
                Event::Done { task, lease, encoded, held: false, position, bad, schema: None }
            }
            Self::FailsFarAhead => {
                let failure = Failure::to_send("it has failed".into());
                Event::Failed {
                    task,
                    lease,
                    failure,
                    held: false,
                    position: u64::MAX.into(),
                    after: AfterFailure::Continues,
                }
            }
            Self::SaysBye => Event::Bye,
            Self::Oversized => Event::Oversized { resident: u64::MAX },
            Self::RepeatsReady
            | Self::Noise
            | Self::NoiseForAll
            | Self::Truncates
            | Self::Silent
            | Self::ExhaustedWhenAsked => return Vec::new(),
        };
        vec![event]
    }
}

/// Positions of the control page and of the queues' memory among the descriptors of a bootstrap.
const CONTROL: usize = 0;
const QUEUES: usize = 1;

fn write_noise(memory: &File, deadline: Instant) -> anyhow::Result<()> {
    let len = memory.metadata()?.len() as usize;
    let mut noise = vec![0; len];
    // The generator continues from pass to pass, so that each word changes all the time.
    let mut state = u64::from(std::process::id());
    while Instant::now() < deadline {
        for byte in &mut noise {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            *byte = (state >> 56) as u8;
        }
        memory.write_all_at(&noise, 0)?;
    }
    Ok(())
}

fn file() -> PathBuf {
    env::temp_dir().join("lie")
}
