//! When a bell must be rung for a worker that sleeps: only when it has heard the last one.
//!
//! A bell that was not heard still lies in the channel, so a worker that is about to sleep will find it and look again; another one
//! would say nothing more. So one bell at most is in the channel, and ringing, which has no deadline, never waits.
//!
//! Two ways were weighed to keep main from waiting for a worker that says that it sleeps and hears nothing. A thread could notice that
//! main has been ringing for long, and kill that worker: it would need the deadline that ringing lacks, and another thread. Instead the
//! worker writes down which bell it heard. The number is not known to a worker before it has taken the bell out of the channel, so no
//! worker can make main ring twice by what it happens to write: it hurts itself, since a worker that does not hear is one that is
//! stuck, which `timeout` ends.

use std::{collections::hash_map::RandomState, hash::BuildHasher};

use super::wait::is_asleep;
use crate::atomic::{AtomicU64, Ordering};

/// Main's side: the bells of one worker.
#[derive(Debug, Default)]
pub(super) struct Bells {
    numbers: RandomState,
    rung: u64,
    /// The last bell's number; at first what the memory holds.
    last: u64,
}

impl Bells {
    /// The number to ring with for a frame that was just sent; `None` when the worker is awake, or has a bell that it has not heard.
    pub(super) fn next(&mut self, asleep: &AtomicU64, heard: &AtomicU64) -> Option<u64> {
        // Relaxed: behind the fence in `is_asleep`, so either the worker will see the frame before it sleeps, or what it had heard
        // before it said so is seen here. What it hears later makes it look again.
        if !is_asleep(asleep) || heard.load(Ordering::Relaxed) != self.last {
            return None;
        }
        self.rung += 1;
        self.last = self.numbers.hash_one(self.rung);
        Some(self.last)
    }
}

/// The worker's side: it has taken the bell `number` out of the channel.
pub(super) fn note_heard(heard: &AtomicU64, number: u64) {
    // Relaxed: it becomes visible with the fence, when the worker says that it sleeps again.
    heard.store(number, Ordering::Relaxed);
}
