//! The loader's options as plain values, which a config file, environment variables and a command line can
//! set.

use std::{fmt, num::NonZeroUsize, str::FromStr, thread};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

pub(crate) const DEFAULT_BATCH_SIZE: usize = 1;
pub(crate) const DEFAULT_PREFETCH_FACTOR: usize = 2;
pub(crate) const DEFAULT_IN_ORDER: bool = true;
pub(crate) const DEFAULT_MAX_WORKER_DEATHS: u32 = 10;
pub(crate) const DEFAULT_MAX_BAD_SAMPLES: u64 = 10;
/// In seconds.
pub(crate) const DEFAULT_WARN_AFTER: f64 = 30.0;

/// Number of worker processes; [`Fixed(0)`](Self::Fixed) by default.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NumWorkers {
    /// This many workers. 0 loads in the main process.
    Fixed(usize),
    /// One worker less than the number of CPUs that this process may use (by its affinity and its control
    /// group's quota), but at least one.
    Auto,
}

impl NumWorkers {
    /// Returns the number of workers.
    pub fn resolve(self) -> usize {
        match self {
            Self::Fixed(count) => count,
            Self::Auto => {
                // On Linux, this respects `sched_getaffinity` and the control group's quota.
                let cpus = thread::available_parallelism().map_or(1, NonZeroUsize::get);
                (cpus - 1).max(1)
            }
        }
    }
}

impl Default for NumWorkers {
    fn default() -> Self {
        Self::Fixed(0)
    }
}

impl From<usize> for NumWorkers {
    fn from(count: usize) -> Self {
        Self::Fixed(count)
    }
}

impl FromStr for NumWorkers {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "auto" {
            return Ok(Self::Auto);
        }
        text.parse()
            .map(Self::Fixed)
            .map_err(|_| format!("`{text}` is neither a number of workers nor \"auto\""))
    }
}

impl fmt::Display for NumWorkers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(count) => count.fmt(f),
            Self::Auto => f.write_str("auto"),
        }
    }
}

impl Serialize for NumWorkers {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Fixed(count) => count.serialize(serializer),
            Self::Auto => serializer.serialize_str("auto"),
        }
    }
}

impl<'de> Deserialize<'de> for NumWorkers {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NumberOrAuto;
        impl de::Visitor<'_> for NumberOrAuto {
            type Value = NumWorkers;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number of workers or \"auto\"")
            }

            fn visit_i64<E: de::Error>(self, count: i64) -> Result<NumWorkers, E> {
                let wrong = || E::invalid_value(de::Unexpected::Signed(count), &self);
                usize::try_from(count).map(NumWorkers::Fixed).map_err(|_| wrong())
            }

            fn visit_u64<E: de::Error>(self, count: u64) -> Result<NumWorkers, E> {
                let wrong = || E::invalid_value(de::Unexpected::Unsigned(count), &self);
                usize::try_from(count).map(NumWorkers::Fixed).map_err(|_| wrong())
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<NumWorkers, E> {
                match text {
                    "auto" => Ok(NumWorkers::Auto),
                    _ => Err(E::invalid_value(de::Unexpected::Str(text), &self)),
                }
            }
        }
        deserializer.deserialize_any(NumberOrAuto)
    }
}

/// Random number generator that determines the order of the samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Order {
    /// This crate's own generator. The order of an epoch is computed without computing those of earlier
    /// epochs. It takes constant memory for 65,536 samples or more, and 8 bytes a sample for fewer.
    #[default]
    Native,
    /// PyTorch's generator. The order is exactly that of a `DataLoader` which shares one `torch.Generator`,
    /// seeded with the loader's seed, with its sampler. It takes 8 bytes a sample. To compute the order of an
    /// epoch, the generator skips the numbers that earlier epochs used, at about a third of a nanosecond per
    /// number.
    Torch,
}

impl FromStr for Order {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "native" => Ok(Self::Native),
            "torch" => Ok(Self::Torch),
            _ => Err(format!("`{text}` is neither \"native\" nor \"torch\"")),
        }
    }
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Native => "native",
            Self::Torch => "torch",
        })
    }
}

/// What happens when a worker process dies while it has work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum OnWorkerDeath {
    /// Another process takes its place and loads its unfinished batches again. The loader returns the same
    /// batches as without the death.
    #[default]
    Restart,
    /// The iterator ends with [`Error::WorkerExited`](crate::Error::WorkerExited), as in PyTorch.
    Fail,
}

impl FromStr for OnWorkerDeath {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "restart" => Ok(Self::Restart),
            "fail" => Ok(Self::Fail),
            _ => Err(format!("`{text}` is neither \"restart\" nor \"fail\"")),
        }
    }
}

