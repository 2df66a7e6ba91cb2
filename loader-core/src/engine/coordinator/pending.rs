//! A task that was sent and whose batch the user has not got.

use loader_ipc::{
    arena::Encoded,
    frame::{AfterFailure, BadSampleRecord, Failure, Lease, StreamPosition},
    schema::Schema,
};

use super::supply::Wanted;
use crate::error::Error;

/// What main knows of a task.
#[derive(Debug)]
pub(super) struct Pending {
    wanted: Wanted,
    /// The slot that it is loaded into; `None` if it has none (any more).
    lease: Option<Lease>,
    /// True if its worker has asked for a larger slot.
    has_asked: bool,
    /// True if its worker has given the slot back and waits for a larger one. The lease has ended, but the
    /// worker still answers under it.
    has_vacated: bool,
    /// True if main has told its worker to drop the batch, which is to be loaded again later.
    is_sent_back: bool,
    /// Number of times that it was sent back.
    sent_back: u32,
    /// The answer, once it has arrived.
    outcome: Option<Outcome>,
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
    pub(super) fn new(wanted: Wanted, lease: Option<Lease>) -> Self {
        Self {
            wanted,
            lease,
            has_asked: false,
            has_vacated: false,
            is_sent_back: false,
            sent_back: 0,
            outcome: None,
        }
    }

    pub(super) fn wanted(&self) -> &Wanted {
        &self.wanted
    }

    pub(super) fn lease(&self) -> Option<Lease> {
        self.lease
    }

    pub(super) fn has_asked(&self) -> bool {
        self.has_asked
    }

    pub(super) fn has_vacated(&self) -> bool {
        self.has_vacated
    }

    /// True if the task has a slot that its worker can write.
    pub(super) fn has_slot(&self) -> bool {
        self.lease.is_some() && !self.has_vacated
    }

    /// Gives the task another slot; returns the one that it had.
    pub(super) fn set_lease(&mut self, lease: Lease) -> Option<Lease> {
        self.has_vacated = false;
        self.lease.replace(lease)
    }

    /// Takes the slot from the task.
    pub(super) fn take_lease(&mut self) -> Option<Lease> {
        self.has_vacated = false;
        self.lease.take()
    }

    /// Notes that its worker asks for a larger slot. False if the worker has asked before.
    pub(super) fn ask(&mut self) -> bool {
        !std::mem::replace(&mut self.has_asked, true)
    }

    /// Notes that its worker has given the slot back and waits for a larger one.
    pub(super) fn vacate(&mut self) {
        self.has_vacated = true;
    }

    /// Prepares the task for being sent again, to a process that has heard nothing of it.
    pub(super) fn start_again(&mut self) {
        self.has_asked = false;
        self.is_sent_back = false;
        self.outcome = None;
    }

    /// Notes that main tells its worker to drop the batch, which is to be loaded again later. False if that
    /// has not helped.
    pub(super) fn send_back(&mut self) -> bool {
        self.is_sent_back = self.sent_back < MAX_SENT_BACK;
        self.sent_back += 1;
        self.is_sent_back
    }

    /// True if its worker was told to drop the batch, and has not answered.
    pub(super) fn is_sent_back(&self) -> bool {
        self.is_sent_back
    }

    pub(super) fn set_wanted(&mut self, wanted: Wanted) {
        self.wanted = wanted;
    }

    pub(super) fn set_outcome(&mut self, outcome: Outcome) {
        self.outcome = Some(outcome);
    }

    /// True if the task has a batch in its slot.
    pub(super) fn has_batch(&self) -> bool {
        matches!(self.outcome, Some(Outcome::Batch { .. }))
    }

    /// True if the answer left a tensor of the worker in the slot.
    pub(super) fn is_held(&self) -> bool {
        matches!(self.outcome, Some(Outcome::Batch { held: true, .. }))
    }

    pub(super) fn into_parts(self) -> (Wanted, Option<Outcome>) {
        (self.wanted, self.outcome)
    }
}
