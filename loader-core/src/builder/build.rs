//! `build()`: checks the builder's options and makes the loader.

use std::{iter, sync::Arc};

use loader_ipc::{
    attach::Attached,
    entry::{AnyFunction, Entries},
    handshake::DatasetCode,
    heap::HeapPool,
    memory::SealedMemory,
    open_closed_streams, process, queue,
    schema::Schema,
    slots::SlotPool,
};
use loader_pinning::Pinner;

use super::{
    Builder, binding,
    round_trip::{self, RoundTrip},
    settings::Settings,
};
use crate::{
    data::{
        collate::{Batch, Collate, Stack},
        dataset::Dataset,
        fetch::{self, DatasetKind, Iterable, MapStyle, OpenShard, OpenSignature, ShardLayout},
        worker_init::WorkerInit,
    },
    engine::{
        coordinator::WorkerOptions,
        iter::{IdleTeam, IterOptions, MapSource, SharedTuner, StreamSource},
        pinning,
        pool::{Launch, Program},
        tuner::Tuner,
    },
    error::Error,
    launch::{affinity::WorkerCpus, init, ranks},
    loader::{Content, DataLoader, Loading},
    options::{NumWorkers, OnBadSample, Order, default},
    report::{observers::Observers, tracing_events, warning::Warning},
    state::{Batching, Pipeline, SharedOrder},
};

/// Maximum number of batches that a shard may load again when it changes its worker within an epoch.
const MAX_LOADED_AGAIN: u64 = 4;

// The bounds are on the methods, and `B` is `C::Batch`: if a trait is missing, the compiler names it instead
// of reporting that there is no method `build`.
impl<D: Dataset, C, W> Builder<MapStyle<D>, C, W> {
    /// Checks every option and makes the loader. It starts no process; [`DataLoader::iter`] starts the
    /// workers.
    ///
    /// # Errors
    /// - [`Error::InvalidOption`], [`Error::ConflictingOptions`]: an option has an invalid value, or two
    ///   options exclude each other.
    /// - [`Error::RankUnknown`]: the variables of the launcher do not tell the rank.
    /// - [`Error::CpuNotAllowed`]: `worker_affinity` names a CPU that this process may not use.
    /// - [`Error::EmptyDataset`]: the dataset has no samples.
    /// - [`Error::DatasetNotEncodable`], [`Error::FunctionNotSendable`]: the dataset, or a function of the
    ///   loader, cannot be sent to workers.
    /// - [`Error::InitNotCalled`], [`Error::InitOutsideProgram`]: `num_workers` is not 0, and
    ///   `loader::init()` was not called or was called from a shared library.
    /// - [`Error::WorkerProgramMissing`]: the worker program does not exist.
    /// - [`Error::LoaderInWorker`]: this process is a worker.
    /// - [`Error::System`]: the operating system refused a resource, such as shared memory.
    pub fn build<B: Batch>(mut self) -> Result<DataLoader<B>, Error>
    where
        C: Collate<D::Sample, Batch = B>,
        W: WorkerInit,
    {
        let (epochs, cpus) = self.check()?;
        let samples = self.kind.dataset.len();
        self.kind.draws_from_all = self.settings.loads_all();
        // Options that exclude each other are reported before an empty dataset.
        let sharing = self.settings.sharing(samples);
        let sampler = self.settings.make_batch_sampler(samples)?;
        let content = Content::Batches { sampler, sharing: sharing?, samples };
        if samples == 0 {
            return Err(Error::EmptyDataset);
        }
        self.assemble((epochs, cpus), content, true, |kind, collate, seed, memory| {
            Loading::Batches(Arc::new(MapSource::new(kind, collate, seed, memory)))
        })
    }
}

