//! The messages on the index queues and the result queue, for main and workers.
//!
//! Add new variants at the end of an enum: the position of a variant is its number in the encoding.

use serde::{Deserialize, Serialize};

use crate::{arena::Encoded, schema::Schema, violation::ProtocolViolation};

pub use crate::limits::{MAX_BAD_SAMPLES, MAX_FORGOTTEN, MAX_INLINE_INDICES, MAX_KNOWN_BAD, MAX_UNANSWERED};

/// A command from main to one worker, on the worker's index queue. `None` in its place is the sentinel: there
/// are no more tasks, and the worker reports [`Event::Bye`] and ends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Command {
    /// Loads one batch.
    Task(Task),
    /// Offers another slot for a task that was sent before. The slot has just been used, so it is still in
    /// the processor's cache. The worker gives back the slot that it does not use ([`Event::Unused`]).
    Offer {
        /// Number of the task.
        task: u64,
        /// The lease on the offered slot.
        lease: Lease,
    },
    /// Begins another epoch, with the tasks behind this command. The worker answers [`Event::Resumed`], and
    /// reads shards from their beginning again.
    Resume {
        /// Number of the epoch.
        epoch: u64,
    },
}

/// One batch to load. Main owns the task and its slot; the worker has a lease on the slot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Task {
    /// Number of the batch's epoch.
    pub epoch: u64,
    /// Position of the batch in the epoch, from 0.
    pub number: u64,
    /// Lease on the slot for the batch.
    pub lease: Lease,
    /// Which samples to load.
    pub indices: Indices,
    /// Regions that no longer exist and that the worker unmaps, each by the number of its first slot; at most
    /// [`MAX_FORGOTTEN`].
    pub forget: Vec<u32>,
    /// Number of the task's claim, below [`MAX_UNANSWERED`]. The claim decides whether the worker begins the
    /// task or main withdraws it.
    pub claim: u32,
    /// Indices of samples that have ended a worker. They count as bad, and the worker does not try them. At
    /// most [`MAX_KNOWN_BAD`]. [`ONE_BY_ONE`] in the list means that the worker loads each sample on its own.
    pub known_bad: Vec<u64>,
}

/// Value in [`Task::known_bad`] after a worker ended while it loaded many samples with one call. Loading each
/// sample on its own shows which one is bad.
pub const ONE_BY_ONE: u64 = u64::MAX;
/// Minimum size in bytes of the slots that main offers while they are in the cache. For smaller slots the
/// frame costs more than the offer saves.
pub const MIN_OFFERED: u64 = 1 << 20;

/// The right of a worker to write one slot for one task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// Number of the slot. Numbers are never reused for other memory.
    pub slot: u32,
    /// Counts the leases on the slot, so that main recognises an answer under an old lease.
    pub generation: u32,
    /// Size of the slot in bytes.
    pub len: u64,
}

/// Which samples a task loads.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Indices {
    /// The indices `start..start + len`.
    Range {
        /// First index.
        start: u64,
        /// Number of indices.
        len: u64,
    },
    /// Up to [`MAX_INLINE_INDICES`] indices.
    List(Vec<u64>),
    /// More indices than fit a frame: `len` little-endian `u64`s at the start of the leased slot.
    InSlot {
        /// Number of indices.
        len: u64,
    },
    /// The next samples of a shard of an iterable dataset.
    NextOf {
        /// Number of the shard.
        shard: u32,
        /// The position in the shard before this task. If the shard is not open yet, it is opened there.
        position: StreamPosition,
        /// The position of the snapshot; the beginning of the shard if there is none.
        start: StreamPosition,
        /// Length in bytes of the snapshot at the start of the leased slot, if there is one.
        snapshot: Option<u64>,
    },
}

/// A position in a shard of an iterable dataset.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamPosition {
    /// Number of items taken from the shard.
    pub items: u64,
    /// Hash of those errors among these items that change which items follow; 0 if there is none.
    pub errors: u64,
}

