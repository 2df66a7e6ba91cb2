//! Where the time of loading goes: phases, percentiles and the slowest samples.

use std::{cmp::Reverse, time::Duration};

use loader_ipc::profile::{self, Histogram, Phase, Profile};

/// Maximum number of samples in [`LoadTimes::slowest`].
const MAX_SLOWEST: usize = 16;

/// Where the time of loading batches went in an epoch, from [`EpochReport::times`](crate::EpochReport::times). All
/// times are wall-clock times of the processes that load.
///
/// The time of every batch is measured. Samples and phases are measured in every batch if samples take at least 50 µs
/// on average, and otherwise in one of 512 batches of a worker.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct LoadTimes {
    /// Time of each phase, in the batches whose samples were measured.
    pub phases: PhaseTimes,
    /// Number of batches whose samples were measured.
    pub measured_batches: u64,
    /// Times of all batches; `None` if none was loaded.
    pub batch: Option<Percentiles>,
    /// Times in which the dataset returned a sample, without collation; `None` if none was measured. Samples of
    /// [`get_many`](crate::Dataset::get_many) are not measured one by one.
    pub sample: Option<Percentiles>,
    /// The slowest of the samples that were measured, the slowest first; at most 16.
    pub slowest: Vec<SlowSample>,
}

/// Time that workers spent in each [`Phase`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PhaseTimes {
    /// In the dataset, outside of the phases that it [marks](Phase::measure).
    pub fetch: Duration,
    /// Reading from files and servers.
    pub read: Duration,
    /// Decoding what was read.
    pub decode: Duration,
    /// Transforming what was decoded, in `map` for example.
    pub transform: Duration,
    /// Stacking samples into batches.
    pub collate: Duration,
    /// Encoding batches for the main process.
    pub encode: Duration,
}

/// Percentiles of times. Each differs from the exact one by at most 13 %, for times from 1 µs to 36 minutes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Percentiles {
    /// Number of times.
    pub count: u64,
    /// Half of the times do not exceed this.
    pub p50: Duration,
    /// 95 % of the times do not exceed this.
    pub p95: Duration,
    /// 99 % of the times do not exceed this.
    pub p99: Duration,
}

/// A slow sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct SlowSample {
    /// Index of the sample. For an iterable dataset, its position in the shard.
    pub index: usize,
    /// Number of the shard among the shards of this process; `None` for a map-style dataset.
    pub shard: Option<usize>,
    /// Number of the batch in its epoch.
    pub batch: u64,
    /// Time in which the dataset returned it.
    pub time: Duration,
}

impl PhaseTimes {
    pub(crate) fn new(profile: &Profile) -> Self {
        let of = |phase: Phase| profile.phases[phase as usize];
        Self {
            fetch: of(Phase::Fetch),
            read: of(Phase::Read),
            decode: of(Phase::Decode),
            transform: of(Phase::Transform),
            collate: of(Phase::Collate),
            encode: of(Phase::Encode),
        }
    }

    /// Returns the time of a phase.
    pub fn of(&self, phase: Phase) -> Duration {
        match phase {
            Phase::Read => self.read,
            Phase::Decode => self.decode,
            Phase::Transform => self.transform,
            Phase::Collate => self.collate,
            Phase::Encode => self.encode,
            _ => self.fetch,
        }
    }

    /// Returns the share of each phase in the time of all phases, from 0 to 1, the largest first. Empty if nothing was
    /// measured.
    pub fn shares(&self) -> Vec<(Phase, f64)> {
        let total: f64 = Phase::ALL.iter().map(|&phase| self.of(phase).as_secs_f64()).sum();
        if total == 0.0 {
            return Vec::new();
        }
        let share = |phase| (phase, self.of(phase).as_secs_f64() / total);
        let mut shares: Vec<_> = Phase::ALL.into_iter().map(share).collect();
        shares.sort_by(|(_, one), (_, other)| other.total_cmp(one));
        shares
    }
}

impl Percentiles {
    fn new(times: &Histogram) -> Option<Self> {
        let of = |quantile| times.quantile(quantile);
        Some(Self { count: times.len(), p50: of(0.5)?, p95: of(0.95)?, p99: of(0.99)? })
    }
}

impl LoadTimes {
    /// Adds up what the processes that load have measured.
    pub(crate) fn new(profiles: &[Profile], slowest: impl IntoIterator<Item = profile::SlowSample>) -> Self {
        let mut all = Profile::default();
        profiles.iter().for_each(|profile| all.add(profile));
        let narrow = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
        let for_user = |sample: profile::SlowSample| SlowSample {
            index: narrow(sample.index),
            shard: sample.shard.map(|shard| shard as usize),
            batch: sample.batch,
            time: sample.time,
        };
        let mut slowest: Vec<_> = slowest.into_iter().map(for_user).collect();
        slowest.sort_by_key(|sample| Reverse(sample.time));
        slowest.truncate(MAX_SLOWEST);
        Self {
            phases: PhaseTimes::new(&all),
            measured_batches: all.profiled_batches,
            batch: Percentiles::new(&all.batch_times),
            sample: Percentiles::new(&all.sample_times),
            slowest,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_add_up_to_one_and_the_largest_is_first() {
        assert_eq!(PhaseTimes::default().shares(), []);
        let ms = Duration::from_millis;
        let phases = PhaseTimes { read: ms(30), decode: ms(60), collate: ms(10), ..PhaseTimes::default() };
        let shares = phases.shares();
        assert_eq!(shares[..2], [(Phase::Decode, 0.6), (Phase::Read, 0.3)]);
        assert_eq!(shares.len(), Phase::ALL.len());
        assert!((shares.iter().map(|(_, share)| share).sum::<f64>() - 1.0).abs() < 1e-9);
    }
}
