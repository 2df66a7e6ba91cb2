//! Counts consecutive waits that time out while the awaited worker makes no progress, and ends the iterator
//! after many of them. Otherwise a loop that only logs errors would wait without end for a batch whose sample
//! hangs. In PyTorch the first such error ends the loop.
//!
//! Alternative considered: end the iterator at the first error. Rejected because `timeout` may be short on
//! purpose, and a late batch is as good as any other.

use std::time::Duration;

use loader_ipc::control::WorkerSnapshot;

/// Number of consecutive waits without progress after which the iterator ends, if they took at least
/// [`MIN_TIME`] together.
const MAX_WAITS: u32 = 10;
/// Minimum total time of those waits before the iterator ends.
const MIN_TIME: Duration = Duration::from_secs(60);

/// The waits that have timed out since a batch was last returned or the awaited worker last made progress.
#[derive(Debug, Default)]
pub(super) struct Stalls {
    waits: u32,
    seen: Option<Seen>,
}

/// What a worker is doing. It changes whenever the worker makes progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Seen {
    pid: u32,
    state: u64,
    task: u64,
    sample: u64,
    batches: u64,
}

impl Stalls {
    /// Notes that a batch was returned, and forgets all waits.
    pub(super) fn end(&mut self) {
        *self = Self::default();
    }

    /// Notes that a wait of `timeout` for a worker with the process id `pid` ended without a batch. Returns
    /// true if the iterator must end.
    pub(super) fn note(&mut self, timeout: Duration, pid: u32, snapshot: &WorkerSnapshot) -> bool {
        let WorkerSnapshot { state, task, sample, batches, .. } = *snapshot;
        let seen = Seen { pid, state: state as u64, task, sample, batches };
        let is_still = self.seen.replace(seen) == Some(seen);
        self.waits = if is_still { self.waits.saturating_add(1) } else { 1 };
        self.waits >= MAX_WAITS && timeout.saturating_mul(self.waits) >= MIN_TIME
    }
}

#[cfg(test)]
mod tests {
    use loader_ipc::control::WorkerState;

    use super::*;

    fn at(sample: u64) -> WorkerSnapshot {
        let (age, busy) = (Duration::ZERO, Duration::ZERO);
        let (task, batches, samples, page_faults) = (1, 1, 1, 0);
        WorkerSnapshot {
            state: WorkerState::Fetching,
            task,
            sample,
            age,
            batches,
            samples,
            page_faults,
            busy,
        }
    }

    /// Returns which of the first `waits` waits ends the iterator, counted from 1.
    fn last(stalls: &mut Stalls, timeout: Duration, waits: u32) -> Option<u32> {
        (1..=waits).find(|_| stalls.note(timeout, 7, &at(0)))
    }

    #[test]
    fn only_many_and_long_waits_without_progress_end_the_iterator() {
        let (second, minute) = (Duration::from_secs(1), Duration::from_secs(60));
        assert_eq!(last(&mut Stalls::default(), second, 100), Some(60));
        assert_eq!(last(&mut Stalls::default(), minute, 100), Some(10));
        assert_eq!(last(&mut Stalls::default(), second / 100, 5_999), None);
        let mut stalls = Stalls::default();
        assert_eq!(last(&mut stalls, minute, 9), None);
        assert!(!stalls.note(minute, 7, &at(1)), "another sample");
        assert!(!stalls.note(minute, 8, &at(1)), "another process");
        assert_eq!(last(&mut stalls, minute, 9), None);
        stalls.end();
        assert_eq!(last(&mut stalls, minute, 9), None, "a batch came");
    }
}