impl<O: OpenShard, C, W> Builder<Iterable<O>, C, W> {
    /// Checks every option and makes the loader. It starts no process; [`DataLoader::iter`] starts the
    /// workers.
    ///
    /// # Errors
    /// The errors of a map-style dataset's [`build`](Builder::build), except [`Error::EmptyDataset`].
    /// [`Error::InvalidOption`] also if the options set `shuffle` or [`OnBadSample::Replace`].
    pub fn build<B: Batch>(mut self) -> Result<DataLoader<B>, Error>
    where
        C: Collate<O::Sample, Batch = B>,
        W: WorkerInit,
    {
        let (mut epochs, cpus) = self.check()?;
        let shards = self.settings.count_shards(epochs.max_workers)?;
        if let Some(NumWorkers::Auto(auto)) = self.settings.options.num_workers {
            // More workers than shards have nothing to do.
            (epochs.workers, epochs.max_workers) =
                (epochs.workers.min(shards), epochs.max_workers.min(shards));
            if self.settings.options.shards.is_none() && auto.max.is_none() {
                if self.settings.options.world_size.is_some_and(|ranks| ranks > 1) {
                    const PROBLEM: &str = "several ranks that read an iterable dataset with num_workers = \"auto\" \
                                           need it: otherwise each rank would take the number of shards from its \
                                           own CPUs, and ranks with different numbers would read some data twice \
                                           and some never; set shards, or max of num_workers, to the same number on \
                                           all ranks";
                    return Err(Error::invalid_option("shards", PROBLEM));
                }
                self.settings.warn.warn(&Warning::OrderDependsOnCpus { shards, cpus: cpus.count() });
            }
        }
        if self.kind.snapshot_every == 0 {
            const PROBLEM: &str = "0 is too few; use 1 for a snapshot after every batch, or more";
            return Err(Error::invalid_option("snapshot_every", PROBLEM));
        }
        let options = &self.settings.options;
        let batch_size = options.batch_size.unwrap_or_else(default::batch_size);
        let drop_last = options.drop_last.unwrap_or_else(default::drop_last);
        if options.on_bad_sample == Some(OnBadSample::Replace) {
            const PROBLEM: &str =
                "samples of an iterable dataset have no index, so they cannot be replaced; use \"skip\"";
            return Err(Error::invalid_option("on_bad_sample", PROBLEM));
        }
        let (first_shard, all_shards) = options.first_and_all_shards(shards)?;
        // In a worker, the ranks may be the workers of a loader, which need not take equally many steps.
        if all_shards > shards
            && options.rank.unwrap_or(0) == 0
            && options.steps_per_epoch.is_none()
            && !process::is_worker()
        {
            self.settings.warn.warn(&Warning::StepsMayDiffer { shares: all_shards / shards });
        }
        self.kind.layout = ShardLayout { shards, first_shard, all_shards, batch_size, drop_last };
        let content = Content::Shards(self.kind.layout);
        // A shard that changes its worker loads again what follows its last snapshot.
        let is_cheap = O::SNAPSHOTS && self.kind.snapshot_every <= MAX_LOADED_AGAIN;
        self.assemble((epochs, cpus), content, is_cheap, |iterable, collate, seed, memory| {
            Loading::Shards(Arc::new(StreamSource::new(iterable, collate, seed, memory)))
        })
    }
}

