//! The loader's options as plain values: what a config file, the environment and a command line set.

use std::{fmt, num::NonZeroUsize, str::FromStr, thread};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

pub(crate) const DEFAULT_BATCH_SIZE: usize = 1;
pub(crate) const DEFAULT_PREFETCH_FACTOR: usize = 2;
pub(crate) const DEFAULT_IN_ORDER: bool = true;
pub(crate) const DEFAULT_MAX_WORKER_DEATHS: u32 = 10;
pub(crate) const DEFAULT_MAX_BAD_SAMPLES: u64 = 10;
/// Seconds.
pub(crate) const DEFAULT_WARN_AFTER: f64 = 30.0;

/// How many worker processes load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NumWorkers {
    /// That many; 0 loads in the main process.
    Fixed(usize),
    /// One less than the CPUs that this process may use (affinity and cgroup quota count), and at least one.
    Auto,
}

impl NumWorkers {
    /// The number.
    pub fn resolve(self) -> usize {
        match self {
            Self::Fixed(count) => count,
            Self::Auto => {
                // Linux: sched_getaffinity and the cgroup's quota.
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

/// Whose random numbers say the order of the samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Order {
    /// This crate's own order. An epoch's order is computed without the epochs before it, and for 65,536
    /// samples or more it takes constant memory.
    #[default]
    Native,
    /// PyTorch's, number for number: what `DataLoader` gives with one `torch.Generator`, seeded with the loader's seed, for itself
    /// and its sampler. An epoch's order depends on how many numbers those before it took; they are left out at
    /// about a third of a nanosecond each.
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

/// What happens when a worker's process ends while it has work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum OnWorkerDeath {
    /// Another one takes its place and does again what it had not finished: the batches are those of an undisturbed run.
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

/// What happens with a sample that cannot be loaded: [`Dataset::get`](crate::Dataset::get) returns an error or panics, takes longer than
/// `sample_timeout`, or ends its worker again and again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum OnBadSample {
    /// Its batch fails, and the iterator goes on behind it.
    #[default]
    Error,
    /// Its batch is a sample shorter. A batch without any sample left is left out.
    Skip,
    /// Another sample takes its place, drawn by seed, epoch and index: the same one in every run. Any sample of the dataset may be; with a
    /// sampler or ranks, which leave samples out on purpose, one of its own batch. Of map-style datasets only.
    Replace,
}

impl FromStr for OnBadSample {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "error" => Ok(Self::Error),
            "skip" => Ok(Self::Skip),
            "replace" => Ok(Self::Replace),
            _ => Err(format!("`{text}` is none of \"error\", \"skip\" and \"replace\"")),
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

/// The loader's options as a config file has them; what is `None` is left at its default. Given to the builder with
/// [`options`](crate::Builder::options).
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct LoaderOptions {
    /// Samples per batch, at least 1; 1 by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batch_size: Option<usize>,
    /// A new random order in each epoch; off by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shuffle: Option<bool>,
    /// Seed of order and augmentation; 0 by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// Whose random numbers say the order; this crate's by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub order: Option<Order>,
    /// Which of `world_size` processes this is, from 0: it loads its share of the samples only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rank: Option<usize>,
    /// How many processes load a share of the samples each, at least 1; needs `rank`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub world_size: Option<usize>,
    /// Worker processes; 0 by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub num_workers: Option<NumWorkers>,
    /// Batches on their way per worker, at least 1; 2 by default. Needs workers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefetch_factor: Option<usize>,
    /// Leave out a last batch that is not full; off by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drop_last: Option<bool>,
    /// Batches in order rather than as they arrive; on by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_order: Option<bool>,
    /// Longest wait for a batch, in seconds; 0, the default, waits for ever. Needs workers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<f64>,
    /// Wait for a batch, in seconds, after which a warning names the awaited worker; 30 by default, 0 for
    /// never.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warn_after: Option<f64>,
    /// Number of shards in which this process reads an iterable dataset, at least 1; as many as workers by
    /// default. Not for a map-style dataset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shards: Option<usize>,
    /// Keep the workers from one epoch to the next; off by default. Needs workers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub persistent_workers: Option<bool>,
    /// Load batches into page-locked memory, from which a device copies by itself; off by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pin_memory: Option<bool>,
    /// Most bytes of shared memory for batches, at least 65,536; half of the memory that the process may use by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shared_memory_limit: Option<u64>,
    /// What happens when a worker dies; it is started again by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_worker_death: Option<OnWorkerDeath>,
    /// Max number of deaths of a worker in a row outside of batches after which it is started again; 10 by
    /// default. One more death ends the iterator.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_worker_deaths: Option<u32>,
    /// What happens with a sample that cannot be loaded; its batch fails by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_bad_sample: Option<OnBadSample>,
    /// How many samples may be skipped or replaced in an epoch; 10 by default. One more ends the iterator.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_bad_samples: Option<u64>,
    /// Longest time for a sample, in seconds, after which it counts as bad and its worker is replaced; 0, the default, is none. Needs
    /// workers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sample_timeout: Option<f64>,
    /// Most bytes that a worker may have in memory of its own; none by default. A larger one is replaced between two batches. Needs workers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker_memory_limit: Option<u64>,
    /// Give a batch that is late to a second worker too, if one has nothing to do; off by default. Needs workers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hedge: Option<bool>,
}

impl LoaderOptions {
    /// These options, and where they say nothing, those of `below`.
    ///
    /// With `num_workers = 0` in these, `prefetch_factor`, `timeout`, `sample_timeout`, `persistent_workers`, `worker_memory_limit`
    /// and `hedge` of `below` are left out: they need workers, and who switches workers off for a run must not have to take them out of the file.
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

    /// These options with the defaults filled in and `"auto"` made a number: what a loader built from them does.
    /// `shared_memory_limit`, whose default depends on the machine, and what needs workers, without them, stay `None`.
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
