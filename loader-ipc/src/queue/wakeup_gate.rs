//! Decides when main sends a wake-up to a sleeping worker: only if the worker has received the previous one.
//!
//! A wake-up that the worker has not received is still in the channel. The worker finds it when it next goes
//! to sleep, and looks at its ring again, so a second wake-up would add nothing. Therefore the channel holds
//! at most one wake-up, and sending it never blocks, although it has no deadline.
//!
//! A worker writes into shared memory the number of the last wake-up that it has received. The numbers are
//! random, and a worker does not know a number before it has taken that wake-up out of the channel. Therefore
//! a worker that writes other values there cannot make main send a second wake-up. It only harms itself: a
//! worker that receives no wake-up is stuck, and the option `timeout` covers stuck workers.
//!
//! Alternative considered: a thread of main notices that main blocks while it sends a wake-up, and kills the
//! worker. Rejected because it needs the deadline that sending lacks, and another thread.

use std::{collections::hash_map::RandomState, hash::BuildHasher};

use super::wait::is_asleep;
use crate::atomic::{AtomicU64, Ordering};

/// Main's record of the wake-ups that it has sent to one worker.
#[derive(Debug, Default)]
pub(super) struct WakeupGate {
    numbers: RandomState,
    sent: u64,
    /// Number of the last wake-up. At first it is 0, as is the word in shared memory.
    last: u64,
}

impl WakeupGate {
    /// Returns the number of the wake-up to send after a frame; `None` if the worker is awake, or has not
    /// received the previous wake-up.
    pub(super) fn next(&mut self, asleep: &AtomicU64, received: &AtomicU64) -> Option<u64> {
        // Relaxed: the fence in `is_asleep` comes before this load. Either the worker sees the frame before
        // it sleeps, or this load sees every wake-up that the worker had received before it marked itself as
        // asleep. After a wake-up that it receives later, the worker looks at its ring again.
        if !is_asleep(asleep) || received.load(Ordering::Relaxed) != self.last {
            return None;
        }
        self.sent += 1;
        self.last = self.numbers.hash_one(self.sent);
        Some(self.last)
    }
}

/// The worker notes that it has received wake-up `number`.
pub(super) fn note_received(received: &AtomicU64, number: u64) {
    // Relaxed: the fence that follows when the worker next marks itself as asleep makes it visible.
    received.store(number, Ordering::Relaxed);
}
