//! The frames on the two kinds of queue. Both halves of the protocol, main and worker, use these names.
//!
//! New variants go to the end: a frame's number on the wire is its place here.

use serde::{Deserialize, Serialize};

use crate::arena::Encoded;

/// Main to worker, on the worker's own task queue. `None` in its place is the sentinel: no more work, say [`Event::Bye`] and end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Order {
    /// Load one batch.
    Task(Task),
    /// A slot that was used a moment ago, and so is in the processor's cache, for a task that was sent before with another one. The
    /// worker gives back the one it does not use ([`Event::Unused`]).
    Offer {
        /// Number of the task.
        task: u64,
        /// The better slot.
        lease: Lease,
    },
    /// Another epoch begins with the tasks behind this: answer [`Event::Resumed`], and read shards from their beginning again.
    Resume {
        /// Number of the epoch.
        epoch: u64,
    },
}

/// One batch to load. The task belongs to main; the worker holds a lease on it and on its slot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Task {
    /// Epoch that the batch is of.
    pub epoch: u64,
    /// Place of the batch in the epoch, from 0.
    pub number: u64,
    /// Slot to put the batch into.
    pub lease: Lease,
    /// What to load.
    pub indices: Indices,
    /// Regions of slots that no longer exist, to be unmapped, by number of the first slot; at most [`MOST_FORGOTTEN`] at a time.
    pub forget: Vec<u32>,
    /// Which of the queue's [`MOST_UNANSWERED`] claims says whether it has been begun, or withdrawn before.
    pub claim: u32,
    /// Samples that count as bad without being tried, for trying them has ended a worker; at most [`MOST_KNOWN_BAD`].
    /// [`ONE_BY_ONE`] says that samples are not to be loaded many at once.
    pub known_bad: Vec<u64>,
}

/// Max number of regions that one task tells the worker to unmap, so that its frame stays small.
pub const MOST_FORGOTTEN: usize = 64;
/// Most samples that a task says are bad, so that its frame stays small.
pub const MOST_KNOWN_BAD: usize = 64;
/// In place of a sample that is known to be bad: it is one of them, and will come out when each is loaded on its own.
pub const ONE_BY_ONE: u64 = u64::MAX;
/// Most bad samples that a frame tells of.
pub const MOST_BAD_SAMPLES: usize = 256;
/// Most indices that travel in a frame; more travel in the slot. A frame of a few KiB keeps the number of tasks that fit a ring well
/// above [`MOST_UNANSWERED`].
pub const MOST_INLINE_INDICES: usize = 256;
/// Slots from this size on are offered while they are in the cache: below it, the frame costs more than it saves.
pub const LEAST_OFFERED: u64 = 1 << 20;
/// Most tasks that a worker is sent ahead. More wait in main: a queue that is never full is a queue that main never waits for.
pub const MOST_UNANSWERED: usize = 16;

/// The right to write one slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// Number of the slot; never used again for other memory.
    pub slot: u32,
    /// Counts the slot's leases, so that an answer under an old one is told apart.
    pub generation: u32,
    /// Size of the slot in bytes.
    pub len: u64,
}

/// The samples of a batch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Indices {
    /// `start..start + len`.
    Range {
        /// First index.
        start: u64,
        /// Number of indices.
        len: u64,
    },
    /// Any few indices.
    List(Vec<u64>),
    /// Too many for a frame: `len` little-endian `u64`s at the start of the leased slot.
    InSlot {
        /// Number of indices.
        len: u64,
    },
    /// None: the next samples of a shard of an iterable dataset.
    NextOf {
        /// Number of the shard.
        shard: u32,
        /// Items that were taken from it before this task, if it is not open yet: it is opened at that place.
        position: u64,
        /// How many of them come after the snapshot.
        skip: u64,
        /// Bytes of the snapshot, at the start of the leased slot, if there is one.
        snapshot: Option<u64>,
    },
}

/// What main takes from the result queue. Only events come from other processes; the rest is put there by main's own threads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Report {
    /// A worker says something.
    Event {
        /// The worker.
        worker: usize,
        /// What it says.
        event: Event,
    },
    /// A worker's process has ended. From the reaper; it comes behind everything that the worker had said.
    Exited {
        /// The worker.
        worker: usize,
        /// Its process id.
        pid: u32,
        /// How it ended.
        status: ExitStatus,
    },
    /// The attempt to start a worker again is over, well or not. From the thread that made it.
    Started {
        /// The worker.
        worker: usize,
    },
}

