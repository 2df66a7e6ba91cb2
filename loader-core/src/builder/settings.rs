//! The builder's settings, without the code that is sent to workers, and their checks.

use std::{mem, sync::Arc, time::Duration};

use loader_ipc::slots::FIRST_LEN;

use super::order::invalid;
use crate::{
    data::{
        fetch::FetchOptions,
        sampler::{BatchSampler, Sampler, Sharing},
    },
    engine::{
        coordinator::WorkerOptions,
        interrupt::StartInterrupt,
        pool::WorkerProgram,
        tuner::{AUTO_PREFETCH, Setting, Tuner, TunerOptions},
    },
    error::Error,
    launch::{
        affinity::{AffinityError, WorkerCpus},
        memory,
        ranks::{LaunchedRank, LocalRanks, Variables},
    },
    options::{
        AutoWorkers, LauncherMode, LoaderOptions, NumWorkers, OnWorkerDeath, PrefetchFactor, WorkerAffinity,
        default,
    },
    report::{
        observers::SharedObservers,
        warning::{Warn, Warning},
    },
    state::{Origin, Pipeline, Share, SharePolicy},
};

/// Maximum number of workers. No machine has more processors, so a larger number is a mistake.
const MAX_WORKERS: usize = 4096;

/// Maximum `prefetch_factor`. No machine has memory for more batches per worker.
const MAX_PREFETCH_FACTOR: usize = 1 << 16;

/// Minimum `worker_memory_limit` in bytes: what a worker needs to start, with some room.
const MIN_WORKER_MEMORY: u64 = 16 << 20;

/// Maximum number of shards. Main keeps the position in each shard, and each state contains all of them.
const MAX_SHARDS: usize = 1 << 16;

/// All settings of a builder except the dataset, the collation and the worker hook.
pub(super) struct Settings {
    pub(super) options: LoaderOptions,
    /// True if the program called `distributed`. `rank` and `world_size` may also come from a config.
    pub(super) is_distributed: bool,
    /// True if `launcher` is, or was, [`LauncherMode::Auto`].
    pub(super) is_launched: bool,
    /// What the launcher's variables say, unless `launcher` is off.
    pub(super) launched: Option<LaunchedRank>,
    /// The launcher's processes on this machine, unless `launcher` is off.
    pub(super) local: LocalRanks,
    pub(super) sampler: Option<Box<dyn Sampler>>,
    pub(super) batch_sampler: Option<Box<dyn BatchSampler>>,
    pub(super) worker_program: Option<WorkerProgram>,
    pub(super) registered: Option<String>,
    pub(super) handle_sigchld: bool,
    /// True if a worker may build the loader, without workers of its own.
    pub(super) may_be_nested: bool,
    pub(super) interrupt: Option<StartInterrupt>,
    pub(super) observers: SharedObservers,
    pub(super) warn: Warn,
}

/// Maximum number of bytes of data that a loader may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Memory {
    /// Of batches in shared memory.
    pub(super) slots: u64,
    /// Of what the dataset keeps, in all processes together.
    pub(super) datasets: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            options: LoaderOptions::default(),
            is_distributed: false,
            is_launched: false,
            launched: None,
            local: LocalRanks::default(),
            sampler: None,
            batch_sampler: None,
            worker_program: None,
            registered: None,
            handle_sigchld: true,
            may_be_nested: false,
            interrupt: None,
            observers: SharedObservers::default(),
            warn: Warn::default(),
        }
    }
}

