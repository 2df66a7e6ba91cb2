//! Putting a loader together. Every bad combination is an error of `build()`; none is a panic, none waits until `iter()`.

mod order;
mod settings;

use std::{fmt, path::PathBuf, sync::Arc, time::Duration};

use loader_ipc::{ZeroSized, channel, entry::Entry, handshake::Work, process, slots::SlotPool};

use crate::{
    collate::{Batch, Collate, CollateWith, DefaultCollate},
    context::WorkerInfo,
    dataset::Dataset,
    error::Error,
    fetch::{self, NoWorkerInit, OpenFn, WorkerInit, WorkerInitWith},
    iter::{Epochs, LocalSource},
    launch,
    loader::{DataLoader, Loading},
    options::{LoaderOptions, NumWorkers, Order},
    pool::{Launch, Program},
    sampler::{BatchSampler, Sampler},
};

use settings::Settings;

/// A loader in the making, from [`DataLoader::builder`]. The methods have the names and meanings of PyTorch's arguments.
///
/// `C` and `W` are the collation and the worker hook; [`collate`](Self::collate) and [`worker_init`](Self::worker_init) change
/// them.
pub struct Builder<D, C = DefaultCollate, W = NoWorkerInit> {
    dataset: D,
    collate: C,
    worker_init: W,
    settings: Settings,
}

impl<D: Dataset> Builder<D> {
    pub(crate) fn new(dataset: D) -> Self {
        Self { dataset, collate: DefaultCollate, worker_init: NoWorkerInit, settings: Settings::default() }
    }
}

impl<D: Dataset, C, W> Builder<D, C, W> {
    /// Samples per batch, at least 1; 1 by default. The last batch may be smaller, see [`drop_last`](Self::drop_last).
    #[must_use]
    pub fn batch_size(mut self, batch_size: usize) -> Self {
        self.settings.options.batch_size = Some(batch_size);
        self
    }

    /// A new random order in each epoch; off by default. Excludes a sampler of your own.
    #[must_use]
    pub fn shuffle(mut self, shuffle: bool) -> Self {
        self.settings.options.shuffle = Some(shuffle);
        self
    }

    /// The seed of order and augmentation; 0 by default. The same seed gives the same batches, whatever the number of workers.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.settings.options.seed = Some(seed);
        self
    }

    /// Whose random numbers say the order of the samples: this crate's by default, or PyTorch's, so that a run that is moved over
    /// sees the same batches. Augmentation is not part of it.
    #[must_use]
    pub fn order(mut self, order: Order) -> Self {
        self.settings.options.order = Some(order);
        self
    }

    /// Loads the share of process `rank`, from 0, where `world_size` processes train together: a
    /// [`DistributedSampler`](crate::sampler::DistributedSampler) with this loader's [`shuffle`](Self::shuffle), [`seed`](Self::seed)
    /// and [`drop_last`](Self::drop_last). Without the latter all processes get equally many samples, some of them twice, where the
    /// number of samples does not divide; with it, those that are too many are left out. Excludes a sampler of your own.
    #[must_use]
    pub fn distributed(mut self, rank: usize, world_size: usize) -> Self {
        self.settings.options.rank = Some(rank);
        self.settings.options.world_size = Some(world_size);
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

    /// Worker processes per iterator: a number, or [`NumWorkers::Auto`]. 0, the default, loads in this process.
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

    /// Longest wait for a batch, after which `next` returns [`Error::TimedOut`]; zero, the default, waits for ever (not for a
    /// worker that died, which is noticed at once). Needs workers.
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

    /// Sets every option that `options` has a value for.
    #[must_use]
    pub fn options(mut self, options: LoaderOptions) -> Self {
        self.settings.options = options.over(self.settings.options);
        self
    }

    /// A worker program other than this one: see `loader_worker::Registry`. It must know the dataset, by the name given with
    /// [`registered`](Self::registered).
    #[must_use]
    pub fn worker_program(mut self, path: impl Into<PathBuf>) -> Self {
        self.settings.worker_program = Some(path.into());
        self
    }

    /// The name under which a worker program other than this one has registered the dataset. It has no effect while workers are
    /// this same program.
    #[must_use]
    pub fn registered(mut self, name: impl Into<String>) -> Self {
        self.settings.registered = Some(name.into());
        self
    }

    /// Whether a SIGCHLD handler is installed while workers run (the default; it chains to yours). Without it workers' deaths
    /// are still noticed at once where the kernel has pidfds (Linux 5.3).
    #[must_use]
    pub fn handle_sigchld(mut self, handle_sigchld: bool) -> Self {
        self.settings.handle_sigchld = handle_sigchld;
        self
    }

    /// Collates samples with `function`, which runs in the workers and must not capture anything. Tensors made in it lie in
    /// shared memory from the start.
    #[must_use]
    pub fn collate<F, B>(self, function: F) -> Builder<D, CollateWith<F, B>, W>
    where
        F: Fn(Vec<D::Sample>) -> anyhow::Result<B> + Copy + Send + Sync + 'static,
        B: Batch,
    {
        let Self { dataset, worker_init, settings, .. } = self;
        Builder { dataset, collate: CollateWith::new(function), worker_init, settings }
    }

    /// Runs `function` once in each worker, after the dataset's `setup` and before its first sample. It must not capture
    /// anything. Not called without workers.
    #[must_use]
    pub fn worker_init<F>(self, function: F) -> Builder<D, C, WorkerInitWith<F>>
    where
        F: Fn(&WorkerInfo) -> anyhow::Result<()> + Copy + Send + Sync + 'static,
    {
        let Self { dataset, collate, settings, .. } = self;
        let worker_init = WorkerInitWith(ZeroSized::new(function));
        Builder { dataset, collate, worker_init, settings }
    }
}

