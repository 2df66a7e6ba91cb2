//! The options of a loader that are not code, and what may be wrong with them.

use std::{fs, path::Path, sync::Arc, time::Duration};

use loader_ipc::slots::FIRST_LEN;

use super::{WorkerProgram, order::invalid};
use crate::{
    error::Error,
    iter::Epochs,
    options::{
        DEFAULT_IN_ORDER, DEFAULT_MAX_WORKER_DEATHS, DEFAULT_PREFETCH_FACTOR, DEFAULT_WARN_AFTER,
        LoaderOptions, OnWorkerDeath,
    },
    sampler::{BatchSampler, Sampler},
    state::{Origin, Pipeline},
    warning::Warn,
};

/// More workers than any machine has processors: a slip of the finger.
const MOST_WORKERS: usize = 4096;

/// Batches a worker that no memory holds.
const MOST_PREFETCHED: usize = 1 << 16;

/// What a worker needs for itself, with some room.
const LEAST_WORKER_MEMORY: u64 = 16 << 20;

/// A place is kept for each shard, and sent with each state.
const MOST_SHARDS: usize = 1 << 16;

/// Everything but the code that goes to the workers.
pub(super) struct Settings {
    pub(super) options: LoaderOptions,
    pub(super) sampler: Option<Box<dyn Sampler>>,
    pub(super) batch_sampler: Option<Box<dyn BatchSampler>>,
    pub(super) worker_program: Option<WorkerProgram>,
    pub(super) registered: Option<String>,
    pub(super) handle_sigchld: bool,
    pub(super) warn: Warn,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            options: LoaderOptions::default(),
            sampler: None,
            batch_sampler: None,
            worker_program: None,
            registered: None,
            handle_sigchld: true,
            warn: Warn::default(),
        }
    }
}

impl Settings {
    /// Most bytes of shared memory.
    pub(super) fn shared_memory_limit(&self) -> u64 {
        self.options.shared_memory_limit.unwrap_or_else(default_memory_limit)
    }

    pub(super) fn origin(&self, samples: Option<usize>, pipeline: Pipeline) -> Origin {
        let order = self.options.order.unwrap_or_default();
        Origin { seed: self.seed(), order, samples, pipeline: Arc::new(pipeline) }
    }

    pub(super) fn seed(&self) -> u64 {
        self.options.seed.unwrap_or(0)
    }

    /// Number of shards of an iterable dataset, and that it is asked for nothing that needs indices.
    pub(super) fn count_shards(&self, workers: usize) -> Result<usize, Error> {
        if self.options.shuffle == Some(true) {
            return invalid("shuffle", "an iterable dataset has no indices to shuffle; see `shuffle_buffer`");
        }
        self.options.check_batch_size()?;
        match self.options.shards {
            None => Ok(workers.max(1)),
            Some(0) => invalid("shards", "a dataset is read in at least one shard; use 1 or more"),
            Some(shards) if shards > MOST_SHARDS => {
                invalid("shards", format!("{shards} is more than {MOST_SHARDS}"))
            }
            Some(shards) => Ok(shards),
        }
    }