impl Settings {
    /// Divides `memory_limit` into the part of the slots and the part of the dataset.
    ///
    /// # Errors
    /// Returns an error if `memory_limit` or `shared_memory_limit` is too small, or if nothing is left for
    /// the dataset.
    pub(super) fn memory(&self) -> Result<Memory, Error> {
        const MIN: u64 = FIRST_LEN as u64;
        let LoaderOptions { memory_limit, shared_memory_limit, .. } = self.options;
        let check = |option, limit: Option<u64>, min| match limit {
            Some(limit) if limit < min => {
                invalid(option, format!("{limit} bytes are too few for a batch; use {min} or more"))
            }
            _ => Ok(()),
        };
        check("memory_limit", memory_limit, 2 * MIN)?;
        check("shared_memory_limit", shared_memory_limit, MIN)?;
        let limit = memory_limit.unwrap_or_else(|| memory::default_limit(self.local.processes()));
        match (memory_limit, shared_memory_limit) {
            (Some(limit), Some(slots)) if slots >= limit => {
                let problem = format!(
                    "{slots} bytes leave nothing of memory_limit ({limit} bytes) for datasets; use less"
                );
                invalid("shared_memory_limit", problem)
            }
            (Some(limit), Some(slots)) => Ok(Memory { slots, datasets: limit - slots }),
            (_, slots) => Ok(Memory { slots: slots.unwrap_or(limit / 2), datasets: limit / 2 }),
        }
    }

    pub(super) fn origin(&self, samples: Option<usize>, pipeline: Pipeline) -> Origin {
        let order = self.options.order.unwrap_or_else(default::order);
        let policy = if self.options.drop_last.unwrap_or_else(default::drop_last) {
            SharePolicy::DropLast
        } else {
            SharePolicy::Repeat
        };
        // The options were checked when the order was made.
        let (rank, world_size) = self.options.group().ok().flatten().unwrap_or((0, 1));
        let share = Share { rank, world_size, policy };
        Origin { seed: self.seed(), order, samples, share, pipeline: Arc::new(pipeline) }
    }

    pub(super) fn seed(&self) -> u64 {
        self.options.seed.unwrap_or_else(default::seed)
    }

    pub(super) fn fetch_options(&self) -> FetchOptions {
        FetchOptions {
            on_bad_sample: self.options.on_bad_sample.unwrap_or_else(default::on_bad_sample),
            digest: self.options.digest.unwrap_or_else(default::digest),
        }
    }

    /// Returns the number of shards of an iterable dataset. Fails if an option needs indices, which it does
    /// not have.
    pub(super) fn count_shards(&self, workers: usize) -> Result<usize, Error> {
        if self.options.shuffle == Some(true) {
            const PROBLEM: &str = "an iterable dataset has no indices to shuffle; use its `shuffle_buffer`";
            return invalid("shuffle", PROBLEM);
        }
        self.options.check_batch_size()?;
        if self.options.steps_per_epoch == Some(0) {
            return invalid(
                "steps_per_epoch",
                "an epoch has at least 1 batch; use 1 or more, or leave it out",
            );
        }
        match self.options.shards {
            None => Ok(workers.max(1)),
            Some(0) => invalid("shards", "a dataset is read in at least one shard; use 1 or more"),
            Some(shards) if shards > MAX_SHARDS => too_large("shards", shards, MAX_SHARDS),
            Some(shards) => Ok(shards),
        }
    }