impl fmt::Display for OnWorkerDeath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Restart => "restart",
            Self::Fail => "fail",
        })
    }
}

/// What happens with a bad sample. A sample is bad if [`Dataset::get`](crate::Dataset::get) returns an error
/// or panics, takes longer than `sample_timeout`, or repeatedly ends its worker process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum OnBadSample {
    /// The iterator returns an error in place of the sample's batch and goes on with the next batch.
    #[default]
    Error,
    /// The batch leaves the sample out and is shorter. A batch of which no sample is left is left out.
    Skip,
    /// Another sample takes its place. For map-style datasets only.
    ///
    /// The sample is drawn from the seed, the epoch and the index, so it is the same one in every run. It is
    /// drawn from the whole dataset, or from the bad sample's own batch if a sampler, a batch sampler or a
    /// rank is set, because these may leave samples out on purpose. If it is bad too, another one is drawn;
    /// after 16 bad samples for one place, the batch leaves the place out.
    Replace,
}

impl FromStr for OnBadSample {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "error" => Ok(Self::Error),
            "skip" => Ok(Self::Skip),
            "replace" => Ok(Self::Replace),
            _ => Err(format!("`{text}` is not one of \"error\", \"skip\" and \"replace\"")),
        }
    }
}

impl fmt::Display for OnBadSample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Error => "error",
            Self::Skip => "skip",
            Self::Replace => "replace",
        })
    }
}

/// The loader's options, as in the section `[loader]` of a config file. `None` stands for the default.
/// [`Builder::options`](crate::Builder::options) applies them to a builder; each field means the same as the
/// builder's method of its name.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct LoaderOptions {
    /// Samples per batch, at least 1; 1 by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batch_size: Option<usize>,
    /// True to load the samples in a new random order in each epoch; false by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shuffle: Option<bool>,
    /// Seed of the order and of [`SampleContext::rng`](crate::SampleContext::rng); 0 by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// Random number generator that determines the order; [`Order::Native`] by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub order: Option<Order>,
    /// Rank of this process among `world_size` processes, from 0. Each process loads its own share of the
    /// samples. Needs `world_size`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rank: Option<usize>,
    /// Number of processes that each load a share of the samples, at least 1. Needs `rank`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub world_size: Option<usize>,
    /// Number of worker processes, at most 4096; 0 by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub num_workers: Option<NumWorkers>,
    /// Number of batches that the loader prefetches per worker, 1 to 65,536; 2 by default. Needs workers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefetch_factor: Option<usize>,
    /// True to leave out a last batch that is not full; false by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drop_last: Option<bool>,
    /// True to return batches in order, false to return them as they arrive; true by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_order: Option<bool>,
    /// Max time to wait for a batch, in seconds; 0, the default, waits for ever. Needs workers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<f64>,
    /// Time to wait for a batch, in seconds, before a warning names the awaited worker; 30 by default, 0 for
    /// never.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warn_after: Option<f64>,
    /// Number of shards in which this process reads an iterable dataset, 1 to 65,536; by default the number
    /// of workers, or 1 without workers. Not for a map-style dataset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shards: Option<usize>,
    /// True to keep the workers from one epoch to the next; false by default. Needs workers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub persistent_workers: Option<bool>,
    /// True to load batches into page-locked memory, from which a GPU can copy asynchronously; false by
    /// default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pin_memory: Option<bool>,
    /// Max bytes of shared memory for batches, at least 65,536; by default half of the memory that the
    /// process may use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shared_memory_limit: Option<u64>,
    /// What happens when a worker dies; [`OnWorkerDeath::Restart`] by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_worker_death: Option<OnWorkerDeath>,
    /// Max number of deaths of a worker in a row outside of batches after which it is started again; 10 by
    /// default. One more death ends the iterator.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_worker_deaths: Option<u32>,
    /// What happens with a sample that cannot be loaded; [`OnBadSample::Error`] by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_bad_sample: Option<OnBadSample>,
    /// Max number of samples skipped or replaced in an epoch; 10 by default. One more ends the iterator.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_bad_samples: Option<u64>,
    /// Max time for one sample, in seconds; 0, the default, is no limit. A sample that takes longer is bad,
    /// and its worker is replaced. Needs workers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sample_timeout: Option<f64>,
    /// Max bytes of memory of a worker's own, at least 16,777,216; no limit by default. A worker that uses
    /// more is replaced between two batches. Needs workers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker_memory_limit: Option<u64>,
    /// True to give a late batch to a second, idle worker too; false by default. Needs workers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hedge: Option<bool>,
}