    /// Checks every option alone and against the others, but for the order's and the batches'. Where several are wrong, it names the one
    /// that PyTorch does.
    pub(super) fn check_options(&self) -> Result<Epochs, Error> {
        let options = &self.options;
        let workers = options.num_workers.unwrap_or_default().resolve();
        if workers > MOST_WORKERS {
            return invalid("num_workers", format!("{workers} is more than {MOST_WORKERS}"));
        }
        let timeout = patience("timeout", options.timeout)?;
        let sample_timeout = patience("sample_timeout", options.sample_timeout)?;
        let warn_after = patience("warn_after", Some(options.warn_after.unwrap_or(DEFAULT_WARN_AFTER)))?;
        if workers == 0 && options.prefetch_factor.is_some() {
            return invalid(
                "prefetch_factor",
                "without workers nothing is prefetched; set num_workers, or leave it out",
            );
        }
        if options.prefetch_factor == Some(0) {
            return invalid("prefetch_factor", "a worker needs at least one batch to work on; use 1 or more");
        }
        if let Some(most) = options.prefetch_factor.filter(|&most| most > MOST_PREFETCHED) {
            return invalid("prefetch_factor", format!("{most} is more than {MOST_PREFETCHED}"));
        }
        if workers == 0 && options.persistent_workers == Some(true) {
            return invalid(
                "persistent_workers",
                "there are no workers to keep; set num_workers, or leave it out",
            );
        }
        if workers == 0 && timeout.is_some() {
            return invalid(
                "timeout",
                "without workers there is nobody to wait for; set num_workers, or leave it out",
            );
        }
        if workers == 0 && options.hedge == Some(true) {
            return invalid("hedge", "there is no second worker; set num_workers, or leave it out");
        }
        if workers == 0 && sample_timeout.is_some() {
            return invalid(
                "sample_timeout",
                "without workers nobody can be stopped in a sample; set num_workers, or leave it out",
            );
        }
        if workers == 0 && options.worker_memory_limit.is_some() {
            return invalid(
                "worker_memory_limit",
                "there are no workers to limit; set num_workers, or leave it out",
            );
        }
        if let Some(limit) = options.worker_memory_limit.filter(|&limit| limit < LEAST_WORKER_MEMORY) {
            return invalid(
                "worker_memory_limit",
                format!("no worker starts within {limit} bytes; use {LEAST_WORKER_MEMORY} or more"),
            );
        }
        let least = FIRST_LEN as u64;
        if let Some(limit) = options.shared_memory_limit.filter(|&limit| limit < least) {
            return invalid(
                "shared_memory_limit",
                format!("{limit} bytes hold no batch; use {least} or more"),
            );
        }
        Ok(Epochs {
            workers,
            prefetch_factor: options.prefetch_factor.unwrap_or(DEFAULT_PREFETCH_FACTOR),
            in_order: options.in_order.unwrap_or(DEFAULT_IN_ORDER),
            timeout,
            warn_after,
            most_deaths: match options.on_worker_death.unwrap_or_default() {
                OnWorkerDeath::Restart => options.max_worker_deaths.unwrap_or(DEFAULT_MAX_WORKER_DEATHS),
                OnWorkerDeath::Fail => 0,
            },
            on_bad_sample: options.on_bad_sample.unwrap_or_default(),
            sample_timeout,
            memory_limit: options.worker_memory_limit,
            hedge: options.hedge.unwrap_or(false),
        })
    }

    /// True when an epoch is the whole dataset, as far as is known.
    pub(super) fn loads_all(&self) -> bool {
        self.sampler.is_none() && self.batch_sampler.is_none() && self.options.rank.is_none()
    }

    /// The order that the options ask for.
    pub(super) fn make_batch_sampler(&mut self, samples: usize) -> Result<Box<dyn BatchSampler>, Error> {
        let options = &self.options;
        let shuffle = options.shuffle.unwrap_or(false);
        let conflict = |first, second, reason| Err(Error::ConflictingOptions { first, second, reason });
        if options.shards.is_some() {
            return invalid("shards", "only an iterable dataset is read in shards; leave it out");
        }
        if shuffle && self.sampler.is_some() {
            const REASON: &str = "a sampler says the order; shuffle in it, or leave it out";
            return conflict("sampler", "shuffle", REASON);
        }
        if let Some(batch_sampler) = self.batch_sampler.take() {
            const REASON: &str = "a batch sampler says which samples are in which batch";
            let others = [
                ("batch_size", options.batch_size.is_some_and(|size| size != 1)),
                ("shuffle", shuffle),
                ("sampler", self.sampler.is_some()),
                ("drop_last", options.drop_last.unwrap_or(false)),
                ("rank", options.rank.is_some()),
                ("world_size", options.world_size.is_some()),
            ];
            if let Some((other, _)) = others.into_iter().find(|(_, given)| *given) {
                return conflict("batch_sampler", other, REASON);
            }
            check_indices("batch_sampler", batch_sampler.max_index(), samples)?;
            return Ok(batch_sampler);
        }
        let Some(sampler) = self.sampler.take() else { return options.batch_sampler(samples) };
        if options.rank.is_some() || options.world_size.is_some() {
            const REASON: &str = "a sampler says which samples this process loads; give the rank to the sampler, or leave \
                                  it out";
            return conflict("sampler", if options.rank.is_some() { "rank" } else { "world_size" }, REASON);
        }
        options.check_batch_size()?;
        check_indices("sampler", sampler.max_index(), samples)?;
        Ok(options.in_batches(sampler))
    }
}