    /// Checks every option alone and against the others, except those of the order and of the batches. If
    /// several are wrong, it reports the one that PyTorch reports. Workers may use `cpus` CPUs.
    pub(super) fn check_options(&self, cpus: usize) -> Result<WorkerOptions, Error> {
        let options = &self.options;
        let (workers, max_workers) = self.check_workers(cpus)?;
        let check_needs_workers = |option, is_set| {
            if workers == 0 && is_set {
                invalid(
                    option,
                    format!("has no effect without workers; set num_workers, or leave {option} out"),
                )
            } else {
                Ok(())
            }
        };
        let timeout = time_limit(options.timeout.unwrap_or_else(default::timeout));
        let sample_timeout = time_limit(options.sample_timeout.unwrap_or_else(default::sample_timeout));
        let warn_after = time_limit(options.warn_after.unwrap_or_else(default::warn_after));
        check_needs_workers("prefetch_factor", options.prefetch_factor.is_some())?;
        let prefetch_factor = match options.prefetch_factor.unwrap_or_else(default::prefetch_factor) {
            PrefetchFactor::Fixed(0) => {
                return invalid("prefetch_factor", "a worker needs at least one batch; use 1 or more");
            }
            PrefetchFactor::Fixed(factor) if factor > MAX_PREFETCH_FACTOR => {
                return too_large("prefetch_factor", factor, MAX_PREFETCH_FACTOR);
            }
            PrefetchFactor::Fixed(factor) => factor,
            PrefetchFactor::Auto => *AUTO_PREFETCH.start(),
        };
        self.check_group()?;
        check_needs_workers("persistent_workers", options.persistent_workers == Some(true))?;
        check_needs_workers("timeout", timeout.is_some())?;
        check_needs_workers("hedge", options.hedge == Some(true))?;
        check_needs_workers("sample_timeout", sample_timeout.is_some())?;
        check_needs_workers("worker_memory_limit", options.worker_memory_limit.is_some())?;
        if let Some(limit) = options.worker_memory_limit.filter(|&limit| limit < MIN_WORKER_MEMORY) {
            let problem =
                format!("a worker cannot start with {limit} bytes; use {MIN_WORKER_MEMORY} or more");
            return invalid("worker_memory_limit", problem);
        }
        self.memory()?;
        Ok(WorkerOptions {
            workers,
            max_workers,
            prefetch_factor,
            in_order: options.in_order.unwrap_or_else(default::in_order),
            timeout,
            warn_after,
            max_worker_deaths: match options.on_worker_death.unwrap_or_else(default::on_worker_death) {
                OnWorkerDeath::Restart => {
                    options.max_worker_deaths.unwrap_or_else(default::max_worker_deaths)
                }
                OnWorkerDeath::Fail => 0,
            },
            fetch: self.fetch_options(),
            sample_timeout,
            memory_limit: options.worker_memory_limit,
            move_tasks: options.move_tasks.unwrap_or_else(default::move_tasks),
            hedge: options.hedge.unwrap_or_else(default::hedge),
            processes: self.local.processes(),
        })
    }

    /// Returns the number of workers at first, and the maximum number of workers.
    fn check_workers(&self, cpus: usize) -> Result<(usize, usize), Error> {
        let (first, max) = match self.options.num_workers.unwrap_or_else(default::num_workers) {
            NumWorkers::Fixed(workers) => (workers, workers),
            NumWorkers::Auto(AutoWorkers { min: 0, .. }) => {
                return invalid(
                    "num_workers",
                    "`min` is 0, and \"auto\" never loads without workers; use 1 or more",
                );
            }
            NumWorkers::Auto(AutoWorkers { min, max: Some(max), .. }) if max < min => {
                return invalid(
                    "num_workers",
                    format!("`max` is {max}, below `min`, which is {min}; raise `max` or lower `min`"),
                );
            }
            NumWorkers::Auto(auto) => (auto.first(cpus), auto.resolved_max(cpus)),
        };
        if max > MAX_WORKERS { too_large("num_workers", max, MAX_WORKERS) } else { Ok((first, max)) }
    }

    /// Returns the tuner of a loader that finds its number of workers or its prefetch factor; `None` if both
    /// are fixed.
    pub(super) fn tuner(&self, epochs: &WorkerOptions, within_epochs: bool, cpus: usize) -> Option<Tuner> {
        let (auto, freeze) = match self.options.num_workers {
            Some(NumWorkers::Auto(auto)) => (Some(auto), auto.freeze),
            _ => (None, false),
        };
        let is_prefetch_auto = self.options.prefetch_factor == Some(PrefetchFactor::Auto);
        if auto.is_none() && !is_prefetch_auto {
            return None;
        }
        let WorkerOptions { workers, max_workers, prefetch_factor, .. } = *epochs;
        let options = TunerOptions {
            min_workers: auto.map_or(workers, |auto| auto.min).min(max_workers),
            max_workers,
            max_prefetch: if is_prefetch_auto { *AUTO_PREFETCH.end() } else { prefetch_factor },
            within_epochs,
            freeze,
            cpus,
        };
        Some(Tuner::new(options, Setting { workers, prefetch_factor }))
    }

