//! Putting a loader together. Every bad combination is an error of `build()`; none is a panic, none waits until `iter()`.

use std::{fmt, path::PathBuf, sync::Arc, time::Duration};

use loader_ipc::{ZeroSized, entry::Entry, handshake::Work, process, slots::SlotPool};

use crate::{
    collate::{Batch, Collate, CollateWith, DefaultCollate},
    context::WorkerInfo,
    dataset::Dataset,
    error::Error,
    fetch::{self, NoWorkerInit, OpenFn, WorkerInit, WorkerInitWith},
    iter::{Epochs, LocalSource},
    launch,
    loader::{DataLoader, Loading},
    options::{LoaderOptions, NumWorkers},
    pool::{Launch, Program},
    sampler::{BatchSampler, FixedBatches, RandomSampler, Sampler, SequentialSampler},
};

/// More workers than any machine has processors: a slip of the finger.
const MOST_WORKERS: usize = 4096;

/// A loader in the making, from [`DataLoader::builder`]. The methods have the names and meanings of PyTorch's arguments.
///
/// `C` and `W` are the collation and the worker hook; [`collate`](Self::collate) and [`worker_init`](Self::worker_init) change
/// them.
pub struct Builder<D, C = DefaultCollate, W = NoWorkerInit> {
    dataset: D,
    collate: C,
    worker_init: W,
    options: LoaderOptions,
    sampler: Option<Box<dyn Sampler>>,
    batch_sampler: Option<Box<dyn BatchSampler>>,
    worker_program: Option<PathBuf>,
    registered: Option<String>,
    handle_sigchld: bool,
}

impl<D: Dataset> Builder<D> {
    pub(crate) fn new(dataset: D) -> Self {
        Self {
            dataset,
            collate: DefaultCollate,
            worker_init: NoWorkerInit,
            options: LoaderOptions::default(),
            sampler: None,
            batch_sampler: None,
            worker_program: None,
            registered: None,
            handle_sigchld: true,
        }
    }
}

impl<D: Dataset, C, W> Builder<D, C, W> {
    /// Samples per batch, at least 1; 1 by default. The last batch may be smaller, see [`drop_last`](Self::drop_last).
    #[must_use]
    pub fn batch_size(mut self, batch_size: usize) -> Self {
        self.options.batch_size = Some(batch_size);
        self
    }

    /// A new random order in each epoch; off by default. Excludes a sampler of your own.
    #[must_use]
    pub fn shuffle(mut self, shuffle: bool) -> Self {
        self.options.shuffle = Some(shuffle);
        self
    }