impl StreamPosition {
    /// Returns `other` if it is further in the shard, and `self` otherwise.
    #[must_use]
    pub fn or_later(self, other: Self) -> Self {
        if other.items > self.items { other } else { self }
    }
}

/// Returns the position after this number of items, of which none is such an error.
impl From<u64> for StreamPosition {
    fn from(items: u64) -> Self {
        Self { items, errors: 0 }
    }
}

/// What main receives from the result queue. Only events come from other processes; main's own threads send
/// the rest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Report {
    /// A worker sent an event.
    Event {
        /// Number of the worker.
        worker: usize,
        /// The event.
        event: Event,
    },
    /// A worker's process has ended. The reaper sends it; main receives it after all events of that worker.
    Exited {
        /// Number of the worker.
        worker: usize,
        /// Its process id.
        pid: u32,
        /// How it ended.
        status: ExitStatus,
    },
    /// An attempt to restart a worker has ended, with or without success. The thread that made the attempt
    /// sends it.
    Started {
        /// Number of the worker.
        worker: usize,
    },
}

/// A message from a worker to main, on the worker's ring of the result queue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Event {
    /// The worker has opened the dataset and has run `setup` and `worker_init`.
    Ready,
    /// Opening the dataset, `setup` or `worker_init` failed. The worker does not end, and answers every task
    /// with this failure.
    NotReady {
        /// The failure.
        failure: Failure,
    },
    /// The batch is in its slot.
    Done {
        /// Number of the task.
        task: u64,
        /// The lease under which it was loaded.
        lease: Lease,
        /// Where in the slot the batch's encoding is.
        encoded: Encoded,
        /// True if user code in the worker holds a tensor in the slot: main must neither write to the slot
        /// nor reuse it.
        held: bool,
        /// The position in the task's shard; unused for a task of indices.
        position: StreamPosition,
        /// Samples that were left out or replaced; at most [`MAX_BAD_SAMPLES`].
        bad: Vec<BadSampleRecord>,
        /// The schema of the batch, from a worker program that is not the main program, with the first batch of an
        /// epoch.
        schema: Option<Box<Schema>>,
    },
    /// The batch is larger than its slot. The worker waits for a grant on its lifeline.
    NeedSlot {
        /// Number of the task.
        task: u64,
        /// The lease that is too small.
        lease: Lease,
        /// Size in bytes of a slot that would fit.
        needed: u64,
    },
    /// The batch failed; the worker gives the lease back.
    Failed {
        /// Number of the task.
        task: u64,
        /// The lease under which it was tried.
        lease: Lease,
        /// The failure.
        failure: Failure,
        /// As in [`Done`](Self::Done).
        held: bool,
        /// As in [`Done`](Self::Done).
        position: StreamPosition,
        /// What the failure means for the task's shard.
        after: AfterFailure,
    },
    /// The worker has skipped the task, because the epoch is over or abandoned.
    Skipped {
        /// Number of the task.
        task: u64,
        /// The lease, which the worker gives back.
        lease: Lease,
        /// As in [`Done`](Self::Done).
        held: bool,
    },
    /// The worker gives back a lease on a slot that the task does not need: main had offered two slots, or
    /// the offer came too late.
    Unused {
        /// Number of the task.
        task: u64,
        /// The lease, which the worker gives back.
        lease: Lease,
    },
    /// The worker has read the sentinel. It sends nothing more.
    Bye,
    /// The worker has skipped the task, because main has withdrawn it.
    Withdrawn {
        /// Number of the task.
        task: u64,
    },
    /// The task's shard has no more samples.
    Exhausted {
        /// Number of the task.
        task: u64,
        /// The lease, which the worker gives back.
        lease: Lease,
        /// As in [`Done`](Self::Done).
        held: bool,
    },
    /// The worker has answered every command before [`Command::Resume`]; another epoch begins.
    Resumed {
        /// Number of the epoch.
        epoch: u64,
    },
    /// Every sample of the batch was bad and was left out, so there is no batch.
    AllSamplesBad {
        /// Number of the task.
        task: u64,
        /// The lease, which the worker gives back.
        lease: Lease,
        /// As in [`Done`](Self::Done).
        held: bool,
        /// As in [`Done`](Self::Done).
        position: StreamPosition,
        /// As in [`Done`](Self::Done).
        bad: Vec<BadSampleRecord>,
    },
    /// The worker uses more memory than its limit and ends, so that another process replaces it. It has not
    /// begun its remaining tasks.
    Oversized {
        /// Private memory of the worker in bytes.
        resident: u64,
    },
    /// The worker has given its slot back, as [`Notice::Vacate`](crate::handshake::Notice::Vacate) asked, and
    /// still waits for a larger one.
    Vacated {
        /// Number of the task.
        task: u64,
        /// The lease, which the worker gives back.
        lease: Lease,
        /// As in [`Done`](Self::Done).
        held: bool,
    },
    /// The worker ends, because code of the loader in it has failed. It sends nothing more.
    LoaderFailed {
        /// What has failed, and where.
        problem: String,
    },
}