impl<K, C, W> Builder<K, C, W>
where
    K: DatasetKind,
    C: Collate<K::Sample>,
    W: WorkerInit,
{
    /// Checks the options that both kinds of datasets have. Returns those of the workers, and their CPUs.
    fn check(&mut self) -> Result<(WorkerOptions, WorkerCpus), Error> {
        let has_workers = self.settings.options.num_workers.unwrap_or_else(default::num_workers);
        let is_nested = self.settings.may_be_nested && has_workers == NumWorkers::Fixed(0);
        if process::is_worker() && !is_nested {
            return Err(Error::LoaderInWorker);
        }
        let variables = ranks::environment();
        self.settings.local = self.settings.options.local_ranks(&variables);
        let cpus = self.settings.worker_cpus(&variables);
        let epochs = self.settings.check_options(cpus.as_ref().map_or(1, WorkerCpus::count))?;
        let cpus = cpus?;
        if C::UNBATCHED {
            self.settings.check_unbatched()?;
        } else if self.settings.fetch_options().digest && !C::HASHES_SAMPLES {
            const PROBLEM: &str = "the loader cannot hash samples that a function collates; call `digest_with` after \
                                   `collate`, or leave digest out";
            return Err(Error::invalid_option("digest", PROBLEM));
        }
        let launched = self.settings.take_rank(&variables)?;
        self.settings.launched.clone_from(&launched);
        let bound = launched.filter(|_| cpus.are_inherited());
        if let Some(bound) = bound.and_then(|launched| binding::warning(&launched, epochs.workers)) {
            self.settings.warn.warn(&bound);
        } else if epochs.workers > cpus.count() && epochs.workers == epochs.max_workers {
            // A loader that finds the number of workers only tries more of them than CPUs if it predicts a
            // gain.
            let (workers, cpus, processes) = (epochs.workers, cpus.count(), cpus.processes());
            self.settings.warn.warn(&Warning::MoreWorkersThanCpus { workers, cpus, processes });
        }
        if let Some(undivided) = self.settings.undivided() {
            self.settings.warn.warn(&undivided);
        }
        Ok((epochs, cpus))
    }

    /// Makes the loader after the checks. If `tunes_within_epochs` is false, the loader changes its number of
    /// workers only between two epochs, because a shard that changes its worker is read from its beginning.
    /// `in_process` makes the source of batches of a loader without workers.
    fn assemble(
        mut self,
        (epochs, cpus): (WorkerOptions, WorkerCpus),
        content: Content,
        tunes_within_epochs: bool,
        in_process: impl FnOnce(K, C, u64, HeapPool) -> Loading<C::Batch>,
    ) -> Result<DataLoader<C::Batch>, Error> {
        let mut settings = self.settings;
        let observers = settings
            .observers
            .get_or_make(|| Observers::new(&settings.options, settings.launched.as_ref()))?;
        if let Some(tracer) = &observers.tracer {
            settings.warn = tracer.watch(settings.warn);
        }
        settings.warn = observers.stats.watch(tracing_events::watch(settings.warn));
        let parts = match &content {
            Content::Batches { .. } => epochs.max_workers.max(1),
            Content::Shards(layout) => layout.shards,
        };
        let options = epochs.fetch;
        let max_bad_samples = settings.options.max_bad_samples.unwrap_or_else(default::max_bad_samples);
        let steps = settings.options.steps_per_epoch;
        let iteration = IterOptions {
            max_bad_samples,
            allows_bad_samples: options.on_bad_sample != OnBadSample::Error,
            steps,
            digest: options.digest,
            cpus: cpus.count(),
        };
        self.kind.set_options(options, settings.memory()?.datasets / parts as u64);
        let pinner =
            pinning::open(settings.options.pin_memory.unwrap_or_else(default::pin_memory), &settings.warn);
        let order = settings.options.order.unwrap_or_else(default::order);
        let pipeline = content.pipeline(self.kind.fingerprint(), order);
        let origin = settings.origin(self.kind.samples(), pipeline);
        let program = match epochs.max_workers {
            0 => None,
            workers => Some(find_program(&settings, workers)?),
        };
        let encoded = round_trip::encode(self.kind, self.collate, self.worker_init)?;
        let loading = match program {
            None => {
                let (kind, collate, _worker_init) = encoded.decoded;
                in_process(kind, collate, origin.seed, HeapPool::pinned(pinner.clone()))
            }
            Some(program) => {
                let tuner = settings.tuner(&epochs, tunes_within_epochs, cpus.count());
                load_by_workers(&mut settings, (program, cpus), (epochs, tuner), encoded, pinner.clone())?
            }
        };
        let loader = DataLoader::new(loading, content, origin, settings.warn, pinner, iteration, observers);
        Ok(loader.with_fill(C::Stack::fill))
    }
}

