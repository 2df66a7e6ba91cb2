//! Configures a loader. `build()` reports every invalid option or combination as an error; none panics, and
//! none is first reported by `iter()`.
//!
//! This module and `loader` import each other, because `DataLoader::builder` returns a builder and `build()`
//! returns a `DataLoader`.

mod binding;
mod build;
mod order;
mod round_trip;
mod settings;
mod unbatched;

use std::{fmt, net::SocketAddr, path::PathBuf, time::Duration};

use loader_ipc::function::Function;

#[cfg(feature = "config")]
use crate::config::{Config, ConfigError};
use crate::{
    data::{
        collate::{Batch, CollateWith, ContentHash, DefaultCollate, HashWith},
        context::WorkerInfo,
        dataset::{Dataset, IterableDataset, SnapshotDataset},
        fetch::{DatasetKind, FetchOptions, Iterable, MapStyle, Plain, ShardLayout, Snapshots},
        function::{CollateFn, CollateFnWith, Params, WithParams, WorkerInitFn, WorkerInitFnWith},
        sampler::{BatchSampler, Sampler},
        worker_init::NoWorkerInit,
    },
    engine::{interrupt::StartInterrupt, pool::WorkerProgram},
    options::{
        LauncherMode, LoaderOptions, NumWorkers, OnBadSample, OnWorkerDeath, Order, PrefetchFactor,
        WorkerAffinity,
    },
    report::{
        observers::SharedObservers,
        warning::{Warn, Warning},
    },
};

use settings::Settings;

/// Configures a [`DataLoader`](crate::DataLoader). [`DataLoader::builder`](crate::DataLoader::builder) starts
/// one for a map-style dataset, [`DataLoader::stream`](crate::DataLoader::stream) one for an iterable
/// dataset. The methods have the names and meanings of the arguments of PyTorch's `DataLoader`.
///
/// `K` holds the dataset. `C` is the collation, which [`collate`](Self::collate) replaces. `W` is the worker
/// hook, which [`worker_init`](Self::worker_init) sets. The module [`kind`](crate::kind) has their types.
pub struct Builder<K, C = DefaultCollate, W = NoWorkerInit> {
    kind: K,
    collate: C,
    worker_init: W,
    settings: Settings,
}

impl<K> Builder<K> {
    fn new(kind: K) -> Self {
        Self { kind, collate: DefaultCollate, worker_init: NoWorkerInit, settings: Settings::default() }
    }
}

impl<D: Dataset> Builder<MapStyle<D>> {
    pub(crate) fn map_style(dataset: D) -> Self {
        Self::new(MapStyle { dataset, options: FetchOptions::default(), memory: 0, draws_from_all: false })
    }
}

impl<D: IterableDataset> Builder<Iterable<Plain<D>>> {
    pub(crate) fn iterable(dataset: D) -> Self {
        let dataset = Plain(dataset);
        Self::new(Iterable {
            dataset,
            layout: ShardLayout::default(),
            snapshot_every: 1,
            options: FetchOptions::default(),
            memory: 0,
        })
    }
}

