//! Bounds on time, at least ten times what the loader promises, because the machine may be busy.

use std::time::{Duration, Instant};

/// Returns the result of `action` and how long it took.
pub fn timed<T>(action: impl FnOnce() -> T) -> (T, Duration) {
    let started = Instant::now();
    (action(), started.elapsed())
}

/// Checks the time of something that the loader promises to do at once.
///
/// # Panics
/// Panics if it took 5 s or more.
pub fn assert_soon(took: Duration) {
    assert!(took < Duration::from_secs(5), "it took {took:?}");
}

/// Checks how long main took to notice a worker's death. Main promises 100 ms; PyTorch looks every 5 s.
///
/// # Panics
/// Panics if it took 1 s or more.
pub fn assert_noticed(took: Duration) {
    assert!(took < Duration::from_secs(1), "it was noticed after {took:?}");
}