impl Content {
    /// Returns what determines the samples of each batch, for states.
    fn pipeline(&self, dataset: String, order: Order) -> Pipeline {
        let (sampler, sharing) = match self {
            Self::Batches { sampler, sharing, .. } => (sampler, sharing),
            Self::Shards(layout) => return Pipeline::new(dataset, Batching::Shards(*layout), None),
        };
        let fingerprint = if order.is_torch() && sampler.torch_draws() > 0 {
            // In PyTorch's order, a sampler that shares the loader's generator gives other indices than the
            // same sampler with its own generator.
            format!("{} with the loader's generator", sampler.fingerprint())
        } else {
            sampler.fingerprint()
        };
        let shared = sharing.map(|sharing| SharedOrder {
            order: sharing.order.fingerprint(order).to_owned(),
            batch_size: sharing.batch_size as u64,
        });
        Pipeline::new(dataset, Batching::Sampler(fingerprint), shared)
    }
}

fn find_program(settings: &Settings, workers: usize) -> Result<Program, Error> {
    open_closed_streams().map_err(|source| Error::System { what: "opening the standard streams", source })?;
    queue::warm_up().map_err(|source| Error::System { what: "making a channel", source })?;
    Program::find(settings.worker_program.as_ref(), init::init(), workers)
}

fn load_by_workers<K, C, W>(
    settings: &mut Settings,
    (program, cpus): (Program, WorkerCpus),
    (epochs, tuner): (WorkerOptions, Option<Tuner>),
    encoded: RoundTrip<K, C, W>,
    pinner: Option<Pinner>,
) -> Result<Loading<C::Batch>, Error>
where
    K: DatasetKind,
    C: Collate<K::Sample>,
    W: WorkerInit,
{
    let RoundTrip { bytes, attached, decoded } = encoded;
    let Attached { memories, files, functions } = attached;
    let unsendable = |problem| Error::FunctionNotSendable { problem };
    let code = match settings.registered.take() {
        Some(name) if !program.is_self() => {
            if !functions.is_empty() {
                let problem = format!(
                    "the dataset registered as `{name}` is loaded by another program, which does not have \
                     this program's functions; write a type that does the same, implement `Dataset` (or \
                     `Sample`) for it, and use it in both programs"
                );
                return Err(unsendable(problem));
            }
            // The worker also computes it from a decoded copy.
            let schema = Schema::of(&decoded);
            DatasetCode::Registered { name, types: init::types::<K, C, W>(), schema }
        }
        _ => {
            let open = AnyFunction::new::<OpenSignature>(fetch::open::<K, C, W>);
            let all: Vec<_> = iter::once(open).chain(functions).collect();
            DatasetCode::Entries(Entries::of(&all).map_err(|error| unsendable(error.to_string()))?)
        }
    };
    drop(decoded);
    let dataset = SealedMemory::new(&bytes)
        .map_err(|source| Error::System { what: "allocating shared memory for the dataset", source })?;
    let launch = Launch {
        program: program.into_starter(),
        cpus,
        max_workers: epochs.max_workers,
        seed: settings.seed(),
        code,
        dataset,
        memories,
        files,
        handle_sigchld: settings.handle_sigchld,
        start_retries: epochs.max_worker_deaths,
        memory_limit: epochs.memory_limit,
        raises_oom_score: settings.options.raise_oom_score_adj.unwrap_or_else(default::raise_oom_score_adj),
        warn: settings.warn.clone(),
    };
    let slots = SlotPool::pinned(settings.memory()?.slots, pinner);
    let stay = settings.options.persistent_workers.unwrap_or_else(default::persistent_workers);
    let (launch, idle) = (Arc::new(launch), stay.then(IdleTeam::default));
    let (interrupt, tuner) = (settings.interrupt.clone(), tuner.map(SharedTuner::new));
    Ok(Loading::Workers { launch, slots, epochs, idle, interrupt, tuner })
}
