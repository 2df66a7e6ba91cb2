//! What may go wrong, fault by fault: what the user sees, how soon it is noticed, and that nothing is left behind: no process, no
//! descriptor, no memory, no thread, no file.
//!
//! Real processes, real signals, real limits. Most scenarios run in a process of their own: see [`alone`].

mod alone;
mod combinations;
mod forks;
mod hunted;
mod liars;
mod main_deaths;
mod no_replacement;
mod odd_datasets;
mod odd_hosts;
mod resources;
mod stuck;
mod threads;
mod worker_deaths;

use std::time::{Duration, Instant};

loader_worker::init_before_main!();

/// What `action` gives, and how long it took.
fn timed<T>(action: impl FnOnce() -> T) -> (T, Duration) {
    let started = Instant::now();
    (action(), started.elapsed())
}

/// Fails when something that is promised at once took `took`: a busy machine gets seconds.
fn assert_soon(took: Duration) {
    assert!(took < Duration::from_secs(5), "it took {took:?}");
}

/// Fails when a worker's death was noticed `took` after it. Main promises 100 ms; a busy machine gets ten times that, which is far below
/// the 5 s at which PyTorch looks.
fn assert_noticed(took: Duration) {
    assert!(took < Duration::from_secs(1), "it was noticed after {took:?}");
}
