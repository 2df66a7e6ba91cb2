//! Putting a loader together. Every bad combination is an error of `build()`; none is a panic, none waits until `iter()`.

mod build;
mod order;
mod settings;
mod unbatched;
mod worker_program;

use std::{fmt, time::Duration};

use loader_ipc::function::Function;

use crate::{
    collate::{Batch, CollateWith, DefaultCollate},
    context::WorkerInfo,
    dataset::{Dataset, IterableDataset, SnapshotDataset},
    fetch::{Cut, DatasetKind, Iterable, MapStyle, NoWorkerInit, Plain, Snapshots},
    function::{CollateFn, CollateFnWith, Params, WithParams, WorkerInitFn, WorkerInitFnWith},
    options::{LoaderOptions, NumWorkers, OnBadSample, OnWorkerDeath, Order},
    sampler::{BatchSampler, Sampler},
    warning::{Warn, Warning},
};

use settings::Settings;

pub use worker_program::WorkerProgram;

/// A loader in the making, from [`DataLoader::builder`](crate::DataLoader::builder) or
/// [`DataLoader::stream`](crate::DataLoader::stream). The methods have the names and meanings of PyTorch's
/// arguments.
///
/// `K` is the dataset and its kind, `C` and `W` are the collation and the worker hook; [`collate`](Self::collate) and
/// [`worker_init`](Self::worker_init) change them.
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
        Self::new(MapStyle { dataset, on_bad_sample: OnBadSample::Error, draws_from_all: false })
    }
}

impl<D: IterableDataset> Builder<Iterable<Plain<D>>> {
    pub(crate) fn iterable(dataset: D) -> Self {
        let dataset = Plain(dataset);
        Self::new(Iterable {
            dataset,
            cut: Cut::default(),
            snapshot_every: 1,
            on_bad_sample: OnBadSample::Error,
        })
    }
}

/// What only a map-style dataset has.
impl<D: Dataset, C, W> Builder<MapStyle<D>, C, W> {
    /// A new random order in each epoch; off by default. Excludes a sampler of your own.
    #[must_use]
    pub fn shuffle(mut self, shuffle: bool) -> Self {
        self.settings.options.shuffle = Some(shuffle);
        self
    }

    /// Whose random numbers say the order of the samples: this crate's by default, or PyTorch's, so that a run that is moved over
    /// sees the same batches. Augmentation is not part of it.
    #[must_use]
    pub fn order(mut self, order: Order) -> Self {
        self.settings.options.order = Some(order);
        self
    }

    /// The order of the samples; in order by default. Excludes [`shuffle`](Self::shuffle) and [`distributed`](Self::distributed).
    #[must_use]
    pub fn sampler(mut self, sampler: impl Sampler) -> Self {
        self.settings.sampler = Some(Box::new(sampler));
        self
    }

    /// The batches themselves. Excludes [`batch_size`](Self::batch_size), [`shuffle`](Self::shuffle),
    /// [`sampler`](Self::sampler), [`drop_last`](Self::drop_last) and [`distributed`](Self::distributed).
    #[must_use]
    pub fn batch_sampler(mut self, batch_sampler: impl BatchSampler) -> Self {
        self.settings.batch_sampler = Some(Box::new(batch_sampler));
        self
    }
}

/// What only an iterable dataset has.
impl<O, C, W> Builder<Iterable<O>, C, W> {
    /// Number of shards that this process reads the dataset in, at least 1; by default as many as workers, as in PyTorch. When it is said, the order
    /// of the batches does not depend on the number of workers; workers beyond the number of shards have nothing to do. A worker has all of
    /// its shards open at once.
    #[must_use]
    pub fn shards(mut self, shards: usize) -> Self {
        self.settings.options.shards = Some(shards);
        self
    }
}

impl<D: SnapshotDataset, C, W> Builder<Iterable<Plain<D>>, C, W> {
    /// Has the dataset write down its place behind each batch, so that [`resume`](crate::DataLoader::resume) finds it without reading what
    /// comes before.
    #[must_use]
    pub fn snapshots(self) -> Builder<Iterable<Snapshots<D>>, C, W> {
        let Self { kind, collate, worker_init, settings } = self;
        let Iterable { dataset: Plain(dataset), cut, snapshot_every, on_bad_sample } = kind;
        let kind = Iterable { dataset: Snapshots(dataset), cut, snapshot_every, on_bad_sample };
        Builder { kind, collate, worker_init, settings }
    }
}