    /// The seed of order and augmentation; 0 by default. The same seed gives the same batches, whatever the number of workers.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.options.seed = Some(seed);
        self
    }

    /// The order of the samples; in order by default. Excludes [`shuffle`](Self::shuffle).
    #[must_use]
    pub fn sampler(mut self, sampler: impl Sampler) -> Self {
        self.sampler = Some(Box::new(sampler));
        self
    }

    /// The batches themselves. Excludes [`batch_size`](Self::batch_size), [`shuffle`](Self::shuffle),
    /// [`sampler`](Self::sampler) and [`drop_last`](Self::drop_last).
    #[must_use]
    pub fn batch_sampler(mut self, batch_sampler: impl BatchSampler) -> Self {
        self.batch_sampler = Some(Box::new(batch_sampler));
        self
    }

    /// Worker processes per iterator: a number, or [`NumWorkers::Auto`]. 0, the default, loads in this process.
    #[must_use]
    pub fn num_workers(mut self, num_workers: impl Into<NumWorkers>) -> Self {
        self.options.num_workers = Some(num_workers.into());
        self
    }

    /// Batches on their way per worker, at least 1; 2 by default. Needs workers.
    #[must_use]
    pub fn prefetch_factor(mut self, prefetch_factor: usize) -> Self {
        self.options.prefetch_factor = Some(prefetch_factor);
        self
    }

    /// Leaves out a last batch that is not full; off by default.
    #[must_use]
    pub fn drop_last(mut self, drop_last: bool) -> Self {
        self.options.drop_last = Some(drop_last);
        self
    }

    /// Batches in order (the default), or as they arrive: faster when some samples take much longer than others, but the order
    /// then depends on timing.
    #[must_use]
    pub fn in_order(mut self, in_order: bool) -> Self {
        self.options.in_order = Some(in_order);
        self
    }

    /// Longest wait for a batch, after which `next` returns [`Error::TimedOut`]; zero, the default, waits for ever (not for a
    /// worker that died, which is noticed at once). Needs workers.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.options.timeout = Some(timeout.as_secs_f64());
        self
    }

    /// Most bytes of shared memory for batches, over all iterators of the loader; half of the machine's memory by default.
    #[must_use]
    pub fn shared_memory_limit(mut self, bytes: u64) -> Self {
        self.options.shared_memory_limit = Some(bytes);
        self
    }

    /// Sets every option that `options` has a value for.
    #[must_use]
    pub fn options(mut self, options: LoaderOptions) -> Self {
        self.options = options.over(self.options);
        self
    }

    /// A worker program other than this one: see `loader_worker::Registry`. It must know the dataset, by the name given with
    /// [`registered`](Self::registered).
    #[must_use]
    pub fn worker_program(mut self, path: impl Into<PathBuf>) -> Self {
        self.worker_program = Some(path.into());
        self
    }

    /// The name under which a worker program other than this one has registered the dataset. It has no effect while workers are
    /// this same program.
    #[must_use]
    pub fn registered(mut self, name: impl Into<String>) -> Self {
        self.registered = Some(name.into());
        self
    }

    /// Whether a SIGCHLD handler is installed while workers run (the default; it chains to yours). Without it workers' deaths
    /// are still noticed at once where the kernel has pidfds (Linux 5.3).
    #[must_use]
    pub fn handle_sigchld(mut self, handle_sigchld: bool) -> Self {
        self.handle_sigchld = handle_sigchld;
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
        let Self { dataset, worker_init, options, sampler, batch_sampler, .. } = self;
        let Self { worker_program, registered, handle_sigchld, .. } = self;
        Builder {
            dataset,
            collate: CollateWith::new(function),
            worker_init,
            options,
            sampler,
            batch_sampler,
            worker_program,
            registered,
            handle_sigchld,
        }
    }

    /// Runs `function` once in each worker, after the dataset's `setup` and before its first sample. It must not capture
    /// anything. Not called without workers.
    #[must_use]
    pub fn worker_init<F>(self, function: F) -> Builder<D, C, WorkerInitWith<F>>
    where
        F: Fn(&WorkerInfo) -> anyhow::Result<()> + Copy + Send + Sync + 'static,
    {
        let Self { dataset, collate, options, sampler, batch_sampler, .. } = self;
        let Self { worker_program, registered, handle_sigchld, .. } = self;
        Builder {
            dataset,
            collate,
            worker_init: WorkerInitWith(ZeroSized::new(function)),
            options,
            sampler,
            batch_sampler,
            worker_program,
            registered,
            handle_sigchld,
        }
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
        let epochs = self.check_options()?;
        let samples = self.dataset.len();
        if samples == 0 {
            return Err(Error::EmptyDataset);
        }
        let batch_sampler = self.make_batch_sampler(samples)?;
        let seed = self.options.seed.unwrap_or(0);
        let loading = if epochs.workers == 0 {
            Loading::Local(Arc::new(LocalSource::new(self.dataset, self.collate, seed)))
        } else {
            let launch = self.make_launch(&epochs, seed)?;
            let slots = SlotPool::new(self.options.shared_memory_limit.unwrap_or_else(default_memory_limit));
            Loading::Workers { launch: Arc::new(launch), slots, epochs }
        };
        Ok(DataLoader::new(loading, batch_sampler, samples, seed))
    }

    fn check_options(&self) -> Result<Epochs, Error> {
        let options = &self.options;
        let invalid =
            |option, problem: &str| Err(Error::InvalidOption { option, problem: problem.to_owned() });
        if options.batch_size == Some(0) {
            return invalid("batch_size", "0 samples do not make a batch; use 1 or more");
        }
        let workers = options.num_workers.unwrap_or_default().resolve();
        if workers > MOST_WORKERS {
            return invalid("num_workers", &format!("{workers} is more than {MOST_WORKERS}"));
        }
        if options.prefetch_factor == Some(0) {
            return invalid("prefetch_factor", "a worker needs at least one batch to work on; use 1 or more");
        }
        if workers == 0 && options.prefetch_factor.is_some() {
            return invalid(
                "prefetch_factor",
                "without workers nothing is prefetched; set num_workers, or leave it out",
            );
        }
        let timeout = match options.timeout.unwrap_or(0.0) {
            0.0 => None,
            seconds => match Duration::try_from_secs_f64(seconds) {
                Ok(timeout) => Some(timeout),
                Err(_) => {
                    return invalid(
                        "timeout",
                        &format!("{seconds} is not a number of seconds; use 0 or more"),
                    );
                }
            },
        };
        if workers == 0 && timeout.is_some() {
            return invalid(
                "timeout",
                "without workers there is nobody to wait for; set num_workers, or leave it out",
            );
        }
        if options.shared_memory_limit == Some(0) {
            return invalid("shared_memory_limit", "batches need at least some bytes");
        }
        Ok(Epochs {
            workers,
            prefetch_factor: options.prefetch_factor.unwrap_or(2),
            in_order: options.in_order.unwrap_or(true),
            timeout,
        })
    }

    fn make_batch_sampler(&mut self, samples: usize) -> Result<Box<dyn BatchSampler>, Error> {
        let options = &self.options;
        let shuffle = options.shuffle.unwrap_or(false);
        let conflict = |first, second, reason| Err(Error::ConflictingOptions { first, second, reason });
        if let Some(batch_sampler) = self.batch_sampler.take() {
            const REASON: &str = "a batch sampler says which samples are in which batch";
            let others = [
                ("batch_size", options.batch_size.is_some_and(|size| size != 1)),
                ("shuffle", shuffle),
                ("sampler", self.sampler.is_some()),
                ("drop_last", options.drop_last.unwrap_or(false)),
            ];
            if let Some((other, _)) = others.into_iter().find(|(_, given)| *given) {
                return conflict("batch_sampler", other, REASON);
            }
            return Ok(batch_sampler);
        }
        let sampler: Box<dyn Sampler> = match self.sampler.take() {
            Some(_) if shuffle => {
                return conflict(
                    "sampler",
                    "shuffle",
                    "a sampler says the order; shuffle in it, or leave it out",
                );
            }
            Some(sampler) => sampler,
            None if shuffle => Box::new(RandomSampler::new(samples)),
            None => Box::new(SequentialSampler::new(samples)),
        };
        let batch_size = options.batch_size.unwrap_or(1);
        Ok(Box::new(FixedBatches::new(sampler, batch_size, options.drop_last.unwrap_or(false))))
    }

    fn make_launch(&mut self, epochs: &Epochs, seed: u64) -> Result<Launch, Error> {
        let program = Program::find(self.worker_program.as_deref(), launch::init_ran(), epochs.workers)?;
        let work = match self.registered.take() {
            Some(name) if !program.is_self() => Work::Registered { name, types: launch::types::<D, C, W>() },
            _ => Work::Entry(Entry::of(fetch::open::<D, C, W> as OpenFn)),
        };
        let (dataset, attached) = fetch::encode(&self.dataset, &self.collate, &self.worker_init)?;
        let workers = epochs.workers;
        Ok(Launch { program, workers, seed, work, dataset, attached, handle_sigchld: self.handle_sigchld })
    }
}

/// Half of the machine's memory, as for a tmpfs.
fn default_memory_limit() -> u64 {
    const UNKNOWN: u64 = 1 << 32;
    let Ok(info) = std::fs::read_to_string("/proc/meminfo") else { return UNKNOWN };
    let total = info.lines().find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix("kB"));
    total.and_then(|kib| kib.trim().parse::<u64>().ok()).map_or(UNKNOWN, |kib| kib * 1024 / 2)
}

impl<D, C, W> fmt::Debug for Builder<D, C, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder").field("options", &self.options).finish_non_exhaustive()
    }
}