impl LoaderOptions {
    /// Layers these options over `below`: each option that is `None` here is taken from `below`.
    ///
    /// If `num_workers` is 0 here, the options `prefetch_factor`, `timeout`, `sample_timeout`,
    /// `persistent_workers`, `worker_memory_limit` and `hedge` of `below` are ignored. They need workers, and
    /// a user who switches workers off for one run should not have to remove them from the config file.
    #[must_use]
    pub fn over(self, below: Self) -> Self {
        let below = match self.num_workers {
            Some(NumWorkers::Fixed(0)) => Self {
                prefetch_factor: None,
                timeout: None,
                sample_timeout: None,
                persistent_workers: None,
                worker_memory_limit: None,
                hedge: None,
                ..below
            },
            _ => below,
        };
        Self {
            batch_size: self.batch_size.or(below.batch_size),
            shuffle: self.shuffle.or(below.shuffle),
            seed: self.seed.or(below.seed),
            order: self.order.or(below.order),
            rank: self.rank.or(below.rank),
            world_size: self.world_size.or(below.world_size),
            num_workers: self.num_workers.or(below.num_workers),
            prefetch_factor: self.prefetch_factor.or(below.prefetch_factor),
            drop_last: self.drop_last.or(below.drop_last),
            in_order: self.in_order.or(below.in_order),
            timeout: self.timeout.or(below.timeout),
            warn_after: self.warn_after.or(below.warn_after),
            shards: self.shards.or(below.shards),
            persistent_workers: self.persistent_workers.or(below.persistent_workers),
            pin_memory: self.pin_memory.or(below.pin_memory),
            shared_memory_limit: self.shared_memory_limit.or(below.shared_memory_limit),
            on_worker_death: self.on_worker_death.or(below.on_worker_death),
            max_worker_deaths: self.max_worker_deaths.or(below.max_worker_deaths),
            on_bad_sample: self.on_bad_sample.or(below.on_bad_sample),
            max_bad_samples: self.max_bad_samples.or(below.max_bad_samples),
            sample_timeout: self.sample_timeout.or(below.sample_timeout),
            worker_memory_limit: self.worker_memory_limit.or(below.worker_memory_limit),
            hedge: self.hedge.or(below.hedge),
        }
    }

    /// Returns the options that a loader built from these uses: defaults are filled in, and
    /// [`NumWorkers::Auto`] becomes a number.
    ///
    /// `shared_memory_limit` stays `None` if it is not set, because its default depends on the machine.
    /// Without workers, options that need workers stay `None`. So do options that have no default value:
    /// `rank`, `world_size`, `shards` and `worker_memory_limit`.
    #[must_use]
    pub fn resolved(self) -> Self {
        let workers = self.num_workers.unwrap_or_default().resolve();
        let needs_workers = workers > 0;
        Self {
            batch_size: self.batch_size.or(Some(DEFAULT_BATCH_SIZE)),
            shuffle: self.shuffle.or(Some(false)),
            seed: self.seed.or(Some(0)),
            order: self.order.or(Some(Order::Native)),
            rank: self.rank,
            world_size: self.world_size,
            num_workers: Some(NumWorkers::Fixed(workers)),
            prefetch_factor: self.prefetch_factor.or(needs_workers.then_some(DEFAULT_PREFETCH_FACTOR)),
            drop_last: self.drop_last.or(Some(false)),
            in_order: self.in_order.or(Some(DEFAULT_IN_ORDER)),
            timeout: self.timeout.or(needs_workers.then_some(0.0)),
            warn_after: self.warn_after.or(needs_workers.then_some(DEFAULT_WARN_AFTER)),
            shards: self.shards,
            persistent_workers: self.persistent_workers.or(needs_workers.then_some(false)),
            pin_memory: self.pin_memory.or(Some(false)),
            shared_memory_limit: self.shared_memory_limit,
            on_worker_death: self.on_worker_death.or(needs_workers.then_some(OnWorkerDeath::Restart)),
            max_worker_deaths: self.max_worker_deaths.or(needs_workers.then_some(DEFAULT_MAX_WORKER_DEATHS)),
            on_bad_sample: self.on_bad_sample.or(Some(OnBadSample::Error)),
            max_bad_samples: self.max_bad_samples.or(Some(DEFAULT_MAX_BAD_SAMPLES)),
            sample_timeout: self.sample_timeout.or(needs_workers.then_some(0.0)),
            worker_memory_limit: self.worker_memory_limit,
            hedge: self.hedge.or(needs_workers.then_some(false)),
        }
    }
}