/// Makes methods that set an option of [`LoaderOptions`], with the documentation before each.
macro_rules! setters {
    ($($(#[$attribute:meta])* $option:ident: $type:ty,)*) => {$(
        $(#[$attribute])*
        #[must_use]
        pub fn $option(mut self, $option: $type) -> Self {
            self.settings.options.$option = Some($option.into());
            self
        }
    )*};
}

/// Options of map-style datasets only.
impl<D: Dataset, C, W> Builder<MapStyle<D>, C, W> {
    setters! {
        /// Sets whether samples are loaded in a new random order in each epoch; false by default. True excludes
        /// [`sampler`](Self::sampler) and [`batch_sampler`](Self::batch_sampler).
        shuffle: bool,

        /// Sets the random number generator that determines the order of the samples; [`Order::Native`] by
        /// default. With [`Order::Torch`], a run that is ported from PyTorch loads the same batches of indices.
        /// The option does not affect the random numbers of augmentation
        /// ([`SampleContext::rng`](crate::SampleContext::rng)).
        order: Order,
    }

    /// Sets the sampler, which determines the order of the samples; sequential by default. Excludes
    /// [`shuffle`](Self::shuffle), [`distributed`](Self::distributed) and
    /// [`batch_sampler`](Self::batch_sampler).
    ///
    /// # Examples
    /// ```
    /// use loader_core::prelude::*;
    ///
    /// let numbers = TensorDataset::new(Tensor::from_slice(&[10i64, 20, 30, 40], [4])?)?;
    /// // A list of indices is a sampler.
    /// let loader = DataLoader::builder(numbers).batch_size(3).sampler(vec![3, 0, 2]).build()?;
    /// assert_eq!(loader.iter()?.next().unwrap()?.as_slice(), [40, 10, 30]);
    /// # anyhow::Ok(())
    /// ```
    #[must_use]
    pub fn sampler(mut self, sampler: impl Sampler) -> Self {
        self.settings.sampler = Some(Box::new(sampler));
        self
    }

    /// Sets the batch sampler, which determines the indices of each batch. Excludes
    /// [`batch_size`](Self::batch_size), [`shuffle`](Self::shuffle), [`sampler`](Self::sampler),
    /// [`drop_last`](Self::drop_last) and [`distributed`](Self::distributed).
    ///
    /// # Examples
    /// ```
    /// use loader_core::prelude::*;
    ///
    /// let numbers = TensorDataset::new(Tensor::from_slice(&[10i64, 20, 30, 40], [4])?)?;
    /// // A list of lists of indices is a batch sampler.
    /// let loader = DataLoader::builder(numbers).batch_sampler(vec![vec![3], vec![0, 2]]).build()?;
    /// let batches: Vec<_> = loader.iter()?.collect::<Result<_, _>>()?;
    /// assert_eq!(batches[0].as_slice(), [40]);
    /// assert_eq!(batches[1].as_slice(), [10, 30]);
    /// # anyhow::Ok(())
    /// ```
    #[must_use]
    pub fn batch_sampler(mut self, batch_sampler: impl BatchSampler) -> Self {
        self.settings.batch_sampler = Some(Box::new(batch_sampler));
        self
    }
}

/// Options of iterable datasets only.
impl<O, C, W> Builder<Iterable<O>, C, W> {
    setters! {
        /// Sets the number of shards in which this process reads the dataset, 1 to 65,536; by default the number
        /// of workers, as in PyTorch, or 1 without workers. If it is set, the order of the batches does not
        /// depend on the number of workers. A worker keeps all of its shards open at once; if there are more
        /// workers than shards, the surplus workers have nothing to do.
        shards: usize,

        /// Ends each epoch after this number of batches, at least 1; by default after all batches of the stream. A
        /// batch that fails counts too, and a batch whose samples were all left out does not.
        ///
        /// With the same number on each rank, all ranks take equally many training steps, whatever the lengths of
        /// their shards: no rank waits for ever for the gradients of one that has no more batches. The next epoch
        /// begins at the start of the stream, so shuffle what it reads by epoch
        /// ([`SampleContext::epoch_rng`](crate::SampleContext::epoch_rng)).
        ///
        /// If the stream ends before, `next` returns [`Error::StreamTooShort`](crate::Error::StreamTooShort). To
        /// repeat the stream instead, wrap it in a [`MixDataset`](crate::MixDataset) of one dataset with
        /// [`Exhausted::Repeat`](crate::mix::Exhausted::Repeat) and as many samples as the epoch needs.
        ///
        /// # Examples
        /// ```
        /// use loader_core::prelude::*;
        ///
        /// let numbers = TensorDataset::new(Tensor::from_vec((0..100_i32).collect(), [100])?)?;
        /// let loader = DataLoader::stream(numbers.into_stream()).batch_size(10).steps_per_epoch(4).build()?;
        /// assert_eq!(loader.len(), Some(4));
        /// assert_eq!(loader.iter()?.count(), 4);
        /// # anyhow::Ok(())
        /// ```
        steps_per_epoch: u64,
    }
}

impl<D: SnapshotDataset, C, W> Builder<Iterable<Plain<D>>, C, W> {
    /// Asks the dataset for a snapshot after each batch, so that [`resume`](crate::DataLoader::resume)
    /// continues there without reading the samples before it.
    #[must_use]
    pub fn snapshots(self) -> Builder<Iterable<Snapshots<D>>, C, W> {
        let Self { kind, collate, worker_init, settings } = self;
        let Iterable { dataset: Plain(dataset), layout, snapshot_every, options, memory } = kind;
        let kind = Iterable { dataset: Snapshots(dataset), layout, snapshot_every, options, memory };
        Builder { kind, collate, worker_init, settings }
    }
}

impl<D, C, W> Builder<Iterable<Snapshots<D>>, C, W> {
    /// Sets after how many batches of a shard the dataset writes a snapshot, at least 1; 1 by default. A
    /// larger number helps if writing a snapshot is expensive. When the loader is resumed, it reads the
    /// samples after the last snapshot again.
    #[must_use]
    pub fn snapshot_every(mut self, batches: u64) -> Self {
        self.kind.snapshot_every = batches;
        self
    }
}

impl<K: DatasetKind, C, W> Builder<K, C, W> {
    setters! {
        /// Sets the number of samples per batch, at least 1; 1 by default. The last batch may be smaller; see
        /// [`drop_last`](Self::drop_last).
        batch_size: usize,

        /// Sets the seed of the order and of [`SampleContext::rng`](crate::SampleContext::rng); 0 by default. The
        /// same seed gives the same batches with any number of workers.
        seed: u64,
    }

    /// Loads only the share of process `rank`, from 0, of `world_size` processes that train together.
    ///
    /// For a map-style dataset, this uses a [`DistributedSampler`](crate::sampler::DistributedSampler) with
    /// this loader's `shuffle`, [`seed`](Self::seed) and [`drop_last`](Self::drop_last), which must be the
    /// same in all processes. All processes get the same number of samples. If the number of samples is not
    /// divisible by `world_size`, some samples are loaded twice, or with `drop_last` the surplus samples are
    /// left out. Excludes [`sampler`](Builder::sampler) and [`batch_sampler`](Builder::batch_sampler).
    ///
    /// For an iterable dataset, each process reads its own shards, which may have different lengths.
    ///
    /// # Examples
    /// ```
    /// use loader_core::prelude::*;
    ///
    /// let share = |rank| {
    ///     let numbers = TensorDataset::new(Tensor::from_slice(&[0i64, 1, 2, 3, 4], [5])?)?;
    ///     let loader = DataLoader::builder(numbers).batch_size(3).distributed(rank, 2).build()?;
    ///     anyhow::Ok(loader.iter()?.next().unwrap()?.as_slice().to_vec())
    /// };
    /// assert_eq!(share(0)?, [0, 2, 4]);
    /// // Number 0 is loaded twice, so that both processes have three samples.
    /// assert_eq!(share(1)?, [1, 3, 0]);
    /// # anyhow::Ok(())
    /// ```
    #[must_use]
    pub fn distributed(mut self, rank: usize, world_size: usize) -> Self {
        self.settings.options.rank = Some(rank);
        self.settings.options.world_size = Some(world_size);
        self.settings.is_distributed = true;
        self
    }

    setters! {
        /// Gives the same share to `group_size` consecutive ranks; 1 by default. With tensor or pipeline parallelism,
        /// the ranks of a group train one copy of the model, and read the same data. Process `rank` of `world_size`
        /// then loads share `rank / group_size` of `world_size / group_size`, whether
        /// [`distributed`](Self::distributed) or a [launcher](Self::launcher) gives these numbers. `{rank}` in the name
        /// of a file still stands for `rank`, so each process writes files of its own. Without a rank the option has no
        /// effect.
        ///
        /// The ranks of a group have equal states. To resume with another number of groups,
        /// [merge](crate::State::merge) one state of each group.
        ///
        /// # Examples
        /// ```
        /// use loader_core::prelude::*;
        ///
        /// let share = |rank| {
        ///     let numbers = TensorDataset::new(Tensor::from_slice(&[0i64, 1, 2, 3], [4])?)?;
        ///     let builder = DataLoader::builder(numbers).batch_size(2).distributed(rank, 4).group_size(2);
        ///     anyhow::Ok(builder.build()?.iter()?.next().unwrap()?.as_slice().to_vec())
        /// };
        /// assert_eq!((share(0)?, share(1)?), (vec![0, 2], vec![0, 2]));
        /// assert_eq!((share(2)?, share(3)?), (vec![1, 3], vec![1, 3]));
        /// # anyhow::Ok(())
        /// ```
        group_size: usize,

        /// Sets whether the rank and the world size, if [`distributed`](Self::distributed) does not give them,
        /// are those that the launcher of this process, such as torchrun or mpirun, has put into the environment.
        /// If this method is not called, `build()` warns if the loader loads the whole dataset in each of several
        /// processes.
        ///
        /// [`LaunchedRank::from_env`](crate::LaunchedRank::from_env) tells what `build()` finds. If the launcher has
        /// started several processes, [`LauncherMode::Auto`] excludes [`sampler`](Builder::sampler) and
        /// [`batch_sampler`](Builder::batch_sampler).
        launcher: LauncherMode,

        /// Sets the number of worker processes per iterator: a number up to 4096, or
        /// [`AutoWorkers`](crate::AutoWorkers), with which the loader finds the number while it loads. 0, the default,
        /// loads in this process.
        ///
        /// `build()` encodes the dataset, and the loader loads from a decoded copy, also without workers.
        /// [`TensorDataset`](crate::TensorDataset) says how much memory this needs.
        num_workers: impl Into<NumWorkers>,

        /// Sets the number of batches that the loader prefetches per worker: 1 to 65,536, 2 by default, or
        /// [`PrefetchFactor::Auto`]. Needs workers.
        prefetch_factor: impl Into<PrefetchFactor>,

        /// Sets whether a last batch that is not full is left out; false by default. For an iterable dataset,
        /// this is the last batch of each shard.
        drop_last: bool,

        /// Sets whether batches are returned in order; true by default. With false, the iterator returns batches
        /// as they arrive. This is faster if some samples take much longer than others, but the order then
        /// depends on timing.
        in_order: bool,
    }

    /// Lets a worker build the loader, if it has no workers of its own. For a host whose workers run nothing but the
    /// dataset; any other host may have forgotten `init`, and a worker would then run the program again.
    #[doc(hidden)]
    #[must_use]
    pub fn allow_nested(mut self) -> Self {
        self.settings.may_be_nested = true;
        self
    }

    /// Calls `check` each time the start of an epoch has waited for its workers for `every`, at least 50 ms. If it
    /// returns true, the start returns [`Error::Interrupted`](crate::Error::Interrupted), and the next call waits
    /// again. For interpreters, as [`Iter::interrupt_when`](crate::Iter::interrupt_when).
    #[doc(hidden)]
    #[must_use]
    pub fn interrupt_start_when(
        mut self,
        every: Duration,
        check: impl Fn() -> bool + Send + Sync + 'static,
    ) -> Self {
        self.settings.interrupt = Some(StartInterrupt::new(every, check));
        self
    }

    /// Makes the loader add to the statistics, the trace and the metrics of the loaders that were built before with the
    /// same `observers`, and ignore its own options for these. For hosts that build a loader for each epoch.
    #[doc(hidden)]
    #[must_use]
    pub fn share_observers(mut self, observers: &SharedObservers) -> Self {
        self.settings.observers = observers.clone();
        self
    }

    setters! {
        /// Sets the maximum time that `next` waits for a batch before it returns
        /// [`Error::TimedOut`](crate::Error::TimedOut); zero, the default, waits for ever. The time in which the
        /// awaited worker opens the dataset does not count, up to 30 seconds of each wait. After this error, call
        /// `next` again to wait again: no batch is lost. Ten such waits in a row end the iterator with
        /// [`Error::WorkerStuck`](crate::Error::WorkerStuck) if they took at least a minute together and the awaited
        /// worker made no progress. Needs workers.
        ///
        /// The start of an iterator returns the same error if its workers have not answered after 30 seconds and this
        /// time.
        ///
        /// The loader notices the death of a worker at once, with or without a timeout.
        timeout: Duration,

        /// Sets the maximum number of bytes of data that the loader may hold in all of its processes together, at
        /// least 131,072. [`shared_memory_limit`](Self::shared_memory_limit) is the part for batches in shared memory.
        /// The rest is for what datasets keep, such as decoded row groups and caches, and what streams read ahead from
        /// servers; see [`DatasetMemory`](crate::DatasetMemory).
        ///
        /// The default is half of the memory that the process may use: the machine's memory, or the limit of the
        /// process's control group if that is lower. If only `shared_memory_limit` is set, the default is that
        /// limit plus a quarter of the memory that the process may use.
        ///
        /// The limit does not bound memory that the loader does not count, such as the program code of the
        /// workers and what a dataset needs while it loads a sample; see
        /// [`worker_memory_limit`](Self::worker_memory_limit).
        memory_limit: u64,

        /// Sets the maximum number of bytes of shared memory for batches, at least 65,536 and below
        /// [`memory_limit`](Self::memory_limit). The default is half of `memory_limit`. All iterators of the
        /// loader share it, and batches that the program holds count.
        shared_memory_limit: u64,

        /// Sets what happens when a worker process dies while it has work; [`OnWorkerDeath::Restart`] by default:
        /// another process takes its place, and the loader returns the same batches as without the death.
        ///
        /// The loader gives up a batch, returns [`Error::BatchGivenUp`](crate::Error::BatchGivenUp) in its place
        /// and continues with the epoch:
        ///
        /// - after two crashes on the batch,
        /// - after three workers on the batch ran out of memory or were killed because they made no progress,
        /// - after 32 workers in a row were killed by a signal in the same sample,
        /// - after three deaths in a row in the same sample of which the host hides the cause,
        /// - after 100 deaths on the batch.
        ///
        /// With [`OnBadSample::Skip`] or [`OnBadSample::Replace`], the loader gives up only the sample in which
        /// the workers died, if one is known. If another process kills workers at random, no batch is lost.
        ///
        /// While the program waits for a batch, the loader also kills and replaces a worker that has work and
        /// cannot continue for 10 seconds, because SIGSTOP or a debugger stopped it or because its main thread
        /// has ended. With [`OnWorkerDeath::Fail`] it does not.
        on_worker_death: OnWorkerDeath,

        /// Sets the maximum number of deaths of a worker in a row outside of batches (while it starts, opens the
        /// dataset or waits) after which it is started again; 10 by default. One more death ends the iterator
        /// with [`Error::WorkerExited`](crate::Error::WorkerExited). When the worker finishes a batch, the count
        /// starts again from zero. A death on a batch counts for that batch instead; see
        /// [`on_worker_death`](Self::on_worker_death).
        max_worker_deaths: u32,

        /// Sets whether the loader digests the samples of each epoch, to compare runs; false by default. See
        /// [`SampleDigest`](crate::SampleDigest). [`EpochReport::digest`](crate::EpochReport::digest) is the
        /// result.
        ///
        /// Samples that a function collates need [`digest_with`](Self::digest_with). With
        /// [`unbatched`](Self::unbatched), the loader hashes the converted item in place of the sample.
        digest: bool,
    }

    /// Sets [`digest`](Self::digest) to true for samples that a function collates or converts; call it after
    /// [`collate`](Self::collate) or [`unbatched`](Self::unbatched). `hash` runs where the samples are
    /// loaded, before collation. It must pass to [`ContentHash`] all values by which two samples may differ,
    /// and it must neither capture anything nor keep a sample.
    ///
    /// # Examples
    /// ```
    /// use loader_core::prelude::*;
    ///
    /// let numbers = || TensorDataset::new(Tensor::from_vec((0..9i64).collect(), [9]).unwrap()).unwrap();
    /// let digest = |batch_size| {
    ///     let summed = DataLoader::builder(numbers())
    ///         .collate(|numbers| Ok(numbers.iter().map(|number| number[0]).sum::<i64>()))
    ///         .digest_with(|number, hash| hash.bytes(&number[0].to_le_bytes()));
    ///     let mut sums = summed.batch_size(batch_size).build()?.iter()?;
    ///     sums.by_ref().try_for_each(|sum| sum.map(drop))?;
    ///     anyhow::Ok(sums.report().digest)
    /// };
    /// assert_eq!(digest(2)?, digest(5)?);
    /// # anyhow::Ok(())
    /// ```
    #[must_use]
    pub fn digest_with(
        self,
        // If a closure captures something, the compiler's error shows the next line.
        hash: fn(&K::Sample, &mut ContentHash),
    ) -> Builder<K, HashWith<C, K::Sample>, W> {
        let Self { kind, collate, worker_init, settings } = self.digest(true);
        let collate = HashWith { collate, hash: Function::new(hash) };
        Builder { kind, collate, worker_init, settings }
    }

    setters! {
        /// Sets what happens with a sample that cannot be loaded, because the dataset returns an error or panics,
        /// because it takes longer than [`sample_timeout`](Self::sample_timeout), or because it repeatedly ends
        /// its worker. By default its batch fails; the sample can also be skipped or replaced.
        /// [`EpochReport::bad_samples`](crate::EpochReport::bad_samples) lists the samples that were skipped or
        /// replaced, and there is a [`Warning::BadSample`] for each.
        ///
        /// # Examples
        /// ```
        /// use loader_core::prelude::*;
        ///
        /// let numbers = TensorDataset::new(Tensor::from_slice(&[10i64, 20, 30, 40], [4])?)?;
        /// let checked = numbers.map(|number, _| {
        ///     anyhow::ensure!(number[0] != 30, "the number is damaged");
        ///     Ok(number[0])
        /// });
        /// let loader = DataLoader::builder(checked).batch_size(4).on_bad_sample(OnBadSample::Skip).build()?;
        /// let mut batches = loader.iter()?;
        /// assert_eq!(batches.next().unwrap()?.as_slice(), [10, 20, 40]);
        /// assert_eq!(batches.report().bad_samples[0].index, 2);
        /// # anyhow::Ok(())
        /// ```
        on_bad_sample: OnBadSample,

        /// Sets the maximum number of samples that may be skipped or replaced in an epoch; 10 by default. One more
        /// ends the iterator with [`Error::TooManyBadSamples`](crate::Error::TooManyBadSamples).
        max_bad_samples: u64,

        /// Sets the maximum time for one sample, or for one call of [`get_many`](crate::Dataset::get_many) if the
        /// dataset has it; zero, the default, is no limit. A sample that takes longer is bad, and its worker is
        /// replaced. The loader checks this while the program waits for a batch. Needs workers.
        ///
        /// If it is set, the loader also replaces a worker that has work and makes no progress outside of
        /// samples, for example in collation, for `timeout` or 5 seconds, whichever is longer. This counts as a
        /// death (see [`on_worker_death`](Self::on_worker_death)). There is no limit on the time to open the
        /// dataset.
        sample_timeout: Duration,

        /// Sets the CPUs to which each worker is bound; [`WorkerAffinity::Inherit`] by default. A process that takes
        /// a worker's place is bound to the same CPUs. Main's own CPUs stay as they are. No effect without workers.
        ///
        /// # Examples
        /// ```
        /// use loader_core::{WorkerAffinity, prelude::*};
        ///
        /// let numbers = TensorDataset::new(Tensor::<i64>::from_vec((0..80).collect(), [80])?)?;
        /// let share = DataLoader::builder(numbers.clone()).worker_affinity(WorkerAffinity::Share).build()?;
        /// let sets = WorkerAffinity::Sets(vec!["0-3".parse()?, "4-7".parse()?]);
        /// let listed = DataLoader::builder(numbers).worker_affinity(sets).build()?;
        /// # let _ = (share, listed);
        /// # anyhow::Ok(())
        /// ```
        worker_affinity: WorkerAffinity,

        /// Sets the maximum number of bytes of private memory that a worker allocates after its start, at least
        /// 16,777,216 (16 MiB); no limit by default. Shared memory does not count, and neither does what a worker has
        /// before it opens the dataset, such as the libraries of [the template](crate::WorkerProgram::template) that
        /// has forked it. Needs workers.
        ///
        /// Each worker checks its memory after a batch. If it uses more, it ends before its next batch, and
        /// another process takes its place. A worker can never allocate more than twice this number
        /// (`RLIMIT_DATA`).
        worker_memory_limit: u64,

        /// Sets whether an idle worker takes over a batch that waits behind a slow one; true by default. The order of
        /// the batches stays the same, and so does their content, unless samples depend on the worker that loads them:
        /// then set it to false, and worker *w* of *n* loads the batches *w*, *w + n*, *w + 2n*, ..., as in PyTorch,
        /// except after a worker has died and with `hedge`. Batches of iterable datasets are never moved.
        ///
        /// With false, persistent workers load the batches that they were sent to the end when an iterator is dropped,
        /// as in PyTorch; otherwise they give them up. With false, a worker also loads each batch only once: where
        /// shared memory is short, main does not drop a batch that is loaded, to load it again later. A batch that does
        /// not fit beside loaded ones then fails.
        move_tasks: bool,

        /// Sets whether a late batch is given to a second, idle worker too; false by default. The first result is
        /// used, so the order and the content of batches stay the same. A batch is late when the program has
        /// waited for it for four times the mean time of a batch, and at least 20 ms. Has no effect for iterable
        /// datasets. Needs workers, and shared memory for one more batch.
        hedge: bool,

        /// Sets whether the kernel's OOM killer prefers workers to main; true by default. A worker and the programs
        /// that it starts then have an `oom_score_adj` that is 500 higher than that of main, at most 1000. With false,
        /// they have that of main.
        raise_oom_score_adj: bool,

        /// Sets a file for a trace of what main and the workers did, and when; none by default. The loader
        /// replaces the file at the end of each epoch. It has the last 100,000 events of all epochs, in the JSON
        /// format that Perfetto (`ui.perfetto.dev`) and Chrome (`chrome://tracing`) show. In its name, `{rank}`
        /// stands for the rank; with a world size above 1 the name must have it. `build()` fails if the file
        /// cannot be written.
        ///
        /// # Examples
        /// ```
        /// use loader_core::prelude::*;
        ///
        /// let folder = tempfile::tempdir()?;
        /// let file = folder.path().join("trace.json");
        /// let numbers = TensorDataset::new(Tensor::from_slice(&[1i64, 2, 3], [3])?)?;
        /// let loader = DataLoader::builder(numbers).trace(&file).build()?;
        /// assert_eq!(loader.iter()?.count(), 3);
        /// assert!(std::fs::read_to_string(&file)?.contains("\"name\":\"next\""));
        /// # anyhow::Ok(())
        /// ```
        trace: impl Into<PathBuf>,

        /// Sets a file to which the loader writes a trace of the last events when an error ends an epoch, and
        /// when it has replaced a worker that died; none by default. The trace has the last spans of each worker,
        /// also of a worker that was killed. Format and name of the file are as for [`trace`](Self::trace).
        /// `build()` fails if the file cannot be written.
        trace_on_failure: impl Into<PathBuf>,

        /// Sets an address at which the loader serves its [statistics](crate::DataLoader::stats) over HTTP, in
        /// the text format of Prometheus; none by default. They can be read from the call of `build()` until the
        /// loader is dropped, also while `next` waits. Everyone who can reach the address can read them: use a
        /// loopback address such as `127.0.0.1:9100` unless the network is trusted. `build()` fails if the
        /// address is in use.
        metrics: SocketAddr,
    }

    /// Sets every option that is not `None` in `options`, as [`LoaderOptions::over`] does.
    #[must_use]
    pub fn options(mut self, options: LoaderOptions) -> Self {
        self.settings.options = options.over(self.settings.options);
        self
    }

    /// Sets the options of the section `[loader]` of `config`, with the [environment
    /// variables](LoaderOptions::from_env) over them. Methods that are called later override both. Needs the
    /// feature `config`.
    ///
    /// # Errors
    /// The errors of [`LoaderOptions::from_env`].
    ///
    /// # Examples
    /// ```no_run
    /// use loader_core::{config::Config, prelude::*};
    ///
    /// let config = Config::load("run.toml")?;
    /// let numbers = TensorDataset::new(Tensor::from_slice(&[10i64, 20, 30, 40], [4])?)?;
    /// let loader = DataLoader::builder(numbers).config(&config)?.build()?;
    /// # anyhow::Ok(())
    /// ```
    #[cfg(feature = "config")]
    pub fn config<D>(self, config: &Config<D>) -> Result<Self, ConfigError> {
        Ok(self.options(LoaderOptions::from_env()?.over(config.loader.clone())))
    }

    /// Sets the program that workers run: a path, or a [`WorkerProgram`] with arguments. By default, workers
    /// run this program, started again. Set it if the loader does not run in a program of its own, for
    /// example in an extension of an interpreter.
    ///
    /// The program can load any dataset if it contains the same build of the loader's code: the same
    /// executable, or another executable with the same shared library. Any other program must register the
    /// dataset with `loader::Registry`, under the name given to [`registered`](Self::registered).
    #[must_use]
    pub fn worker_program(mut self, program: impl Into<WorkerProgram>) -> Self {
        self.settings.worker_program = Some(program.into());
        self
    }

    /// Sets the name under which another worker program has registered the dataset. It has no effect if
    /// neither `worker_program` nor the environment variable `LOADER_WORKER` names a worker program.
    ///
    /// Functions cannot be sent to another program. `build()` therefore refuses a registered dataset that
    /// uses [`map`](crate::Dataset::map), [`collate`](Self::collate) or [`worker_init`](Self::worker_init).
    /// Instead, write a type for the composed dataset, implement [`Dataset`] for it, and use that type in
    /// both programs.
    ///
    /// Build both programs from the same source: if a type of the dataset has other fields in the worker program, the
    /// iterator returns [`Error::ProgramsDiffer`](crate::Error::ProgramsDiffer) and ends. If the workers cannot decode
    /// the dataset, it returns [`Error::OpenFailed`](crate::Error::OpenFailed).
    #[must_use]
    pub fn registered(mut self, name: impl Into<String>) -> Self {
        self.settings.registered = Some(name.into());
        self
    }

    setters! {
        /// Sets whether workers, with their copies of the dataset, stay from one epoch to the next; false by
        /// default. Needs workers.
        ///
        /// Workers stay even if the iterator is dropped in the middle of an epoch. `setup` and `worker_init` run
        /// once, not in each epoch. If several iterators of the loader exist at once, each has its own workers.
        persistent_workers: bool,

        /// Sets whether batches are loaded into page-locked memory, from which a GPU can copy asynchronously;
        /// false by default.
        ///
        /// The loader registers shared memory with the CUDA driver in place, once, when it maps it, so batches
        /// from workers need neither a copy nor a thread. Without workers, it registers the memory in which
        /// collation makes tensors. [`Tensor::is_pinned`](crate::Tensor::is_pinned) tells whether a tensor is
        /// page-locked. Keep a batch until the GPU has copied it: the loader reuses the memory of a dropped
        /// batch.
        ///
        /// It needs the feature `cuda`, NVIDIA's driver and a GPU. `build()` opens the driver for the device
        /// whose context is current on the calling thread; if there is none, for the first device whose primary
        /// context is in use, or else for the first device. If the feature, the driver or the GPU is missing,
        /// there is a [`Warning::NotPinned`], and batches are loaded into ordinary memory.
        pin_memory: bool,

        /// Sets how long `next` waits for a batch, or the start of an iterator for its workers, before a
        /// [`Warning::LongWait`] names the awaited worker and what it is doing; 30 seconds by default, zero for never.
        /// After the warning, the call continues to wait; use [`timeout`](Self::timeout) to end the wait.
        warn_after: Duration,
    }

    /// Calls `function` with each [`Warning`]. By default, warnings are printed to standard error.
    ///
    /// # Examples
    /// ```
    /// use loader_core::{Warning, prelude::*};
    ///
    /// let numbers = TensorDataset::new(Tensor::from_slice(&[10i64, 20, 30, 40], [4])?)?;
    /// let loader = DataLoader::builder(numbers).on_warning(|warning| match warning {
    ///     Warning::WorkerReplaced { worker, exit, .. } => eprintln!("worker {worker}: {exit}"),
    ///     other => eprintln!("{other}"),
    /// });
    /// # drop(loader.build()?);
    /// # anyhow::Ok(())
    /// ```
    #[must_use]
    pub fn on_warning(mut self, function: impl Fn(&Warning) + Send + Sync + 'static) -> Self {
        self.settings.warn = Warn::with(function);
        self
    }

    /// Sets whether the loader installs a SIGCHLD handler while workers run; true by default. The handler
    /// calls the one that was installed before. Without it, the loader still notices the death of a worker at
    /// once if the kernel has pidfds (Linux 5.3).
    #[must_use]
    pub fn handle_sigchld(mut self, handle_sigchld: bool) -> Self {
        self.settings.handle_sigchld = handle_sigchld;
        self
    }

    /// Collates the samples of each batch with `function`, which runs in the workers. The function must not
    /// capture anything; see [`collate_with`](Self::collate_with) for a function with parameters. Tensors
    /// that it makes are allocated in shared memory.
    ///
    /// # Examples
    /// ```
    /// use loader_core::prelude::*;
    ///
    /// let numbers = TensorDataset::new(Tensor::from_slice(&[10i64, 20, 30, 40], [4])?)?;
    /// let sums = DataLoader::builder(numbers.map(|number, _| Ok(number[0])))
    ///     .batch_size(2)
    ///     .collate(|samples| Ok(samples.into_iter().sum::<i64>()))
    ///     .build()?;
    /// let sums: Vec<i64> = sums.iter()?.collect::<Result<_, _>>()?;
    /// assert_eq!(sums, [30, 70]);
    /// # anyhow::Ok(())
    /// ```
    #[must_use]
    // If a closure captures something, the compiler's error shows the next line.
    pub fn collate<B: Batch /* to capture, use `collate_with` */>(
        self,
        function: fn(Vec<K::Sample>) -> anyhow::Result<B>,
    ) -> Builder<K, CollateFn<K::Sample, B>, W> {
        self.with_collate(CollateWith(Function::new(function)))
    }

    /// Collates the samples of each batch with `function`, which also gets `params`. The parameters are sent
    /// to the workers with the dataset. Their type can be any serde type that bincode can encode.
    ///
    /// # Examples
    /// ```
    /// use loader_core::prelude::*;
    ///
    /// let pad = -1.0_f32; // known only at run time
    /// let lengths = TensorDataset::new(Tensor::from_slice(&[1u64, 3, 2, 5], [4])?)?;
    /// let loader = DataLoader::builder(lengths.map(|length, _| Ok(vec![1.0_f32; length[0] as usize])))
    ///     .batch_size(2)
    ///     .collate_with(pad, |pad: &f32, samples: Vec<Vec<f32>>| {
    ///         let longest = samples.iter().map(Vec::len).max().unwrap_or(0);
    ///         let mut batch = Tensor::<f32>::zeros([samples.len(), longest])?;
    ///         for (row, sample) in batch.as_mut_slice()?.chunks_exact_mut(longest).zip(&samples) {
    ///             row[..sample.len()].copy_from_slice(sample);
    ///             row[sample.len()..].fill(*pad);
    ///         }
    ///         Ok(batch)
    ///     })
    ///     .build()?;
    /// assert_eq!(loader.iter()?.next().unwrap()?.as_slice(), [1.0, -1.0, -1.0, 1.0, 1.0, 1.0]);
    /// # anyhow::Ok(())
    /// ```
    #[must_use]
    pub fn collate_with<P: Params, B: Batch>(
        self,
        params: P,
        function: fn(&P, Vec<K::Sample>) -> anyhow::Result<B>,
    ) -> Builder<K, CollateFnWith<P, K::Sample, B>, W> {
        self.with_collate(CollateWith(WithParams::new(params, function)))
    }

    fn with_collate<D>(self, collate: D) -> Builder<K, D, W> {
        let Self { kind, worker_init, settings, .. } = self;
        Builder { kind, collate, worker_init, settings }
    }

    /// Runs `function` once in each worker, after the dataset's `setup` and before its first sample. The
    /// function must not capture anything; see [`worker_init_with`](Self::worker_init_with) for a function
    /// with parameters. Without workers it is not called.
    ///
    /// Use it for what each process needs once: a `log` or `tracing` subscriber (one that `main` installs
    /// after `loader::init()` exists in the main process only), a number of threads, the seed of a
    /// library. What a worker prints appears on the main process's standard error, after the worker's number.
    ///
    /// # Examples
    /// ```
    /// use loader_core::prelude::*;
    ///
    /// let numbers = TensorDataset::new(Tensor::from_slice(&[10i64, 20, 30, 40], [4])?)?;
    /// let loader = DataLoader::builder(numbers).num_workers(2).worker_init(|worker| {
    ///     println!("worker {} of {} draws from seed {}", worker.id(), worker.num_workers(), worker.seed());
    ///     Ok(())
    /// });
    /// # anyhow::Ok(())
    /// ```
    #[must_use]
    // If a closure captures something, the compiler's error shows the next line.
    #[rustfmt::skip]
    pub fn worker_init( // to capture, use `worker_init_with`
        self,
        function: fn(&WorkerInfo) -> anyhow::Result<()>,
    ) -> Builder<K, C, WorkerInitFn> {
        self.with_worker_init(Function::new(function))
    }

    /// Runs `function` once in each worker, as [`worker_init`](Self::worker_init) does, with `params`. The
    /// parameters are sent to the workers with the dataset. Their type can be any serde type that bincode can
    /// encode.
    #[must_use]
    pub fn worker_init_with<P: Params>(
        self,
        params: P,
        function: fn(&P, &WorkerInfo) -> anyhow::Result<()>,
    ) -> Builder<K, C, WorkerInitFnWith<P>> {
        self.with_worker_init(WithParams::new(params, function))
    }

    fn with_worker_init<H>(self, worker_init: H) -> Builder<K, C, H> {
        let Self { kind, collate, settings, .. } = self;
        Builder { kind, collate, worker_init, settings }
    }
}

impl<K, C, W> fmt::Debug for Builder<K, C, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder").field("options", &self.settings.options).finish_non_exhaustive()
    }
}
