//! Models of the memory that processes share. [loom](https://docs.rs/loom) runs each model in every order of
//! events that the memory model allows, up to a number of preemptions. The models check the code of the crate
//! itself: its files are compiled here a second time, with the modules `atomic`, `sys`, `frame` and `channel`
//! below in place of the crate's own.
//!
//! ```sh
//! RUSTFLAGS="--cfg loom" cargo test -p loader-ipc --release --test model
//! ```
//!
//! Alternative considered: `shuttle`. Rejected because it tries random schedules of threads and treats every
//! memory ordering as sequentially consistent, so that it never finds a missing fence.
#![cfg(loom)]
#![allow(dead_code, unreachable_pub)] // the models use only parts of the files, which are written for another crate

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

#[path = "../../src/ring.rs"]
mod ring;

/// The parts of `src/queue/mod.rs` that make no system calls.
mod queue {
    #[path = "../../../src/queue/claims.rs"]
    mod claims;
    #[path = "../../../src/queue/wait.rs"]
    mod wait;
    #[path = "../../../src/queue/wakeup_gate.rs"]
    mod wakeup_gate;

    mod claimed;
    mod woken;
}

/// The parts of `src/profile/mod.rs` that a worker writes while main reads.
mod profile {
    #[path = "../../../src/profile/slowest.rs"]
    mod slowest;
    #[path = "../../../src/profile/spans.rs"]
    mod spans;

    mod samples_and_spans;

    fn nanos(time: std::time::Duration) -> u64 {
        time.as_nanos() as u64
    }
}

mod rings;

mod atomic {
    pub(crate) use loom::sync::atomic::{AtomicU64, Ordering, fence};
}

mod sys {
    use super::atomic::AtomicU64;

    /// Words that the threads of a model share, as processes share those of the crate.
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
    pub(crate) const MAX_UNANSWERED: usize = 2;
}

mod channel {
    #[derive(Debug, PartialEq)]
    pub(crate) enum ReceiveError {
        TimedOut,
        Closed,
    }
}

/// Runs `model` in every order of events with at most `preemptions` preemptions, and prints the number of
/// executions.
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
