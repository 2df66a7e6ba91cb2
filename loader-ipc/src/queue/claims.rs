//! The claims of a worker's tasks. Each unanswered task has a claim, a word in shared memory that is changed
//! once: by the worker when it begins the task, or by main when it withdraws the task.

use crate::{
    atomic::{AtomicU64, Ordering},
    frame::MAX_UNANSWERED,
    sys::SharedWords,
};

/// Words of shared memory for the claims of one worker.
pub(super) const CLAIM_WORDS: usize = MAX_UNANSWERED;

const OPEN: u64 = 0;
const BEGUN: u64 = 1;
const WITHDRAWN: u64 = 2;

/// The claims of one worker, which begin at word `first`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Claims<'a> {
    memory: &'a SharedWords,
    first: usize,
}

impl<'a> Claims<'a> {
    pub(super) fn new(memory: &'a SharedWords, first: usize) -> Self {
        Self { memory, first }
    }

    /// Resets a claim. Main does so before it sends the task that uses the claim.
    pub(super) fn open(self, claim: u32) {
        // Relaxed: the task's frame, which follows, makes it visible.
        self.word(claim).store(OPEN, Ordering::Relaxed);
    }

    /// Called by the worker when it begins the task. False if main has withdrawn the task.
    pub(super) fn begin(self, claim: u32) -> bool {
        self.take(claim, BEGUN)
    }

    /// Called by main to withdraw the task. False if the worker has begun it.
    pub(super) fn withdraw(self, claim: u32) -> bool {
        self.take(claim, WITHDRAWN)
    }

    fn take(self, claim: u32, taken: u64) -> bool {
        // Relaxed: the exchange only decides who has the task. The frame has published the task, and neither
        // side uses the task's slot between the frame and the exchange.
        self.word(claim).compare_exchange(OPEN, taken, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    fn word(self, claim: u32) -> &'a AtomicU64 {
        // Out-of-range claims wrap; only the faulty sender is affected.
        &self.memory.words()[self.first + claim as usize % CLAIM_WORDS]
    }
}