    fn check_group(&self) -> Result<(), Error> {
        const REASON: &str = "each rank of a group would get the batches in another order; leave in_order on";
        let has_groups = self.options.group_size.is_some_and(|size| size > 1);
        if has_groups && self.options.in_order == Some(false) {
            Err(Error::ConflictingOptions { first: "in_order", second: "group_size", reason: REASON })
        } else {
            Ok(())
        }
    }

    /// True if an epoch loads the whole dataset: no sampler, batch sampler or rank is set.
    pub(super) fn loads_all(&self) -> bool {
        self.sampler.is_none() && self.batch_sampler.is_none() && self.options.rank.is_none()
    }

    /// Returns a warning if the launcher does not tell what the division of the machine needs.
    pub(super) fn undivided(&self) -> Option<Warning> {
        let launched = self.launched.as_ref().filter(|launched| launched.world_size > 1)?;
        let variable = launched.missing_local_variable()?;
        let options = &self.options;
        let needs_part = matches!(
            options.worker_affinity,
            Some(WorkerAffinity::Share | WorkerAffinity::Spread | WorkerAffinity::Pack)
        );
        let is_needed = match options.num_workers.unwrap_or_else(default::num_workers) {
            NumWorkers::Fixed(0) => false,
            NumWorkers::Auto(_) if launched.local_size.is_none() => {
                !matches!(options.worker_affinity, Some(WorkerAffinity::Sets(_)))
            }
            _ => needs_part,
        };
        is_needed.then(|| Warning::LocalRanksUnknown { launched: launched.clone(), variable })
    }

    /// Finds the CPUs of the workers.
    pub(super) fn worker_cpus(&self, variables: &Variables) -> Result<WorkerCpus, AffinityError> {
        match self.options.num_workers.unwrap_or_else(default::num_workers) {
            NumWorkers::Fixed(0) => Ok(WorkerCpus::inherited(self.local)),
            _ => self.options.worker_cpus(variables),
        }
    }

    /// Replaces the option `launcher` by the rank that the launcher gave this process. Returns what the
    /// launcher says, unless the option is off. Warns if the loader ignores the rank.
    pub(super) fn take_rank(&mut self, variables: &Variables) -> Result<Option<LaunchedRank>, Error> {
        let mode = self.options.launcher;
        let is_given = self.options.rank.is_some() || self.options.world_size.is_some();
        let options = mem::take(&mut self.options);
        self.options = options.with_rank_in(variables)?.0;
        self.is_launched = mode == Some(LauncherMode::Auto) && !is_given;
        if mode == Some(LauncherMode::Off) {
            return Ok(None);
        }
        // If the loader does not use the rank, an error in the variables does not matter.
        let launched = LaunchedRank::find(variables, None).ok().flatten();
        if let Some(launched) = &launched
            && mode.is_none()
            && !is_given
            && self.loads_all()
            && launched.world_size > 1
        {
            self.warn.warn(&Warning::RankIgnored { launched: launched.clone() });
        }
        Ok(launched)
    }

