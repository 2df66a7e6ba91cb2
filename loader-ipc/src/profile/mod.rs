//! What a worker measures of its own work: the time of each [`Phase`], histograms of the times of batches and
//! samples, its slowest samples, and its last [`Span`]s.
//!
//! Each worker writes an area of shared memory behind the lines of the control page, so main can read it at any
//! time, also after the worker was killed. Without workers, main writes an area of its own memory.
//!
//! The time of each batch is measured. Measuring samples and phases reads the clock several times per sample.
//! So a worker profiles a batch, which means that it measures samples and phases, only if the samples of its
//! previous batch took at least 50 µs on average, and otherwise one of 512 batches. The cost is then below
//! one percent of the time.
//!
//! Alternative considered: each report to main carries the times. Rejected because the report of a killed worker
//! does not arrive, and because histograms do not fit a frame.

mod histogram;
mod meter;
mod slowest;
mod spans;

use std::time::Duration;

use nix::{
    sys::time::TimeSpec,
    time::{ClockId, clock_gettime},
};

use crate::atomic::{AtomicU64, Ordering};

pub use histogram::Histogram;
pub use meter::{BatchTimer, Phase};
pub use slowest::SlowSample;
pub use spans::{Span, SpanKind};

/// Number of words of a worker's area, which fills whole pages.
pub const AREA_WORDS: usize = (SPANS + spans::WORDS).next_multiple_of(512);

// A worker's area, in words.
const PHASES: usize = 0;
const PROFILED_BATCHES: usize = PHASES + meter::PHASE_COUNT;
/// Mean time of a sample of the last batch.
const SAMPLE_MEAN: usize = PROFILED_BATCHES + 1;
const BATCHES: usize = SAMPLE_MEAN + 1;
const BATCH_TIMES: usize = BATCHES + 1;
const SAMPLE_TIMES: usize = BATCH_TIMES + histogram::BUCKETS;
const SLOWEST: usize = SAMPLE_TIMES + histogram::BUCKETS;
/// The ring of spans begins at a page.
const SPANS: usize = (SLOWEST + slowest::WORDS).next_multiple_of(512);

/// A batch is profiled if the samples of the batch before took at least this long on average.
const MIN_SAMPLE_NANOS: u64 = 50_000;
/// Otherwise, one of this many batches is profiled.
const PROFILED_INTERVAL: u64 = 512;

/// A worker's area. Only the worker writes it. All accesses are atomic, because other processes read at the same
/// time; they are relaxed where no other memory depends on them.
#[derive(Debug, Clone, Copy)]
pub struct ProfileArea<'a> {
    words: &'a [AtomicU64],
}

/// An area in memory of this process, for batches that main loads itself.
#[derive(Debug)]
pub struct OwnProfile(Box<[AtomicU64]>);

/// What a worker has measured since the area was made.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Profile {
    /// Time of each phase in the profiled batches, by `Phase as usize`.
    pub phases: [Duration; meter::PHASE_COUNT],
    /// Number of these batches.
    pub profiled_batches: u64,
    /// Times of all batches, from the task to the report.
    pub batch_times: Histogram,
    /// Times in which the dataset returned a sample, in the profiled batches.
    pub sample_times: Histogram,
}

impl<'a> ProfileArea<'a> {
    pub(crate) fn over(words: &'a [AtomicU64]) -> Self {
        assert_eq!(words.len(), AREA_WORDS, "an area has AREA_WORDS words");
        Self { words }
    }

    /// Returns what was measured.
    pub fn read(self) -> Profile {
        Profile {
            phases: std::array::from_fn(|phase| Duration::from_nanos(self.load(PHASES + phase))),
            profiled_batches: self.load(PROFILED_BATCHES),
            batch_times: Histogram::read(&self.words[BATCH_TIMES..SAMPLE_TIMES]),
            sample_times: Histogram::read(&self.words[SAMPLE_TIMES..SLOWEST]),
        }
    }

    /// Forgets the slowest samples, because another epoch begins.
    pub fn forget_slowest(self) {
        self.words[SLOWEST..SLOWEST + slowest::WORDS]
            .iter()
            .for_each(|word| word.store(0, Ordering::Relaxed));
    }

    /// Returns the slowest samples of an epoch that were measured, the slowest first; at most 16.
    pub fn slowest(self, epoch: u64) -> Vec<SlowSample> {
        slowest::read(&self.words[SLOWEST..SLOWEST + slowest::WORDS], epoch)
    }

    /// Returns the spans from number `from` on that the ring still holds, and the number of the next span.
    pub fn spans(self, from: u64) -> (Vec<Span>, u64) {
        spans::read(&self.words[SPANS..], from)
    }

    fn load(self, offset: usize) -> u64 {
        self.words[offset].load(Ordering::Relaxed)
    }

    fn add(self, offset: usize, more: u64) {
        add(&self.words[offset], more);
    }
}

impl OwnProfile {
    /// Returns the area.
    pub fn area(&self) -> ProfileArea<'_> {
        ProfileArea::over(&self.0)
    }
}

impl Default for OwnProfile {
    fn default() -> Self {
        Self((0..AREA_WORDS).map(|_| AtomicU64::new(0)).collect())
    }
}

impl Profile {
    /// Returns the difference to an earlier profile of the same area.
    #[must_use]
    pub fn since(mut self, before: &Self) -> Self {
        for (time, before) in self.phases.iter_mut().zip(before.phases) {
            *time = time.saturating_sub(before);
        }
        self.profiled_batches = self.profiled_batches.saturating_sub(before.profiled_batches);
        self.batch_times.subtract(&before.batch_times);
        self.sample_times.subtract(&before.sample_times);
        self
    }

    /// Adds the profile of another worker.
    pub fn add(&mut self, other: &Self) {
        for (time, other) in self.phases.iter_mut().zip(other.phases) {
            *time += other;
        }
        self.profiled_batches = self.profiled_batches.saturating_add(other.profiled_batches);
        self.batch_times.add(&other.batch_times);
        self.sample_times.add(&other.sample_times);
    }
}

/// Adds to a word that only this process writes, so a load and a store are enough.
fn add(word: &AtomicU64, more: u64) {
    word.store(word.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
}

/// Returns the time of the monotonic clock in nanoseconds, which is the same in all processes.
pub fn now() -> u64 {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).unwrap_or_else(|_| TimeSpec::new(0, 0));
    nanos(now.into())
}

/// Returns a time as nanoseconds; the maximum if it is longer.
pub fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn an_area_with_arbitrary_words_can_be_read(
            words in prop::collection::vec(prop_oneof![any::<u64>(), Just(u64::MAX), 0..8_u64], 64),
            places in prop::collection::vec(0..AREA_WORDS, 64),
            from in any::<u64>(),
            epoch in 0..8_u64,
        ) {
            let own = OwnProfile::default();
            for (word, place) in words.iter().zip(places) {
                own.0[place].store(*word, Ordering::Relaxed);
            }
            // The number of spans, and the words around the ring.
            own.0[SPANS].store(words[0], Ordering::Relaxed);
            let profile = own.area().read();
            let mut sum = profile.clone().since(&Profile::default());
            sum.add(&profile);
            prop_assert!(sum.batch_times.quantile(0.99).is_none_or(|time| time > Duration::ZERO));
            prop_assert!(own.area().slowest(epoch).len() <= 16);
            let (spans, next) = own.area().spans(from);
            prop_assert!(spans.len() <= 1024 && next == words[0]);
        }
    }
}
