//! The slowest samples of an epoch.

use std::{cmp::Reverse, time::Duration};

use crate::atomic::{AtomicU64, Ordering, fence};

/// Number of samples that a worker keeps.
const KEPT: usize = if cfg!(loom) { 1 } else { 16 };
/// Words of a sample: its time, written last, and what it is.
const ENTRY: usize = 5;
pub(super) const WORDS: usize = KEPT * ENTRY;

const NANOS: usize = 0;
const EPOCH: usize = 1;
const BATCH: usize = 2;
const SHARD: usize = 3;
const INDEX: usize = 4;

/// Value of the word of the shard for a sample of a map-style dataset.
const NO_SHARD: u64 = u64::MAX;

/// A sample and the time in which the dataset returned it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlowSample {
    /// Number of the epoch.
    pub epoch: u64,
    /// Number of the batch in its epoch.
    pub batch: u64,
    /// Number of the shard among the shards of this process; `None` for a map-style dataset.
    pub shard: Option<u32>,
    /// Index of the sample. For an iterable dataset, its position in the shard.
    pub index: u64,
    /// Time in which the dataset returned the sample.
    pub time: Duration,
}

/// Keeps a sample if it is slower than one of the samples of its epoch that are kept. Replaces samples of other
/// epochs first.
pub(super) fn note(words: &[AtomicU64], sample: SlowSample) {
    let load = |word: usize| words[word].load(Ordering::Relaxed);
    let time_of = |entry: usize| {
        if load(entry * ENTRY + EPOCH) == sample.epoch { load(entry * ENTRY + NANOS) } else { 0 }
    };
    let fastest = (0..KEPT).min_by_key(|&entry| time_of(entry)).expect("there are entries");
    let nanos = super::nanos(sample.time);
    if nanos <= time_of(fastest) {
        return;
    }
    let entry = &words[fastest * ENTRY..(fastest + 1) * ENTRY];
    entry[NANOS].store(0, Ordering::Relaxed);
    // Release: a reader that sees one of the following values sees the 0 afterwards, or a later time.
    fence(Ordering::Release);
    entry[EPOCH].store(sample.epoch, Ordering::Relaxed);
    entry[BATCH].store(sample.batch, Ordering::Relaxed);
    entry[SHARD].store(sample.shard.map_or(NO_SHARD, u64::from), Ordering::Relaxed);
    entry[INDEX].store(sample.index, Ordering::Relaxed);
    // Release: a reader that sees the time sees the values above.
    entry[NANOS].store(nanos, Ordering::Release);
}

/// Returns the samples of an epoch, the slowest first, without one that is being written.
pub(super) fn read(words: &[AtomicU64], epoch: u64) -> Vec<SlowSample> {
    let read = |entry: &[AtomicU64]| {
        // Acquire: pairs with the release of `note`.
        let nanos = entry[NANOS].load(Ordering::Acquire);
        let load = |word: usize| entry[word].load(Ordering::Relaxed);
        let shard = load(SHARD);
        let sample = SlowSample {
            epoch: load(EPOCH),
            batch: load(BATCH),
            shard: (shard != NO_SHARD).then(|| u32::try_from(shard).unwrap_or(u32::MAX)),
            index: load(INDEX),
            time: Duration::from_nanos(nanos),
        };
        // Acquire: pairs with the fence of `note`.
        fence(Ordering::Acquire);
        let is_whole = nanos != 0 && load(NANOS) == nanos;
        (is_whole && sample.epoch == epoch).then_some(sample)
    };
    let mut samples: Vec<_> = words.chunks_exact(ENTRY).filter_map(read).collect();
    samples.sort_by_key(|sample| Reverse(sample.time));
    samples
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn sample(epoch: u64, index: u64, micros: u64) -> SlowSample {
        SlowSample { epoch, batch: index / 4, shard: None, index, time: Duration::from_micros(micros) }
    }

    #[test]
    fn the_slowest_samples_of_an_epoch_are_kept() {
        let words: Vec<AtomicU64> = (0..WORDS).map(|_| AtomicU64::new(0)).collect();
        // 100 samples with different times in no order.
        let times: Vec<_> = (0..100).map(|index| (index, 1 + index * 37 % 101)).collect();
        times.iter().for_each(|&(index, micros)| note(&words, sample(0, index, micros)));
        let mut expected: Vec<_> = times.iter().map(|&(index, micros)| sample(0, index, micros)).collect();
        expected.sort_by_key(|sample| Reverse(sample.time));
        expected.truncate(KEPT);
        assert_eq!(read(&words, 0), expected);
        note(&words, SlowSample { shard: Some(3), ..sample(1, 7, 2) });
        assert_eq!(read(&words, 1), [SlowSample { shard: Some(3), ..sample(1, 7, 2) }]);
        assert_eq!(read(&words, 0).len(), KEPT - 1);
        assert_eq!(read(&words, 2), []);
    }
}