    /// Returns the option by which the program asked for a share of the dataset, by the name that it wrote. With `launcher`,
    /// the only process of a run loads the whole dataset.
    fn share_option(&self) -> Option<&'static str> {
        match (self.options.rank, self.options.world_size) {
            (_, world_size) if self.is_launched => world_size.filter(|&size| size > 1).map(|_| "launcher"),
            (Some(_), Some(_)) if self.is_distributed => Some("distributed"),
            (Some(_), _) => Some("rank"),
            (None, Some(_)) => Some("world_size"),
            (None, None) => None,
        }
    }

    /// Returns how ranks share the order of a map-style dataset with `samples` samples; `None` with a sampler
    /// of the user's.
    pub(super) fn sharing(&self, samples: usize) -> Result<Option<Sharing>, Error> {
        if self.sampler.is_some() || self.batch_sampler.is_some() {
            Ok(None)
        } else {
            self.options.sharing(samples).map(Some)
        }
    }

    /// Makes the batch sampler of a map-style dataset with `samples` samples.
    pub(super) fn make_batch_sampler(&mut self, samples: usize) -> Result<Box<dyn BatchSampler>, Error> {
        let options = &self.options;
        let shuffle = options.shuffle.unwrap_or_else(default::shuffle);
        let conflict = |first, second, reason| Err(Error::ConflictingOptions { first, second, reason });
        if options.shards.is_some() {
            return invalid("shards", "only an iterable dataset has shards; leave shards out");
        }
        if options.steps_per_epoch.is_some() {
            const PROBLEM: &str = "the sampler of a map-style dataset determines the number of batches; leave it out, or \
                                   use a sampler with as many samples";
            return invalid("steps_per_epoch", PROBLEM);
        }
        if shuffle && self.sampler.is_some() {
            const REASON: &str =
                "the sampler determines the order; use a sampler that shuffles, or leave the sampler out";
            return conflict("sampler", "shuffle", REASON);
        }
        if let Some(batch_sampler) = self.batch_sampler.take() {
            const REASON: &str =
                "the batch sampler determines the samples of each batch; leave one of the two out";
            let others = [
                options.batch_size.is_some_and(|size| size != default::batch_size()).then_some("batch_size"),
                shuffle.then_some("shuffle"),
                self.sampler.is_some().then_some("sampler"),
                options.drop_last.unwrap_or_else(default::drop_last).then_some("drop_last"),
                self.share_option(),
            ];
            if let Some(other) = others.into_iter().flatten().next() {
                return conflict("batch_sampler", other, REASON);
            }
            check_indices("batch_sampler", batch_sampler.max_index(), samples)?;
            return Ok(batch_sampler);
        }
        let share_option = self.share_option();
        let Some(sampler) = self.sampler.take() else { return options.batch_sampler(samples) };
        if let Some(share_option) = share_option {
            const REASON: &str = "the sampler determines which samples this process loads; leave the sampler out, \
                                  or leave the other option out and let the sampler return the share of this process";
            return conflict("sampler", share_option, REASON);
        }
        options.check_batch_size()?;
        check_indices("sampler", sampler.max_index(), samples)?;
        Ok(options.in_batches(sampler))
    }
}

/// Fails if a sampler's largest index is known and is not an index of the dataset. For an empty dataset,
/// `build()` returns [`Error::EmptyDataset`] instead.
fn check_indices(option: &'static str, max: Option<usize>, samples: usize) -> Result<(), Error> {
    match max {
        Some(index) if index >= samples && samples > 0 => invalid(
            option,
            format!("it gives index {index}, but the dataset has {samples} samples; use lower indices"),
        ),
        _ => Ok(()),
    }
}

fn too_large<T>(option: &'static str, value: usize, max: usize) -> Result<T, Error> {
    invalid(option, format!("{value} is more than {max}, the maximum"))
}

