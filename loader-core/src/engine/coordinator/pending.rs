//! A task that was sent and whose batch the user has not got.

use loader_ipc::{
    arena::Encoded,
    frame::{AfterFailure, BadSampleRecord, Failure, Lease, StreamPosition},
    schema::Schema,
};

use crate::{data::fetch::BatchRequest, error::Error};

/// What main knows of a task.
#[derive(Debug)]
pub(super) struct Pending {
    wanted: BatchRequest,
    slot: Slot,
    progress: Progress,
    /// Number of times that it was sent back.
    sent_back: u32,
}

/// The slot that a task is loaded into.
#[derive(Debug)]
enum Slot {
    /// It has none (any more).
    None,
    /// Its worker can write the slot.
    Leased(Lease),
    /// Its worker has given the slot back and waits for a larger one. The lease has ended, but the worker still answers
    /// under it.
    Vacated(Lease),
}

/// How far the worker of a task is, as main knows from its reports.
#[derive(Debug)]
enum Progress {
    /// It has not asked for a larger slot.
    Sent,
    /// It has asked for a larger slot.
    Asked,
    /// It has asked for a larger slot, and main has told it to drop the batch, which is to be loaded again later.
    SentBack,
    /// It has answered, or main has given the batch up.
    Answered(Outcome),
}

/// Maximum number of times that a task is sent back. It only ends a loop that no schedule of memory can end.
const MAX_SENT_BACK: u32 = 20;

/// The answer to a task.
#[derive(Debug)]
pub(crate) enum Outcome {
    Batch {
        lease: Lease,
        encoded: Encoded,
        /// True if the worker keeps a tensor in the slot.
        held: bool,
        position: StreamPosition,
        bad: Vec<BadSampleRecord>,
        /// The schema of the batch in the worker, with which main compares its own.
        schema: Option<Box<Schema>>,
    },
    /// Every sample was left out.
    AllSamplesBad {
        position: StreamPosition,
        bad: Vec<BadSampleRecord>,
    },
    Failed {
        failure: Box<Failure>,
        position: StreamPosition,
        after: AfterFailure,
    },
    /// No worker was asked, or main gave the batch up.
    Lost(Box<Error>),
}

impl Pending {
    pub(super) fn new(wanted: BatchRequest, lease: Option<Lease>) -> Self {
        let slot = lease.map_or(Slot::None, Slot::Leased);
        Self { wanted, slot, progress: Progress::Sent, sent_back: 0 }
    }

    pub(super) fn wanted(&self) -> &BatchRequest {
        &self.wanted
    }

    pub(super) fn set_wanted(&mut self, wanted: BatchRequest) {
        self.wanted = wanted;
    }

    /// Returns the lease under which its worker answers.
    pub(super) fn lease(&self) -> Option<Lease> {
        match self.slot {
            Slot::None => None,
            Slot::Leased(lease) | Slot::Vacated(lease) => Some(lease),
        }
    }

    /// True if the task has a slot that its worker can write.
    pub(super) fn has_slot(&self) -> bool {
        matches!(self.slot, Slot::Leased(_))
    }

    /// Gives the task another slot; returns the lease that it had.
    pub(super) fn set_lease(&mut self, lease: Lease) -> Option<Lease> {
        let old = self.lease();
        self.slot = Slot::Leased(lease);
        old
    }

    /// Takes the slot from the task.
    pub(super) fn take_lease(&mut self) -> Option<Lease> {
        let old = self.lease();
        self.slot = Slot::None;
        old
    }

    /// Notes that its worker has given the slot back and waits for a larger one.
    pub(super) fn vacate(&mut self) {
        if let Slot::Leased(lease) = self.slot {
            self.slot = Slot::Vacated(lease);
        }
    }

    /// Notes that its worker asks for a larger slot. False if the worker has asked before.
    pub(super) fn ask(&mut self) -> bool {
        let is_first = matches!(self.progress, Progress::Sent);
        if is_first {
            self.progress = Progress::Asked;
        }
        is_first
    }

    /// True if its worker has asked for a larger slot, and has not answered.
    pub(super) fn has_asked(&self) -> bool {
        matches!(self.progress, Progress::Asked | Progress::SentBack)
    }

    /// Notes that main tells its worker, which waits for a larger slot, to drop the batch, which is to be loaded again
    /// later. False if that has not helped.
    pub(super) fn send_back(&mut self) -> bool {
        let may_help = self.sent_back < MAX_SENT_BACK;
        self.sent_back += 1;
        if may_help {
            self.progress = Progress::SentBack;
        }
        may_help
    }

    /// True if its worker was told to drop the batch, and has not answered.
    pub(super) fn is_sent_back(&self) -> bool {
        matches!(self.progress, Progress::SentBack)
    }

    pub(super) fn set_outcome(&mut self, outcome: Outcome) {
        self.progress = Progress::Answered(outcome);
    }

    /// True if the task has a batch in its slot.
    pub(super) fn has_batch(&self) -> bool {
        matches!(self.progress, Progress::Answered(Outcome::Batch { .. }))
    }

    /// True if the answer left a tensor of the worker in the slot.
    pub(super) fn is_held(&self) -> bool {
        matches!(self.progress, Progress::Answered(Outcome::Batch { held: true, .. }))
    }

    /// Prepares the task for being sent again, to a process that has heard nothing of it.
    pub(super) fn start_again(&mut self) {
        self.progress = Progress::Sent;
    }

    pub(super) fn into_parts(self) -> (BatchRequest, Option<Outcome>) {
        let outcome = match self.progress {
            Progress::Answered(outcome) => Some(outcome),
            Progress::Sent | Progress::Asked | Progress::SentBack => None,
        };
        (self.wanted, outcome)
    }
}
