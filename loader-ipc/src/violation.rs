//! The rules of the protocol that a worker can break. This module and `frame` import each other: an event
//! checks itself against the rules, and an error names a limit of `frame`.

use crate::limits::MAX_BAD_SAMPLES;

/// A rule of the protocol that a worker has broken. Main detects it, kills the worker, and replaces it.
///
/// The messages call the worker "it". Tasks are given by number; see [`frame`](crate::frame) for the messages
/// that the variants name.
// Alternative considered: an enum here for the rules that the queues check, and one in loader-core that wraps
// it and adds the rules that the coordinator checks. Rejected because all of them are rules of the messages
// in `frame`, and because a program that matches on a violation would have to know who checks which rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProtocolViolation {
    /// The length or the position of a frame in its ring is impossible.
    #[error("its ring holds an invalid frame")]
    InvalidFrame,
    /// A frame does not encode an event.
    #[error("its event cannot be decoded: {reason}")]
    UndecodableEvent {
        /// The message of the decoder.
        reason: String,
    },
    /// `Done` with a batch that ends beyond its slot.
    #[error("it reports that its batch reaches beyond its slot")]
    BatchBeyondSlot,
    /// `NeedSlot` for a slot that is no larger than the task's slot.
    #[error("it asks for a slot that is no larger than the one it has")]
    SlotNotLarger,
    /// More than [`MAX_BAD_SAMPLES`] bad samples in one event.
    #[error("it lists {listed} bad samples, more than a batch may have ({MAX_BAD_SAMPLES})")]
    TooManyBadSamples {
        /// Number of bad samples in the event.
        listed: usize,
    },
    /// The worker did not read its lifeline, so that main could not send to it before a deadline.
    #[error("it does not read its lifeline")]
    LifelineNotRead,
    /// A second `Ready` or `NotReady`.
    #[error("it said twice whether it is ready")]
    ReadyTwice,
    /// `Bye` before the sentinel.
    #[error("it ends although it was not told to")]
    UnexpectedBye,
    /// A second `Bye` or `Oversized`.
    #[error("it said twice that it ends")]
    ByeTwice,
    /// `Oversized` although the loader has no `worker_memory_limit`.
    #[error("it ended for a memory limit that it does not have")]
    NoMemoryLimit,
    /// An event about a task that is not the worker's, is done, or has another lease.
    #[error("it answered task {task}, which is not its to answer")]
    NotItsTask {
        /// Number of the task.
        task: u64,
    },
    /// `Withdrawn` for a task that main has not withdrawn.
    #[error("it takes task {task} for withdrawn")]
    NotWithdrawn {
        /// Number of the task.
        task: u64,
    },
    /// `Skipped` in an epoch that is neither over nor abandoned.
    #[error("it skipped task {task} of an epoch that is not over")]
    SkippedInEpoch {
        /// Number of the task.
        task: u64,
    },
    /// Bad samples or a batch without samples, although bad samples are errors; or `AllSamplesBad` without a
    /// bad sample.
    #[error("it left samples of task {task} out")]
    SamplesLeftOut {
        /// Number of the task.
        task: u64,
    },
    /// A position in a shard that a batch cannot have reached.
    #[error("with task {task} it came to item {position}, further in its shard than a batch can ({max})")]
    PositionTooFar {
        /// Number of the task.
        task: u64,
        /// Number of items that it reports as taken from the shard.
        position: u64,
        /// Maximum after this task.
        max: u64,
    },
    /// `Exhausted` for a task of indices.
    #[error("it has no more samples for task {task}, which has indices")]
    ExhaustedWithIndices {
        /// Number of the task.
        task: u64,
    },
    /// `Exhausted` for a task for which it has asked for a larger slot, so that it has a batch.
    #[error("it has no more samples for task {task}, for which it has a batch: it asked for a larger slot")]
    ExhaustedWithBatch {
        /// Number of the task.
        task: u64,
    },
    /// A second `NeedSlot` for a task before the answer to the first.
    #[error("it asked twice for a slot for task {task}")]
    AskedTwice {
        /// Number of the task.
        task: u64,
    },
    /// `NeedSlot` again after main has refused it, because the result is not wanted.
    #[error("it asked again for a slot for task {task}, which main has refused")]
    AskedAfterRefusal {
        /// Number of the task.
        task: u64,
    },
    /// `NeedSlot` under a lease that does not exist.
    #[error("it asked to grow the slot of task {task}, on which it has no lease")]
    NotLeased {
        /// Number of the task.
        task: u64,
    },
    /// `Vacated` although main has not asked for the slot.
    #[error("it gave back the slot of task {task} unasked")]
    VacatedUnasked {
        /// Number of the task.
        task: u64,
    },
    /// `Unused` for a task with only one slot.
    #[error("it gave back a slot for task {task}, for which it had only one")]
    NoSecondSlot {
        /// Number of the task.
        task: u64,
    },
    /// `Resumed` with an epoch that main has not announced, or a second time.
    #[error("it resumed with epoch {epoch}, which it was not told")]
    UnexpectedResume {
        /// Number of the epoch.
        epoch: u64,
    },
    /// `Resumed` before it has answered all tasks.
    #[error("it resumed with a task unanswered")]
    ResumedTooEarly,
}