/// Returns `None` if an option's time is no limit: zero, or too long to matter.
fn time_limit(time: Duration) -> Option<Duration> {
    (!time.is_zero() && time < Duration::from_secs(u64::MAX)).then_some(time)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::{
        data::sampler::SubsetRandomSampler,
        options::{OptionInfo, OptionKind},
    };

    fn refusal(settings: &mut Settings, samples: usize) -> Option<String> {
        settings.make_batch_sampler(samples).err().map(|error| error.to_string())
    }

    #[test]
    fn an_index_outside_of_the_dataset_is_refused() {
        let with = |sampler: Box<dyn Sampler>| Settings { sampler: Some(sampler), ..Settings::default() };
        let expected = "sampler: it gives index 10, but the dataset has 10 samples; use lower indices";
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
        assert!(message.starts_with("batch_sampler: it gives index 11"), "{message}");
        assert_eq!(refusal(&mut batches(vec![vec![0], vec![9]]), 10), None);
    }

    #[test]
    fn options_that_need_workers_are_refused_without_them() {
        for option in OptionInfo::ALL.iter().filter(|option| option.needs_workers()) {
            let text = if option.kind() == OptionKind::Switch { "true" } else { "20000000" };
            let mut options = LoaderOptions::default();
            option.set(&mut options, text).unwrap();
            let refused = |options| Settings { options, ..Settings::default() }.check_options(8).err();
            let expected = format!(
                "{0}: has no effect without workers; set num_workers, or leave {0} out",
                option.name()
            );
            assert_eq!(refused(options).map(|error| error.to_string()), Some(expected));
        }
    }

    #[test]
    fn a_rank_of_a_launcher_is_taken_or_ignored_with_a_warning() {
        let take_in = |variables: &[(&str, &str)], options: LoaderOptions, has_sampler: bool| {
            let variables =
                variables.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect();
            let (send, warnings) = mpsc::channel();
            let warn = Warn::with(move |warning| send.send(warning.to_string()).unwrap());
            let sampler = has_sampler.then(|| Box::new(vec![0_usize]) as Box<dyn Sampler>);
            let mut settings = Settings { options, warn, sampler, ..Settings::default() };
            let launched = settings.take_rank(&variables).unwrap();
            let LoaderOptions { rank, world_size, .. } = settings.options;
            let refusal = refusal(&mut settings, 9).unwrap_or_default();
            (launched.is_some(), rank.zip(world_size), warnings.try_recv().unwrap_or_default(), refusal)
        };
        let take =
            |options, has_sampler| take_in(&[("RANK", "1"), ("WORLD_SIZE", "3")], options, has_sampler);
        let (options, nothing) = (LoaderOptions::default, String::new);
        let auto = || options().launcher(LauncherMode::Auto);
        assert_eq!(take(auto(), false), (true, Some((1, 3)), nothing(), nothing()));
        let conflict = "sampler and launcher exclude each other: the sampler determines which samples this process \
                        loads; leave the sampler out, or leave the other option out and let the sampler return the share \
                        of this process";
        assert_eq!(take(auto(), true).3, conflict);
        // The only process of a run loads what its sampler says.
        assert_eq!(take_in(&[], auto(), true).3, nothing());
        assert_eq!(take_in(&[("RANK", "0"), ("WORLD_SIZE", "1")], auto(), true).3, nothing());
        let warning = "the environment says rank 1 of 3 (torchrun: RANK, WORLD_SIZE), but the loader loads the whole \
                       dataset in each process; set launcher to \"auto\" for a share of it, or to \"off\" if this is \
                       intended";
        assert_eq!(take(options(), false), (true, None, warning.to_owned(), nothing()));
        assert_eq!(take(options().launcher(LauncherMode::Off), false), (false, None, nothing(), nothing()));
        // A program that has a sampler, or gives a rank, has decided what each process loads.
        assert_eq!(take(options(), true), (true, None, nothing(), nothing()));
        assert_eq!(take(options().rank(0).world_size(2), false), (true, Some((0, 2)), nothing(), nothing()));
    }

    #[test]
    fn memory_limit_is_divided_among_slots_and_datasets() {
        let divided = |memory_limit, shared_memory_limit| {
            let options = LoaderOptions { memory_limit, shared_memory_limit, ..LoaderOptions::default() };
            Settings { options, ..Settings::default() }.memory().map_err(|error| error.to_string())
        };
        let quarter = memory::default_limit(1) / 2; // a quarter of the memory that the process may use
        let memory = |slots, datasets| Ok(Memory { slots, datasets });
        assert_eq!(divided(None, None), memory(quarter, quarter));
        assert_eq!(divided(None, Some(1 << 50)), memory(1 << 50, quarter));
        assert_eq!(divided(Some(1 << 20), None), memory(1 << 19, 1 << 19));
        assert_eq!(divided(Some(1 << 20), Some(1 << 18)), memory(1 << 18, 3 << 18));
        for (limit, slots, refused) in [
            (Some(131_071), None, "memory_limit: 131071 bytes are too few"),
            (None, Some(65_535), "shared_memory_limit: 65535 bytes are too few"),
            (Some(131_072), Some(131_072), "shared_memory_limit: 131072 bytes leave nothing"),
        ] {
            let message = divided(limit, slots).unwrap_err();
            assert!(message.starts_with(refused), "{message}");
        }
        // The default limits of all processes of a machine together are that of one.
        let local = LocalRanks::new(Some(1), Some(8));
        let eighth = memory::default_limit(8) / 2;
        let divided = Settings { local, ..Settings::default() }.memory().map_err(|error| error.to_string());
        assert_eq!((divided, eighth), (memory(eighth, eighth), quarter / 8));
    }

    #[test]
    fn groups_get_their_batches_in_order() {
        let check = |options: LoaderOptions| {
            let options = LoaderOptions { group_size: Some(2), ..options.num_workers(2) };
            Settings { options, ..Settings::default() }.check_options(4).map(drop)
        };
        let error = check(LoaderOptions::default().in_order(false)).unwrap_err();
        assert!(
            matches!(error, Error::ConflictingOptions { first: "in_order", second: "group_size", .. }),
            "{error}"
        );
        check(LoaderOptions::default()).unwrap();
        // Without a rank, a sampler of the program's own may divide the samples.
        let options = LoaderOptions { group_size: Some(2), ..LoaderOptions::default() };
        assert_eq!(Settings { options, ..Settings::default() }.share_option(), None);
    }

    #[test]
    fn a_launcher_that_tells_half_of_the_local_rank_is_warned_of() {
        let warning = |launched: &str, options: LoaderOptions| {
            let pairs = launched.split(' ').map(|pair| pair.split_once('=').unwrap());
            let variables = pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
            let mut settings = Settings { options, ..Settings::default() };
            settings.launched = settings.take_rank(&variables).unwrap();
            settings.undivided().map(|warning| warning.to_string())
        };
        let fixed = || LoaderOptions::default().num_workers(4).launcher(LauncherMode::Auto);
        let auto = || fixed().num_workers(NumWorkers::auto());
        let share = || fixed().worker_affinity(WorkerAffinity::Share);
        let both = "RANK=1 WORLD_SIZE=4 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2";
        let rank = "RANK=1 WORLD_SIZE=4 LOCAL_RANK=1";
        let size = "RANK=1 WORLD_SIZE=4 LOCAL_WORLD_SIZE=2";
        for (launched, options) in [
            (both, auto()),
            (rank, fixed()),
            (rank, share().num_workers(0)),
            (rank, auto().launcher(LauncherMode::Off)),
            (size, auto()),
            ("RANK=1 WORLD_SIZE=4", auto()),
            ("RANK=0 WORLD_SIZE=1 LOCAL_RANK=0", auto()),
            (rank, auto().worker_affinity(WorkerAffinity::Sets(vec!["0".parse().unwrap()]))),
        ] {
            assert_eq!(warning(launched, options), None, "{launched}");
        }
        let says = "the environment says rank 1 of 4 (torchrun: RANK, WORLD_SIZE), but does not say both the local \
                    rank and the local size, so the loader cannot divide the CPUs of this machine and counts all of \
                    them for its workers";
        let set_size = format!("{says}; set LOCAL_WORLD_SIZE too");
        assert_eq!(warning(rank, auto()).as_deref(), Some(&*set_size));
        assert_eq!(warning(rank, share()).as_deref(), Some(&*set_size));
        assert_eq!(warning(size, share()), Some(format!("{says}; set LOCAL_RANK too")));
        let jsrun = warning("JSM_NAMESPACE_RANK=1 JSM_NAMESPACE_SIZE=4 JSM_NAMESPACE_LOCAL_RANK=1", auto());
        let advice =
            "counts all of them for its workers; set num_workers to a number, and leave out worker_affinity";
        assert!(jsrun.as_ref().is_some_and(|text| text.ends_with(advice)), "{jsrun:?}");
    }

    #[test]
    fn shards_are_refused_for_a_map_style_dataset() {
        let options = LoaderOptions::default().shards(2);
        let message = refusal(&mut Settings { options, ..Settings::default() }, 10).unwrap();
        assert!(message.starts_with("shards: only an iterable dataset has shards"), "{message}");
    }
}
