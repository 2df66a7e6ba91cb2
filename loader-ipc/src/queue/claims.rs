//! Whose a task is: each unanswered one has a word in shared memory that is changed once, by the worker that begins the task or by
//! main that withdraws it.

use crate::{
    atomic::{AtomicU64, Ordering},
    frame::MOST_UNANSWERED,
    sys::SharedWords,
};

/// Words that the claims take.
pub(super) const CLAIM_WORDS: usize = MOST_UNANSWERED;

const OPEN: u64 = 0;
const BEGUN: u64 = 1;
const WITHDRAWN: u64 = 2;

/// The claims of one worker, from word `first` on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Claims<'a> {
    memory: &'a SharedWords,
    first: usize,
}

impl<'a> Claims<'a> {
    pub(super) fn new(memory: &'a SharedWords, first: usize) -> Self {
        Self { memory, first }
    }

    /// Makes a claim anybody's, before the task that comes with it is sent.
    pub(super) fn open(self, claim: u32) {
        // Relaxed: it becomes visible with the task's frame.
        self.word(claim).store(OPEN, Ordering::Relaxed);
    }

    /// By the worker; false when main was first.
    pub(super) fn begin(self, claim: u32) -> bool {
        self.take(claim, BEGUN)
    }

    /// By main; false when the worker was first.
    pub(super) fn withdraw(self, claim: u32) -> bool {
        self.take(claim, WITHDRAWN)
    }

    fn take(self, claim: u32, taken: u64) -> bool {
        // Relaxed: it decides who has the task; the task itself came with its frame, and its slot's memory is of nobody yet.
        self.word(claim).compare_exchange(OPEN, taken, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    fn word(self, claim: u32) -> &'a AtomicU64 {
        // A claim that cannot be is another one: who sent it has itself to blame.
        &self.memory.words()[self.first + claim as usize % CLAIM_WORDS]
    }
}