impl Event {
    /// The event of a worker that ends because of `problem`, which is truncated if it is too long for a frame.
    pub fn loader_failed(mut problem: String) -> Self {
        cut(&mut problem, MAX_TEXT);
        Self::LoaderFailed { problem }
    }

    /// Checks what must hold in every event, whatever main has sent to the worker.
    ///
    /// # Errors
    /// The rule of the protocol that the event breaks.
    pub(crate) fn check(&self) -> Result<(), ProtocolViolation> {
        let ends_beyond =
            |encoded: &Encoded, len| encoded.start.checked_add(encoded.len).is_none_or(|end| end > len);
        match self {
            Self::Done { lease, encoded, .. } if ends_beyond(encoded, lease.len) => {
                Err(ProtocolViolation::BatchBeyondSlot)
            }
            Self::NeedSlot { lease, needed, .. } if *needed <= lease.len => {
                Err(ProtocolViolation::SlotNotLarger)
            }
            Self::Done { bad, .. } | Self::AllSamplesBad { bad, .. } if bad.len() > MAX_BAD_SAMPLES => {
                Err(ProtocolViolation::TooManyBadSamples { listed: bad.len() })
            }
            _ => Ok(()),
        }
    }
}

/// A bad sample that the worker left out or replaced.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BadSampleRecord {
    /// Its position in the batch; meaningless for a sample of a shard.
    pub position: u32,
    /// Its index; for a sample of a shard its position in the shard.
    pub index: u64,
    /// Index of the sample that replaced it, if any.
    pub replaced_by: Option<u64>,
    /// Why it is bad; empty for a sample that main listed in [`Task::known_bad`].
    pub reason: String,
}

impl BadSampleRecord {
    /// Truncates the reasons of a batch's bad samples, so that all of them fit a frame.
    pub fn cut_to_frame(samples: &mut [Self]) {
        let share = MAX_TEXT / samples.len().max(1);
        samples.iter_mut().for_each(|sample| cut(&mut sample.reason, share.saturating_sub(NOTE_LEN)));
    }
}

/// Room in bytes for the note that says how much was left out.
const NOTE_LEN: usize = 40;

/// A failure of user code, in a form that can be sent to another process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// Which user code failed.
    pub stage: Stage,
    /// Index of the sample, if one sample caused the failure.
    pub index: Option<u64>,
    /// The error and its causes, outermost first; or the message of a panic.
    pub chain: Vec<String>,
    /// True if the user code panicked.
    pub panicked: bool,
    /// Backtrace of the error, if one was captured.
    pub backtrace: Option<String>,
}

