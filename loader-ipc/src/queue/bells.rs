//! Decides when main sends a bell to a sleeping worker: only if the worker has received the previous bell.
//!
//! A bell that the worker has not received is still in the channel. The worker finds it when it next goes to
//! sleep, and looks at its ring again, so a second bell would add nothing. Therefore the channel holds at
//! most one bell, and sending one, which has no deadline, never blocks.
//!
//! A worker writes into shared memory the number of the last bell that it has received. The numbers are
//! random, and a worker does not know a number before it has taken that bell out of the channel. Therefore a
//! worker that writes other values there cannot make main send a second bell. It only harms itself: a worker
//! that receives no bell is stuck, and `timeout` covers stuck workers.
//!
//! Alternative considered: a thread of main notices that main blocks while it sends a bell, and kills the
//! worker. Rejected because it needs the deadline that sending lacks, and another thread.

use std::{collections::hash_map::RandomState, hash::BuildHasher};

use super::wait::is_asleep;
use crate::atomic::{AtomicU64, Ordering};

/// Main's record of the bells that it has sent to one worker.
#[derive(Debug, Default)]
pub(super) struct Bells {
    numbers: RandomState,
    rung: u64,
    /// Number of the last bell; before the first one 0, which the shared memory contains at first.
    last: u64,
}

impl Bells {
    /// Returns the number of the bell to send after a frame; `None` if the worker is awake, or has not
    /// received the previous bell.
    pub(super) fn next(&mut self, asleep: &AtomicU64, heard: &AtomicU64) -> Option<u64> {
        // Relaxed: the fence in `is_asleep` comes before this load. Either the worker sees the frame before
        // it sleeps, or this load sees every bell that the worker had received before it marked itself as
        // asleep. After a bell that it receives later, the worker looks at its ring again.
        if !is_asleep(asleep) || heard.load(Ordering::Relaxed) != self.last {
            return None;
        }
        self.rung += 1;
        self.last = self.numbers.hash_one(self.rung);
        Some(self.last)
    }
}

/// The worker notes that it has received the bell `number`.
pub(super) fn note_heard(heard: &AtomicU64, number: u64) {
    // Relaxed: the fence that follows when the worker next marks itself as asleep makes it visible.
    heard.store(number, Ordering::Relaxed);
}