impl<D, C, W> Builder<Iterable<Snapshots<D>>, C, W> {
    /// Batches of a shard from one snapshot to the next, at least 1; 1 by default. Where writing one is expensive: what lies between is
    /// read again when the loader is resumed.
    #[must_use]
    pub fn snapshot_every(mut self, batches: u64) -> Self {
        self.kind.snapshot_every = batches;
        self
    }
}

impl<K: DatasetKind, C, W> Builder<K, C, W> {
    /// Samples per batch, at least 1; 1 by default. The last batch may be smaller, see [`drop_last`](Self::drop_last).
    #[must_use]
    pub fn batch_size(mut self, batch_size: usize) -> Self {
        self.settings.options.batch_size = Some(batch_size);
        self
    }

    /// The seed of order and augmentation; 0 by default. The same seed gives the same batches, whatever the number of workers.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.settings.options.seed = Some(seed);
        self
    }

    /// Loads the share of process `rank`, from 0, where `world_size` processes train together.
    ///
    /// Of a map-style dataset this is a [`DistributedSampler`](crate::sampler::DistributedSampler) with this loader's `shuffle`,
    /// [`seed`](Self::seed) and [`drop_last`](Self::drop_last). Without the latter all processes get equally many samples, some of them
    /// twice, where the number of samples does not divide; with it, those that are too many are left out. Excludes a sampler of your
    /// own. Of an iterable dataset each process reads shards of its own, which may be of different lengths.
    #[must_use]
    pub fn distributed(mut self, rank: usize, world_size: usize) -> Self {
        self.settings.options.rank = Some(rank);
        self.settings.options.world_size = Some(world_size);
        self
    }

    /// Worker processes per iterator: a number, or [`NumWorkers::Auto`]. 0, the default, loads in this process.
    ///
    /// With any number of workers, 0 included, `build()` encodes the dataset and loads from the decoded copy: see
    /// [`TensorDataset`](crate::TensorDataset) for the memory that this needs.
    #[must_use]
    pub fn num_workers(mut self, num_workers: impl Into<NumWorkers>) -> Self {
        self.settings.options.num_workers = Some(num_workers.into());
        self
    }

    /// Batches on their way per worker, at least 1; 2 by default. Needs workers.
    #[must_use]
    pub fn prefetch_factor(mut self, prefetch_factor: usize) -> Self {
        self.settings.options.prefetch_factor = Some(prefetch_factor);
        self
    }

    /// Leaves out a last batch that is not full; off by default.
    #[must_use]
    pub fn drop_last(mut self, drop_last: bool) -> Self {
        self.settings.options.drop_last = Some(drop_last);
        self
    }

    /// Batches in order (the default), or as they arrive: faster when some samples take much longer than others, but the order
    /// then depends on timing.
    #[must_use]
    pub fn in_order(mut self, in_order: bool) -> Self {
        self.settings.options.in_order = Some(in_order);
        self
    }

    /// Longest wait for a batch, after which `next` returns [`Error::TimedOut`](crate::Error::TimedOut);
    /// zero, the default, waits for ever (not for a worker that died, which is noticed at once). `next` can
    /// be called again after it, and then waits again. Ten such waits in a row end the iterator if they took
    /// at least a minute together and the awaited worker made no progress. Needs workers.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.settings.options.timeout = Some(timeout.as_secs_f64());
        self
    }

    /// Most bytes of shared memory for batches, over all iterators of the loader, at least 65,536; half of the memory that the process
    /// may use (the machine's or the control group's) by default.
    #[must_use]
    pub fn shared_memory_limit(mut self, bytes: u64) -> Self {
        self.settings.options.shared_memory_limit = Some(bytes);
        self
    }

    /// What happens when a worker's process ends while it has work; by default another one takes its place,
    /// and the batches are those of an undisturbed run. A batch is given up, with an
    /// [`Error::WorkerExited`](crate::Error::WorkerExited) in its place, when two workers have crashed on it,
    /// when three have ended for lack of memory or were killed because they made no progress, when 32 workers
    /// in a row were killed in the same sample of it, or when 100 workers have died on it; the epoch goes on.
    /// Kills from outside that hit workers at random lose no batch.
    ///
    /// While the program waits, main also kills and replaces a worker that has had work and could not go on
    /// for 10 seconds (SIGSTOP or a debugger stopped it, or its main thread has ended), except with
    /// [`OnWorkerDeath::Fail`].
    #[must_use]
    pub fn on_worker_death(mut self, on_worker_death: OnWorkerDeath) -> Self {
        self.settings.options.on_worker_death = Some(on_worker_death);
        self
    }

    /// Max number of deaths of a worker in a row outside of batches (while it starts, opens the dataset or
    /// waits) after which it is started again; 10 by default. One more death ends the iterator with
    /// [`Error::WorkerExited`](crate::Error::WorkerExited). The count starts again from zero when the worker
    /// finishes a batch. A death on a batch counts for that batch; see
    /// [`on_worker_death`](Self::on_worker_death).
    #[must_use]
    pub fn max_worker_deaths(mut self, deaths: u32) -> Self {
        self.settings.options.max_worker_deaths = Some(deaths);
        self
    }

    /// What happens with a sample that cannot be loaded (it returns an error or panics, takes longer than
    /// [`sample_timeout`](Self::sample_timeout), or ends its worker again and again): its batch fails, by default, or it is skipped or
    /// replaced. [`EpochReport::bad_samples`](crate::EpochReport::bad_samples) lists what was skipped or replaced, and a
    /// [`Warning::BadSample`] tells of each.
    #[must_use]
    pub fn on_bad_sample(mut self, on_bad_sample: OnBadSample) -> Self {
        self.settings.options.on_bad_sample = Some(on_bad_sample);
        self
    }

    /// How many samples may be skipped or replaced in an epoch; 10 by default. One more ends the iterator with
    /// [`Error::TooManyBadSamples`](crate::Error::TooManyBadSamples).
    #[must_use]
    pub fn max_bad_samples(mut self, samples: u64) -> Self {
        self.settings.options.max_bad_samples = Some(samples);
        self
    }

    /// Longest time for one sample, after which it counts as bad and its worker is replaced; zero, the default, is none. Noticed while
    /// the program waits for a batch. Where a dataset has a `get_many`, it is the time for that. Needs workers.
    ///
    /// With it, a worker that has work and does not move outside of samples, as in collation, is replaced too, after that time or 5
    /// seconds, whichever is longer. This counts as a death ([`max_worker_deaths`](Self::max_worker_deaths)). The opening of the dataset
    /// may take as long as it needs.
    #[must_use]
    pub fn sample_timeout(mut self, timeout: Duration) -> Self {
        self.settings.options.sample_timeout = Some(timeout.as_secs_f64());
        self
    }

    /// Most bytes of its own that a worker may have in memory; none by default. A worker looks after its batches, and one that has more
    /// ends between two of them, so that another takes its place. Twice as much is a hard limit on what it allocates (`RLIMIT_DATA`).
    /// Shared memory does not count. Needs workers.
    #[must_use]
    pub fn worker_memory_limit(mut self, bytes: u64) -> Self {
        self.settings.options.worker_memory_limit = Some(bytes);
        self
    }

    /// Gives a batch that is late (the program has waited for it four times as long as a batch takes, and 20 ms) to a second worker too,
    /// if one has nothing to do; off by default. The first result is taken; order and content are the same. Of map-style datasets; needs
    /// workers, and shared memory for one more batch.
    #[must_use]
    pub fn hedge(mut self, hedge: bool) -> Self {
        self.settings.options.hedge = Some(hedge);
        self
    }

    /// Sets every option that `options` has a value for.
    #[must_use]
    pub fn options(mut self, options: LoaderOptions) -> Self {
        self.settings.options = options.over(self.settings.options);
        self
    }

    /// Starts workers as `program` instead of starting this program again: a path, or a [`WorkerProgram`]
    /// with arguments. Needed where the loader does not run in a program of its own, for example in an
    /// extension of an interpreter.
    ///
    /// A program that has loaded the same build of the same code (this executable, or the same shared library in another one) serves any
    /// dataset. Any other one must know the dataset by the name given with [`registered`](Self::registered): see
    /// `loader_worker::Registry`.
    #[must_use]
    pub fn worker_program(mut self, program: impl Into<WorkerProgram>) -> Self {
        self.settings.worker_program = Some(program.into());
        self
    }

    /// The name under which a worker program other than this one has registered the dataset. It has no effect while workers are
    /// this same program, started again because neither `worker_program` nor `LOADER_WORKER` names one.
    ///
    /// Only data can be sent to a registered dataset, no functions: `build()` refuses one with [`map`](crate::Dataset::map),
    /// [`collate`](Self::collate) or [`worker_init`](Self::worker_init). Write a type for the composed dataset and implement
    /// [`Dataset`] for it; both programs use that type.
    #[must_use]
    pub fn registered(mut self, name: impl Into<String>) -> Self {
        self.settings.registered = Some(name.into());
        self
    }

    /// Keeps the workers, with their copies of the dataset, from one epoch to the next; off by default. Needs workers.
    ///
    /// An iterator that is dropped in mid-epoch leaves its workers too. `setup` and `worker_init` run once, not again for each epoch. Of
    /// several iterators that live at once, the second starts workers of its own.
    #[must_use]
    pub fn persistent_workers(mut self, persistent_workers: bool) -> Self {
        self.settings.options.persistent_workers = Some(persistent_workers);
        self
    }

    /// Loads batches into page-locked memory, from which a device copies by itself while the program goes on; off by default.
    ///
    /// Shared memory is registered with the CUDA driver where it lies, once, when it is mapped: batches from workers are page-locked
    /// without a copy or a thread. Without workers it is the memory that collation takes for its tensors.
    /// [`Tensor::is_pinned`](crate::Tensor::is_pinned) tells. Keep a batch until the device has copied it: memory that is given back
    /// is written again.
    ///
    /// It needs the feature `cuda`, NVIDIA's driver and a device. `build()` opens the driver, for the device whose context is current
    /// on the calling thread or in use. Without them there is a [`Warning::NotPinned`], and memory is ordinary.
    #[must_use]
    pub fn pin_memory(mut self, pin_memory: bool) -> Self {
        self.settings.options.pin_memory = Some(pin_memory);
        self
    }

    /// How long `next` waits for a batch before a [`Warning::LongWait`] says for which worker, and what it is doing; 30 seconds by
    /// default, zero for never. The wait goes on: see [`timeout`](Self::timeout) for one that ends.
    #[must_use]
    pub fn warn_after(mut self, patience: Duration) -> Self {
        self.settings.options.warn_after = Some(patience.as_secs_f64());
        self
    }

    /// Calls `function` with what is probably a mistake and no error; by default it is printed to standard error.
    #[must_use]
    pub fn on_warning(mut self, function: impl Fn(&Warning) + Send + Sync + 'static) -> Self {
        self.settings.warn = Warn::with(function);
        self
    }

    /// Whether a SIGCHLD handler is installed while workers run (the default; it chains to yours). Without it workers' deaths
    /// are still noticed at once where the kernel has pidfds (Linux 5.3).
    #[must_use]
    pub fn handle_sigchld(mut self, handle_sigchld: bool) -> Self {
        self.settings.handle_sigchld = handle_sigchld;
        self
    }

    /// Collates samples with `function`, which runs in the workers and captures nothing; see
    /// [`collate_with`](Self::collate_with) for one that needs parameters. Tensors made in it lie in shared memory from the start.
    #[must_use]
    // The compiler shows the next line where a closure captures something.
    pub fn collate<B: Batch /* to capture, use `collate_with` */>(
        self,
        function: fn(Vec<K::Sample>) -> anyhow::Result<B>,
    ) -> Builder<K, CollateFn<K::Sample, B>, W> {
        self.with_collate(CollateWith(Function::new(function)))
    }

    /// Collates samples with `function` and `params`. The parameters are sent to the workers with the
    /// dataset; they can be of any serde type that bincode can encode.
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

    /// Runs `function` once in each worker, after the dataset's `setup` and before its first sample. It captures nothing; see
    /// [`worker_init_with`](Self::worker_init_with) for one that needs parameters. Not called without workers.
    ///
    /// Use it for what each process needs once: a `log` or `tracing` subscriber (one that `main` installs
    /// after `loader_worker::init()` exists in the main process only), a number of threads, the seed of a
    /// library. The main process writes what a worker prints to its own standard error, after the worker's
    /// number.
    #[must_use]
    // The compiler shows the next line where a closure captures something.
    #[rustfmt::skip]
    pub fn worker_init( // to capture, use `worker_init_with`
        self,
        function: fn(&WorkerInfo) -> anyhow::Result<()>,
    ) -> Builder<K, C, WorkerInitFn> {
        self.with_worker_init(Function::new(function))
    }

    /// Runs `function` with `params` once in each worker, as [`worker_init`](Self::worker_init). The
    /// parameters are sent to the workers with the dataset; they can be of any serde type that bincode can
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