impl<D, C, W> Builder<D, C, W>
where
    D: Dataset,
    C: Collate<D::Sample>,
    W: WorkerInit,
{
    /// Checks every option and makes the loader. No process is started yet.
    ///
    /// # Errors
    /// [`Error`]: a value that makes no sense, options that exclude each other, an empty dataset, a dataset that cannot be sent
    /// to workers, a forgotten `loader_worker::init()`, a worker program that is not there.
    pub fn build(mut self) -> Result<DataLoader<C::Batch>, Error> {
        if process::is_worker() {
            return Err(Error::LoaderInWorker);
        }
        let epochs = self.settings.check_options()?;
        let samples = self.dataset.len();
        if samples == 0 {
            return Err(Error::EmptyDataset);
        }
        let batch_sampler = self.settings.make_batch_sampler(samples)?;
        let seed = self.settings.options.seed.unwrap_or(0);
        let order = self.settings.options.order.unwrap_or_default();
        let loading = if epochs.workers == 0 {
            Loading::Local(Arc::new(LocalSource::new(self.dataset, self.collate, seed)))
        } else {
            let launch = self.make_launch(&epochs, seed)?;
            let slots = SlotPool::new(self.settings.shared_memory_limit());
            Loading::Workers { launch: Arc::new(launch), slots, epochs }
        };
        Ok(DataLoader::new(loading, batch_sampler, samples, seed, order))
    }

    fn make_launch(&mut self, epochs: &Epochs, seed: u64) -> Result<Launch, Error> {
        channel::warm_up().map_err(|source| Error::System { what: "making a channel", source })?;
        let program =
            Program::find(self.settings.worker_program.as_deref(), launch::init_ran(), epochs.workers)?;
        let work = match self.settings.registered.take() {
            Some(name) if !program.is_self() => Work::Registered { name, types: launch::types::<D, C, W>() },
            _ => Work::Entry(Entry::of(fetch::open::<D, C, W> as OpenFn)),
        };
        let (dataset, attached) = fetch::encode(&self.dataset, &self.collate, &self.worker_init)?;
        let workers = epochs.workers;
        Ok(Launch {
            program,
            workers,
            seed,
            work,
            dataset,
            attached,
            handle_sigchld: self.settings.handle_sigchld,
        })
    }
}

impl<D, C, W> fmt::Debug for Builder<D, C, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder").field("options", &self.settings.options).finish_non_exhaustive()
    }
}