/// Worker to main, on the worker's part of the result queue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Event {
    /// Dataset, setup and the worker's init hook are through.
    Ready,
    /// They are not; the worker stays, and fails every task with this.
    NotReady {
        /// Why.
        failure: Failure,
    },
    /// A batch lies in its slot.
    Done {
        /// Number of the task.
        task: u64,
        /// The lease it was loaded under.
        lease: Lease,
        /// Where in the slot its encoding lies.
        encoded: Encoded,
        /// True when user code in the worker still holds a tensor in the slot: main must not write to the
        /// slot, and must not use it again.
        held: bool,
        /// Items taken from the task's shard so far; 0 for a task of indices.
        position: u64,
        /// Samples that were left out or replaced; at most [`MOST_BAD_SAMPLES`].
        bad: Vec<BadSample>,
    },
    /// The batch is larger than its slot. The worker waits for a grant on its lifeline.
    NeedSlot {
        /// Number of the task.
        task: u64,
        /// The lease that is too small.
        lease: Lease,
        /// Bytes that would do.
        needed: u64,
    },
    /// The batch failed; the lease is given back.
    Failed {
        /// Number of the task.
        task: u64,
        /// The lease it was tried under.
        lease: Lease,
        /// Why.
        failure: Failure,
        /// As in [`Done`](Self::Done).
        held: bool,
        /// As in [`Done`](Self::Done).
        position: u64,
        /// The task's shard was ended by this, a panic: whoever resumes behind it must not go on either.
        ended: bool,
    },
    /// The task was not done: its epoch is over or abandoned.
    Skipped {
        /// Number of the task.
        task: u64,
        /// The lease, given back.
        lease: Lease,
        /// As in [`Done`](Self::Done).
        held: bool,
    },
    /// A lease that a task had and does not need: it was offered another one, or the offer came too late.
    Unused {
        /// Number of the task.
        task: u64,
        /// The lease, given back.
        lease: Lease,
    },
    /// The sentinel was read; nothing more comes from this worker.
    Bye,
    /// The task was not tried: it had been withdrawn, and is another worker's.
    Withdrawn {
        /// Number of the task.
        task: u64,
    },
    /// The task's shard has no more samples.
    Exhausted {
        /// Number of the task.
        task: u64,
        /// The lease, given back.
        lease: Lease,
        /// As in [`Done`](Self::Done).
        held: bool,
    },
    /// Everything before [`Order::Resume`] is answered, and another epoch begins.
    Resumed {
        /// Number of the epoch.
        epoch: u64,
    },
    /// Every sample of the batch was left out: there is none.
    LeftOut {
        /// Number of the task.
        task: u64,
        /// The lease, given back.
        lease: Lease,
        /// As in [`Done`](Self::Done).
        held: bool,
        /// As in [`Done`](Self::Done).
        position: u64,
        /// As in [`Done`](Self::Done).
        bad: Vec<BadSample>,
    },
    /// The worker has grown too large and ends, so that another process takes its place. What it was given and has not begun is undone.
    Oversized {
        /// Bytes of its own that it has in memory.
        resident: u64,
    },
    /// The worker has given its slot back, as [`Notice::Vacate`](crate::handshake::Notice::Vacate) told it, and still waits for a larger one.
    Vacated {
        /// Number of the task.
        task: u64,
        /// The lease, given back.
        lease: Lease,
        /// As in [`Done`](Self::Done).
        held: bool,
    },
}

impl Event {
    /// What cannot be right in it, whatever its worker was told.
    ///
    /// # Errors
    /// The problem.
    pub(crate) fn check(&self) -> Result<(), &'static str> {
        let ends_beyond =
            |encoded: &Encoded, len| encoded.start.checked_add(encoded.len).is_none_or(|end| end > len);
        match self {
            Self::Done { lease, encoded, .. } if ends_beyond(encoded, lease.len) => {
                Err("it says that its batch reaches beyond its slot")
            }
            Self::NeedSlot { lease, needed, .. } if *needed <= lease.len => {
                Err("it asks for a slot that is no larger than the one it has")
            }
            Self::Done { bad, .. } | Self::LeftOut { bad, .. } if bad.len() > MOST_BAD_SAMPLES => {
                Err("it names more bad samples than a batch may have")
            }
            _ => Ok(()),
        }
    }
}

/// A sample that could not be loaded and did not fail its batch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BadSample {
    /// Its place in the batch; of no meaning for a shard's.
    pub place: u32,
    /// Its index, or its place in its shard.
    pub index: u64,
    /// The one that was taken instead.
    pub replaced_by: Option<u64>,
    /// What is wrong with it; empty for one that main said is bad.
    pub reason: String,
}

impl BadSample {
    /// Cuts the reasons of a batch's bad samples, so that they fit a frame.
    pub fn cut_to_frame(samples: &mut [Self]) {
        let share = 2 * LONGEST_TEXT / samples.len().max(1);
        samples.iter_mut().for_each(|sample| cut(&mut sample.reason, share.saturating_sub(NOTE)));
    }
}