/// What a failure means for the shard of its task. For a map-style dataset it is always `Continues`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum AfterFailure {
    /// The next task of the shard begins after the batch that failed.
    #[default]
    Continues,
    /// The shard has no more batches in this epoch, and its position is the beginning of the batch that failed. A
    /// loader that resumes continues there.
    EndsForEpoch,
    /// The shard ends. A loader that resumes after this batch must not continue it.
    Ends,
}

/// The user code, or the step of loading a batch, that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Stage {
    /// Decoding the dataset in the worker.
    Open,
    /// `Dataset::setup`.
    Setup,
    /// `worker_init`.
    WorkerInit,
    /// `Dataset::get` or `get_many`.
    Fetch,
    /// Collation.
    Collate,
    /// Encoding the batch, or getting memory for it.
    Send,
    /// Comparing the schema of the dataset in the worker with its schema in main.
    Schema,
}

/// Maximum size in bytes of an error with its causes, of a backtrace, and of the reasons of a batch's bad
/// samples. No frame holds more than two of these.
const MAX_TEXT: usize = 16 * 1024;
const MAX_CAUSES: usize = 8;

impl Failure {
    /// A failure to send a batch, without a sample or a backtrace.
    pub fn to_send(reason: String) -> Self {
        Self { stage: Stage::Send, index: None, chain: vec![reason], panicked: false, backtrace: None }
    }

    /// The failure of a worker program that has other types than main.
    pub fn other_schema(difference: String) -> Self {
        Self { stage: Stage::Schema, index: None, chain: vec![difference], panicked: false, backtrace: None }
    }

    /// Truncates texts that are too long for a frame, each with a note of how much was left out.
    #[must_use]
    pub fn cut_to_frame(mut self) -> Self {
        if self.chain.len() > MAX_CAUSES {
            let left_out = self.chain.len() - MAX_CAUSES;
            self.chain.truncate(MAX_CAUSES);
            self.chain.push(format!("[{left_out} more causes left out]"));
        }
        let share = MAX_TEXT / self.chain.len().max(1);
        self.chain.iter_mut().for_each(|text| cut(text, share));
        self.backtrace.iter_mut().for_each(|text| cut(text, MAX_TEXT));
        self
    }
}

fn cut(text: &mut String, max: usize) {
    if text.len() > max {
        let end = (0..=max).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0);
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
        /// True if it dumped core.
        core_dumped: bool,
    },
    /// It has ended, and its exit status is unknown: another part of the host reaped it, the host ignores
    /// SIGCHLD, or the template that would have reported the status ended before it.
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
            Self::Unknown => {
                f.write_str("gone with unknown status (the host program reaped it or ignores SIGCHLD, or its template ended first)")
            }
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
            position: StreamPosition::default(),
            after: AfterFailure::EndsForEpoch,
        };
        assert!(codec::encode(&event).unwrap().len() <= MAX_FRAME);
    }

    #[test]
    fn any_bad_samples_fit_a_frame() {
        let reason = "ä".repeat(1 << 20);
        let sample =
            BadSampleRecord { position: u32::MAX, index: u64::MAX, replaced_by: Some(u64::MAX), reason };
        let lease = Lease { slot: u32::MAX, generation: u32::MAX, len: u64::MAX };
        for count in [1, 2, MAX_BAD_SAMPLES] {
            let mut bad = vec![sample.clone(); count];
            BadSampleRecord::cut_to_frame(&mut bad);
            let position = StreamPosition { items: u64::MAX, errors: u64::MAX };
            let event = Event::AllSamplesBad { task: u64::MAX, lease, held: true, position, bad };
            assert!(codec::encode(&event).unwrap().len() <= MAX_FRAME);
        }
    }

    #[test]
    fn a_status_names_the_signal_or_the_code() {
        assert_eq!(ExitStatus::Signal { signal: 9, core_dumped: false }.to_string(), "killed by SIGKILL (9)");
        assert_eq!(ExitStatus::Code(3).to_string(), "exited with code 3");
    }
}
