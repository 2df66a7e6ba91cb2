//! Ways to lie to main: a worker program that speaks the protocol, and says in it what is not so.

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
    frame::{BadSampleRecord, Command, Event, Failure, Lease, Task},
    handshake::{Bootstrap, Connected, Notice},
    process::take_lifeline_from_stdin,
};
use nix::sys::signal::{Signal, raise};
use serde::{Deserialize, Serialize};

/// Whoever misses main's SIGKILL must not stay for ever.
const LONGEST: Duration = Duration::from_secs(30);
/// How long [`Lie::VacatedLate`] takes: another worker does the task meanwhile.
pub const LATE: Duration = Duration::from_millis(300);

/// What a worker does at its first task, instead of loading it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Lie {
    /// It has done a task that another worker has.
    OthersTask,
    /// It has done a task that nobody has yet.
    FutureTask,
    /// Its batch is in a slot that it has no lease on.
    OtherSlot,
    /// Its batch is in its slot, under a lease that is not the one it was given.
    OtherGeneration,
    /// Its slot is larger than it is.
    LargerSlot,
    /// Its batch reaches beyond its slot.
    BeyondSlot,
    /// Its batch ends beyond the end of numbers.
    EndlessBatch,
    /// It left the batch out.
    AllSamplesBad,
    /// It left a sample out.
    SampleLeftOut,
    /// It left out more samples than a frame may name.
    ManyLeftOut,
    /// The shard is over, and there are no shards.
    Exhausted,
    /// The task is of an epoch that is over.
    Skipped,
    /// The task was taken back from it.
    Withdrawn,
    /// It was told of another epoch.
    Resumed,
    /// It gives back a slot that it was not offered.
    Unused,
    /// It gives back its slot although main did not ask for the slot.
    Vacated,
    /// It asks for a slot, gets one, and asks with the one before.
    AsksTwice,
    /// It asks for a slot that is too large, and asks again.
    AsksAgain,
    /// It asks for a slot that is no larger.
    AsksForNothing,
    /// It says without end that it is ready.
    ReadyForEver,
    /// It says that it ends, and does not.
    SaysBye,
    /// It says that it has grown too large, and stays.
    Oversized,
    /// It writes noise over everything in its queues, for as long as it can.
    Noise,
    /// It cuts off, and enlarges, all memory that it was given, and ends if it could not.
    Truncates,
    /// It writes noise over what all workers share.
    NoiseForAll,
    /// It reports its task as done, at this position in its shard.
    Advances(u64),
    /// It reports its task as failed, at the last possible position.
    FailsFarAhead,
    /// It does nothing, and says that it is idle.
    Silent,
    /// It asks for a larger slot, and says that its shard is over when main asks it for the slot that it has. It dies if its first task
    /// is the first of all, since main does not ask for the slot of the batch that the user waits for.
    ExhaustedWhenAsked,
    /// After a while, when another worker has done its task, it gives its slot back although main did not ask for it.
    VacatedLate,
}

impl Lie {
    /// Makes the next process that calls [`taken`](Self::taken) tell this lie.
    /// # Panics
    /// When the file cannot be written.
    pub fn prepare(self) {
        fs::write(place(), serde_json::to_vec(&self).expect("it is a word")).expect("the folder is there");
    }

    /// The lie that this process is to tell, if it is the first one that asks.
    pub fn taken() -> Option<Self> {
        let lie = serde_json::from_slice(&fs::read(place()).ok()?).ok()?;
        fs::remove_file(place()).ok().map(|()| lie)
    }

    /// Is a worker up to its first task, and then tells the lie. Returns if it is not killed for it.
    ///
    /// # Errors
    /// When main does not answer.
    pub fn tell(self) -> anyhow::Result<()> {
        let deadline = Instant::now() + LONGEST;
        let lifeline = Arc::new(take_lifeline_from_stdin()?);
        let (bootstrap, fds) = Bootstrap::receive(&lifeline, deadline)?;
        let memory: Vec<File> =
            fds.iter().map(|fd| fd.try_clone().map(File::from)).collect::<Result<_, _>>()?;
        let listening = bootstrap.listen(&lifeline, |_| Ok(()), deadline)?;
        let connected = listening.accept(bootstrap, fds, &lifeline, deadline)?;
        let Connected { bootstrap, control, mut commands, mut results, .. } = connected;
        results.send(&Event::Ready)?;
        control.line_of(bootstrap.worker as usize).enter(WorkerState::Idle);
        let Some(Command::Task(task)) = commands.receive(deadline)? else { return Ok(()) };
        commands.begin(task.claim);
        match self {
            Self::ReadyForEver => loop {
                results.send(&Event::Ready)?;
            },
            Self::Noise => write_noise(&memory[QUEUES], deadline)?,
            Self::NoiseForAll => write_noise(&memory[CONTROL], deadline)?,
            Self::Truncates => {
                for memory in &memory {
                    let len = memory.metadata()?.len();
                    if [0, 1, len - 1, len + 1].into_iter().any(|other| memory.set_len(other).is_ok()) {
                        thread::sleep(LONGEST);
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
                thread::sleep(LONGEST);
            }
            _ => {
                if self == Self::VacatedLate {
                    thread::sleep(LATE);
                }
                for event in self.events(&task) {
                    results.send(&event)?;
                }
                thread::sleep(LONGEST);
            }
        }
        Ok(())
    }

    /// What it says of the task.
    fn events(self, &Task { number: task, lease, .. }: &Task) -> Vec<Event> {
        let done_with = |task, lease, (start, len), bad| {
            let encoded = Encoded { start, len };
            Event::Done { task, lease, encoded, held: false, position: 0, bad }
        };
        let done = |task, lease| done_with(task, lease, (0, 8), Vec::new());
        let encoded = |start, len| done_with(task, lease, (start, len), Vec::new());
        let bad = |place| BadSampleRecord { place, index: 0, replaced_by: None, reason: "it is not".into() };
        let left_out = |bad| Event::AllSamplesBad { task, lease, held: false, position: 0, bad };
        let asks = |needed| Event::NeedSlot { task, lease, needed };
        let event = match self {
            Self::OthersTask => done(task + 1, lease),
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
            Self::Advances(position) => {
                let (encoded, bad) = (Encoded { start: 0, len: 8 }, Vec::new());
                Event::Done { task, lease, encoded, held: false, position, bad }
            }
            Self::FailsFarAhead => {
                let failure = Failure::to_send("it has failed".into());
                Event::Failed { task, lease, failure, held: false, position: u64::MAX, ended: false }
            }
            Self::SaysBye => Event::Bye,
            Self::Oversized => Event::Oversized { resident: u64::MAX },
            Self::ReadyForEver
            | Self::Noise
            | Self::NoiseForAll
            | Self::Truncates
            | Self::Silent
            | Self::ExhaustedWhenAsked => return Vec::new(),
        };
        vec![event]
    }
}

/// Where a bootstrap has the control page, and the memory of the worker's queues.
const CONTROL: usize = 0;
const QUEUES: usize = 1;

fn write_noise(memory: &File, deadline: Instant) -> anyhow::Result<()> {
    let len = memory.metadata()?.len() as usize;
    let mut noise = vec![0; len];
    // Something else each time, and never the same pattern in a word.
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

fn place() -> PathBuf {
    env::temp_dir().join("lie")
}