/// What the note takes that says how much was cut.
const NOTE: usize = 40;

/// How user code failed, in a form that crosses a process boundary.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// Which piece of user code it was.
    pub stage: Stage,
    /// Index of the sample, where one is to blame.
    pub index: Option<u64>,
    /// The error and its causes, outermost first; a panic's message.
    pub chain: Vec<String>,
    /// True for a panic.
    pub panicked: bool,
    /// Backtrace of the error, if one was captured.
    pub backtrace: Option<String>,
}

/// The piece of user code that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Stage {
    /// Decoding the dataset in the worker.
    Open,
    /// `Dataset::setup`.
    Setup,
    /// The worker's init hook.
    WorkerInit,
    /// `Dataset::get` or `get_many`.
    Fetch,
    /// Collation.
    Collate,
    /// Encoding the batch, or finding room for it.
    Send,
}

/// Longest part of a [`Failure`], so that a frame stays below its limit.
const LONGEST_TEXT: usize = 8 * 1024;
const MOST_CAUSES: usize = 8;

impl Failure {
    /// A failure to send a batch, which is of no sample and has no backtrace.
    pub fn to_send(reason: String) -> Self {
        Self { stage: Stage::Send, index: None, chain: vec![reason], panicked: false, backtrace: None }
    }

    /// Cuts what is too long for a frame, with a note where something was cut.
    #[must_use]
    pub fn cut_to_frame(mut self) -> Self {
        if self.chain.len() > MOST_CAUSES {
            let left_out = self.chain.len() - MOST_CAUSES;
            self.chain.truncate(MOST_CAUSES);
            self.chain.push(format!("[{left_out} more causes left out]"));
        }
        let share = LONGEST_TEXT / self.chain.len().max(1) * 2;
        self.chain.iter_mut().for_each(|text| cut(text, share));
        self.backtrace.iter_mut().for_each(|text| cut(text, 2 * LONGEST_TEXT));
        self
    }
}

fn cut(text: &mut String, most: usize) {
    if text.len() > most {
        let end = (0..=most).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0);
        let left_out = text.len() - end;
        text.truncate(end);
        text.push_str(&format!(" [{left_out} more bytes left out]"));
    }
}

/// How a worker's process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum ExitStatus {
    /// It exited with this code.
    Code(i32),
    /// A signal ended it.
    Signal {
        /// Number of the signal.
        signal: i32,
        /// Whether it dumped core.
        core_dumped: bool,
    },
    /// It is gone, and somebody else collected its status (a host that ignores SIGCHLD, or that reaps every child).
    Unknown,
}

impl std::fmt::Display for ExitStatus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Code(code) => write!(f, "exited with code {code}"),
            Self::Signal { signal, core_dumped } => {
                match nix::sys::signal::Signal::try_from(*signal) {
                    Ok(name) => write!(f, "killed by {name} ({signal})")?,
                    Err(_) => write!(f, "killed by signal {signal}")?,
                }
                if *core_dumped { f.write_str(", core dumped") } else { Ok(()) }
            }
            Self::Unknown => f.write_str("gone, status unknown (somebody else reaped it)"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{codec, queue::MAX_FRAME};

    #[test]
    fn any_failure_fits_a_frame() {
        let text = "ä".repeat(1 << 20);
        let failure = Failure {
            stage: Stage::Fetch,
            index: Some(3),
            chain: vec![text.clone(); 100],
            panicked: false,
            backtrace: Some(text),
        };
        let lease = Lease { slot: 0, generation: 0, len: 0 };
        let event = Event::Failed {
            task: 1,
            lease,
            failure: failure.cut_to_frame(),
            held: false,
            position: 0,
            ended: false,
        };
        assert!(codec::encode(&event).unwrap().len() <= MAX_FRAME);
    }

    #[test]
    fn any_bad_samples_fit_a_frame() {
        let reason = "ä".repeat(1 << 20);
        let sample = BadSample { place: u32::MAX, index: u64::MAX, replaced_by: Some(u64::MAX), reason };
        let lease = Lease { slot: u32::MAX, generation: u32::MAX, len: u64::MAX };
        for count in [1, 2, MOST_BAD_SAMPLES] {
            let mut bad = vec![sample.clone(); count];
            BadSample::cut_to_frame(&mut bad);
            let event = Event::LeftOut { task: u64::MAX, lease, held: true, position: u64::MAX, bad };
            assert!(codec::encode(&event).unwrap().len() <= MAX_FRAME);
        }
    }

    #[test]
    fn statuses_read_well() {
        assert_eq!(ExitStatus::Signal { signal: 9, core_dumped: false }.to_string(), "killed by SIGKILL (9)");
        assert_eq!(ExitStatus::Code(3).to_string(), "exited with code 3");
    }
}
