//! How long loading takes: phases, percentiles and the slowest samples.

use std::{cmp::Reverse, fmt, time::Duration};

use loader_ipc::profile::{self, Histogram, Phase, Profile};
use serde::{Serialize, Serializer, ser::SerializeMap};

/// Maximum number of samples in [`LoadTimes::slowest`].
const MAX_SLOWEST: usize = 16;

/// How long loading took. [`EpochReport::times`](crate::EpochReport::times) covers one epoch, in the workers or,
/// without workers, in main. [`LoaderStats::times`](crate::LoaderStats::times) covers the current pool of workers. All
/// times are wall-clock times. Batches that failed are not counted.
///
/// The time of every batch is measured. Samples and phases are measured in profiled batches: a batch is
/// profiled if the samples of the worker's previous batch took at least 50 µs on average, and otherwise one
/// of 512 batches is.
///
/// Its `Display` is one line with the percentiles and the slowest sample; empty before the first batch.
/// Serialised, all times are numbers of seconds.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct LoadTimes {
    /// Time of each phase, in the profiled batches.
    pub phases: PhaseTimes,
    /// Number of profiled batches: those in which samples and phases were measured.
    pub profiled_batches: u64,
    /// Times from a task to its report, encoding included, of all batches; `None` if no batch was loaded.
    #[serde(rename = "batch_seconds")]
    pub batch: Option<Percentiles>,
    /// Times in which the dataset returned a sample, without collation; `None` if none was measured. Samples of
    /// [`get_many`](crate::Dataset::get_many) are not measured one by one.
    #[serde(rename = "sample_seconds")]
    pub sample: Option<Percentiles>,
    /// The slowest of the samples that were measured, the slowest first; at most 16.
    pub slowest: Vec<SlowSample>,
}

/// Time that workers spent in each [`Phase`]. Serialised, it is a map from the name of each phase to its
/// `seconds` and its `share`, from 0 to 1.
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Percentiles {
    /// Number of times.
    pub count: u64,
    /// Half of the times do not exceed this.
    #[serde(serialize_with = "as_seconds")]
    pub p50: Duration,
    /// 95 % of the times do not exceed this.
    #[serde(serialize_with = "as_seconds")]
    pub p95: Duration,
    /// 99 % of the times do not exceed this.
    #[serde(serialize_with = "as_seconds")]
    pub p99: Duration,
}

/// A slow sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct SlowSample {
    /// Index of the sample. For an iterable dataset, its position in the shard.
    pub index: usize,
    /// Number of the shard among the shards of this process; `None` for a map-style dataset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shard: Option<usize>,
    /// Number of the batch in its epoch; `None` for an iterable dataset.
    pub batch: Option<u64>,
    /// Time in which the dataset returned it.
    #[serde(rename = "seconds", serialize_with = "as_seconds")]
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

    /// Returns the share of each phase in the time of all phases, from 0 to 1, the largest first. Empty if
    /// nothing was measured.
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

impl Serialize for PhaseTimes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Entry {
            seconds: f64,
            share: f64,
        }

        let shares = self.shares();
        let mut map = serializer.serialize_map(Some(Phase::ALL.len()))?;
        for phase in Phase::ALL {
            let share = shares.iter().find(|(of, _)| *of == phase).map_or(0.0, |(_, share)| *share);
            map.serialize_entry(phase.name(), &Entry { seconds: self.of(phase).as_secs_f64(), share })?;
        }
        map.end()
    }
}

/// Serialises a time as a number of seconds.
pub(crate) fn as_seconds<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(time.as_secs_f64())
}

impl fmt::Display for Percentiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Two digits: the percentiles are not more exact.
        let Self { p50, p95, p99, .. } = self;
        write!(f, "{p50:.1?} (p50), {p95:.1?} (p95), {p99:.1?} (p99)")
    }
}

impl fmt::Display for LoadTimes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(batch) = &self.batch else { return Ok(()) };
        write!(f, "a batch takes {batch}")?;
        if let Some(sample) = &self.sample {
            write!(f, "; a sample takes {sample}")?;
        }
        if let Some(SlowSample { index, shard, batch, time }) = self.slowest.first() {
            write!(f, "; the slowest is sample {index}")?;
            if let Some(shard) = shard {
                write!(f, " of shard {shard}")?;
            }
            if let Some(batch) = batch {
                write!(f, " of batch {batch}")?;
            }
            write!(f, ", {time:.1?}")?;
        }
        Ok(())
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
            batch: sample.shard.is_none().then_some(sample.batch),
            time: sample.time,
        };
        let mut slowest: Vec<_> = slowest.into_iter().map(for_user).collect();
        slowest.sort_by_key(|sample| Reverse(sample.time));
        slowest.truncate(MAX_SLOWEST);
        Self {
            phases: PhaseTimes::new(&all),
            profiled_batches: all.profiled_batches,
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

    #[test]
    fn times_are_serialised_as_seconds() {
        let ms = Duration::from_millis;
        let times = LoadTimes {
            phases: PhaseTimes { read: ms(30), decode: ms(90), ..PhaseTimes::default() },
            profiled_batches: 1,
            batch: Some(Percentiles { count: 1, p50: ms(125), p95: ms(125), p99: ms(250) }),
            sample: None,
            slowest: vec![SlowSample { index: 7, shard: None, batch: Some(2), time: ms(500) }],
        };
        let value = serde_json::to_value(&times).unwrap();
        assert_eq!(value["phases"]["decode"], serde_json::json!({ "seconds": 0.09, "share": 0.75 }));
        let batch = serde_json::json!({ "count": 1, "p50": 0.125, "p95": 0.125, "p99": 0.25 });
        assert_eq!((&value["batch_seconds"], value["sample_seconds"].is_null()), (&batch, true));
        assert_eq!(value["slowest"], serde_json::json!([{ "index": 7, "batch": 2, "seconds": 0.5 }]));
        let text = "a batch takes 125.0ms (p50), 125.0ms (p95), 250.0ms (p99); the slowest is sample 7 of batch 2, 500.0ms";
        assert_eq!(times.to_string(), text);
    }
}
