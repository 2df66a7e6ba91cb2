//! Counts of times in buckets whose width grows with the time.

use std::time::Duration;

use super::add;
use crate::atomic::{AtomicU64, Ordering};

/// Number of buckets of a histogram.
pub(super) const BUCKETS: usize = 128;
/// Times are counted in units of 2^`UNIT_BITS` ns. The first eight buckets are one unit wide; each further
/// group of buckets is twice as wide as the group before.
const UNIT_BITS: u32 = 8;
/// Each group has 2^`SUB_BITS` buckets.
const SUB_BITS: u32 = 2;

/// Counts of times in 128 buckets. For times from 1 µs to 36 minutes, a bucket is at most a quarter as wide
/// as its smallest time, so a quantile differs by at most 13 %. Longer times count in the last bucket. Sums
/// saturate, because a worker that has failed may have written any count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Histogram([u64; BUCKETS]);

impl Histogram {
    pub(super) fn read(words: &[AtomicU64]) -> Self {
        Self(std::array::from_fn(|bucket| words[bucket].load(Ordering::Relaxed)))
    }

    /// Counts a time in the words of a histogram.
    pub(super) fn count(words: &[AtomicU64], nanos: u64) {
        add(&words[bucket_of(nanos)], 1);
    }

    /// Returns the number of times that were counted.
    pub fn len(&self) -> u64 {
        self.0.iter().fold(0, |sum, &count| sum.saturating_add(count))
    }

    /// True if no time was counted.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the time that the share `quantile` (from 0 to 1) of the times does not exceed; `None` if no time
    /// was counted.
    pub fn quantile(&self, quantile: f64) -> Option<Duration> {
        let rank = ((quantile * self.len() as f64).ceil() as u64).max(1);
        let mut seen = 0;
        let bucket = self.0.iter().position(|&count| {
            seen = count.saturating_add(seen);
            seen >= rank
        })?;
        Some(Duration::from_nanos((start_of(bucket) + start_of(bucket + 1)) / 2))
    }

    pub(super) fn subtract(&mut self, before: &Self) {
        self.0.iter_mut().zip(before.0).for_each(|(count, before)| *count = count.saturating_sub(before));
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.0.iter_mut().zip(other.0).for_each(|(count, other)| *count = count.saturating_add(other));
    }
}

impl Default for Histogram {
    fn default() -> Self {
        Self([0; BUCKETS])
    }
}

/// Returns the bucket of a time.
fn bucket_of(nanos: u64) -> usize {
    let units = nanos >> UNIT_BITS;
    // Number of times that the width has doubled.
    let doubled = (u64::BITS - units.leading_zeros()).saturating_sub(SUB_BITS + 1);
    let bucket = (u64::from(doubled) << SUB_BITS) + (units >> doubled);
    (bucket as usize).min(BUCKETS - 1)
}

/// Returns the smallest time of a bucket in nanoseconds.
fn start_of(bucket: usize) -> u64 {
    let subs = 1 << SUB_BITS;
    let doubled = (bucket / subs).saturating_sub(1);
    ((bucket - doubled * subs) as u64) << (doubled as u32 + UNIT_BITS)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(times: &[u64]) -> Histogram {
        let words: Vec<AtomicU64> = (0..BUCKETS).map(|_| AtomicU64::new(0)).collect();
        times.iter().for_each(|&nanos| Histogram::count(&words, nanos));
        Histogram::read(&words)
    }

    #[test]
    fn buckets_follow_each_other() {
        assert_eq!(start_of(0), 0);
        for bucket in 0..BUCKETS - 1 {
            let (start, end) = (start_of(bucket), start_of(bucket + 1));
            assert!(start < end);
            assert_eq!((bucket_of(start), bucket_of(end - 1), bucket_of(end)), (bucket, bucket, bucket + 1));
            assert!(bucket < 8 || 4 * (end - start) <= start, "bucket {bucket} is too wide");
        }
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
        assert!(start_of(BUCKETS - 1) > 15 * 60 * 1_000_000_000);
    }

    #[test]
    fn an_empty_histogram_has_no_quantile() {
        assert_eq!(Histogram::default().quantile(0.5), None);
        assert!(of(&[]).is_empty());
    }

    proptest! {
        #[test]
        fn a_quantile_is_close_to_the_exact_one(
            mut times in prop::collection::vec(2_000u64..10_000_000_000, 1..200),
            quantile in 0.0..=1.0,
        ) {
            let found = of(&times).quantile(quantile).unwrap().as_nanos() as f64;
            times.sort_unstable();
            let rank = ((quantile * times.len() as f64).ceil() as usize).max(1);
            let exact = times[rank - 1] as f64;
            prop_assert!((found / exact - 1.0).abs() <= 0.13, "{found} instead of {exact}");
        }

        #[test]
        fn a_difference_and_a_sum_count_each_time_once(
            before in prop::collection::vec(any::<u64>(), 0..50),
            after in prop::collection::vec(any::<u64>(), 0..50),
        ) {
            let (first, second) = (of(&before), of(&after));
            let mut both = of(&[before, after].concat());
            both.subtract(&first);
            prop_assert_eq!(&both, &second);
            both.add(&first);
            prop_assert_eq!(both.len(), first.len() + second.len());
        }
    }
}