/// Fails when a sampler's largest index is known and is not an index of the dataset. An empty dataset has an
/// error of its own.
fn check_indices(option: &'static str, max: Option<usize>, samples: usize) -> Result<(), Error> {
    match max {
        Some(index) if index >= samples && samples > 0 => invalid(
            option,
            format!("it has index {index}, but the dataset has {samples} samples; use indices below that"),
        ),
        _ => Ok(()),
    }
}

/// A time to wait, in seconds; `None` for ever.
fn patience(option: &'static str, seconds: Option<f64>) -> Result<Option<Duration>, Error> {
    match seconds.unwrap_or(0.0) {
        0.0 => Ok(None),
        // Longer than all time, as `Duration::MAX` is: none.
        seconds if seconds.is_finite() && seconds >= u64::MAX as f64 => Ok(None),
        seconds => match Duration::try_from_secs_f64(seconds) {
            // So short that it rounds to nothing is not none.
            Ok(patience) => Ok(Some(patience.max(Duration::from_nanos(1)))),
            Err(_) => invalid(option, format!("{seconds} is not a number of seconds; use 0 or more")),
        },
    }
}

/// Half of the memory that this process may use, as for a tmpfs: the machine's, or its control group's if that is less.
fn default_memory_limit() -> u64 {
    const UNKNOWN: u64 = 1 << 32;
    let memory = [machine_memory(), group_memory()].into_iter().flatten().min();
    memory.unwrap_or(2 * UNKNOWN) / 2
}

/// Bytes of memory that the machine has, if it says so.
pub(super) fn machine_memory() -> Option<u64> {
    let info = fs::read_to_string("/proc/meminfo").ok()?;
    let total = info.lines().find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix("kB"))?;
    Some(total.trim().parse::<u64>().ok()? * 1024)
}

/// The tightest limit of the control group (version 2) and those above it.
fn group_memory() -> Option<u64> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let own = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let limit = |group: &Path| fs::read_to_string(group.join("memory.max")).ok()?.trim().parse().ok();
    Path::new("/sys/fs/cgroup").join(own).ancestors().filter_map(limit).min()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampler::SubsetRandomSampler;

    fn refusal(settings: &mut Settings, samples: usize) -> Option<String> {
        settings.make_batch_sampler(samples).err().map(|error| error.to_string())
    }

    #[test]
    fn a_fixed_order_has_indices_of_the_dataset_only() {
        let with = |sampler: Box<dyn Sampler>| Settings { sampler: Some(sampler), ..Settings::default() };
        let expected = "sampler: it has index 10, but the dataset has 10 samples; use indices below that";
        for sampler in [
            Box::new(vec![3, 10, 0_usize]) as Box<dyn Sampler>,
            Box::new(SubsetRandomSampler::new([3, 10, 0])),
        ] {
            assert_eq!(refusal(&mut with(sampler), 10).as_deref(), Some(expected));
        }
        assert_eq!(refusal(&mut with(Box::new(vec![3, 9, 0])), 10), None);

        let batches = |batches: Vec<Vec<usize>>| Settings {
            batch_sampler: Some(Box::new(batches)),
            ..Settings::default()
        };
        let message = refusal(&mut batches(vec![vec![0], vec![], vec![9, 11]]), 10).unwrap();
        assert!(message.starts_with("batch_sampler: it has index 11"), "{message}");
        assert_eq!(refusal(&mut batches(vec![vec![0], vec![9]]), 10), None);
    }

    #[test]
    fn only_an_iterable_dataset_has_shards() {
        let options = LoaderOptions { shards: Some(2), ..LoaderOptions::default() };
        let message = refusal(&mut Settings { options, ..Settings::default() }, 10).unwrap();
        assert!(message.starts_with("shards: only an iterable dataset"), "{message}");
    }
}
