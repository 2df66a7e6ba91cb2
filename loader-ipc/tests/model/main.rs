//! Models of what processes share, run by [loom](https://docs.rs/loom): each is tried in every order of events that the memory model
//! allows, up to a number of preemptions. What they check is the code itself: its files are compiled here a second time, with
//! `crate::atomic` and `crate::sys` below in the place of the crate's own.
//!
//! ```sh
//! RUSTFLAGS="--cfg loom" cargo test -p loader-ipc --release --test model
//! ```
//!
//! Not `shuttle`: it tries orders of threads, by chance, and takes every ordering for the strictest one, so that a fence that is missing
//! would never show.
#![cfg(loom)]
#![allow(dead_code, unreachable_pub)] // the files are not all used, and are made for another place

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

#[path = "../../src/ring.rs"]
mod ring;

/// As in `src/queue/mod.rs`, less what needs a system.
mod queue {
    #[path = "../../../src/queue/bells.rs"]
    mod bells;
    #[path = "../../../src/queue/claims.rs"]
    mod claims;
    #[path = "../../../src/queue/wait.rs"]
    mod wait;

    mod claimed;
    mod woken;
}

mod rings;

mod atomic {
    pub(crate) use loom::sync::atomic::{AtomicU64, Ordering, fence};
}

mod sys {
    use super::atomic::AtomicU64;

    /// Words that threads of a model share as processes share theirs.
    #[derive(Debug)]
    pub(crate) struct SharedWords(Vec<AtomicU64>);

    impl SharedWords {
        pub(crate) fn new(len: usize) -> Self {
            Self((0..len).map(|_| AtomicU64::new(0)).collect())
        }

        pub(crate) fn words(&self) -> &[AtomicU64] {
            &self.0
        }
    }
}

mod frame {
    pub(crate) const MOST_UNANSWERED: usize = 2;
}

mod channel {
    #[derive(Debug, PartialEq)]
    pub(crate) enum ReceiveError {
        TimedOut,
        Closed,
    }
}

/// Tries `model` in every order of events with at most `preemptions` of them unforced, and says how many those were.
fn check(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let executions = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&executions);
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(move || {
        // Relaxed: one execution runs at a time.
        counted.fetch_add(1, Ordering::Relaxed);
        model();
    });
    println!("{} executions", executions.load(Ordering::Relaxed));
}
