//! How many batches are ready for the program, over time.

use std::time::Duration;

/// Maximum number of counts.
const MAX_COUNTS: usize = 512;
/// Time between two counts in the first five seconds. It doubles whenever there are [`MAX_COUNTS`] counts.
const FIRST_INTERVAL: Duration = Duration::from_millis(10);

/// Number of batches that workers have loaded and the program has not yet got, over time. It is counted when
/// `next` returns a batch, at most every 10 ms, and less often in a long epoch, so that there are at most 512
/// counts.
///
/// It is an estimate, which is too high after two workers have loaded the same batch, but at most the number
/// of batches that the loader loads ahead.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct ReadyBatches {
    /// Each count: the time since the call of `iter()`, and the number of batches.
    pub counts: Vec<(Duration, u64)>,
    /// Number of times that the time between two counts was doubled.
    doubled: u32,
}

impl ReadyBatches {
    /// Returns the mean of the counts; `None` if there are none.
    pub fn mean(&self) -> Option<f64> {
        let sum: f64 = self.counts.iter().map(|(_, batches)| *batches as f64).sum();
        (!self.counts.is_empty()).then(|| sum / self.counts.len() as f64)
    }

    /// True if a count is due at this time.
    pub(crate) fn is_due(&self, now: Duration) -> bool {
        let interval = FIRST_INTERVAL * (1 << self.doubled.min(20));
        self.counts.last().is_none_or(|(last, _)| now >= *last + interval)
    }

    /// Adds a count. If there are too many, drops every second one.
    pub(crate) fn note(&mut self, now: Duration, batches: u64) {
        if self.counts.len() == MAX_COUNTS {
            let mut position = 0;
            self.counts.retain(|_| {
                position += 1;
                position % 2 == 1
            });
            self.doubled += 1;
        }
        self.counts.push((now, batches));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_epoch_has_as_many_counts_as_a_short_one() {
        let mut ready = ReadyBatches::default();
        assert_eq!(ready.mean(), None);
        for milliseconds in 0..60_000 {
            let now = Duration::from_millis(milliseconds);
            if ready.is_due(now) {
                ready.note(now, milliseconds / 10_000);
            }
        }
        let count = ready.counts.len();
        assert!((MAX_COUNTS / 2..=MAX_COUNTS).contains(&count), "{count} counts");
        // From 0 to 5, for ten seconds each.
        assert!((ready.mean().unwrap() - 2.5).abs() < 0.1, "{:?}", ready.mean());
        assert!(ready.counts.is_sorted());
    }
}
