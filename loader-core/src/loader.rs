//! [`DataLoader`].

use std::{
    borrow::Cow,
    fmt,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use loader_ipc::slots::SlotPool;
use loader_pinning::Pinner;

use crate::{
    builder::Builder,
    data::{
        collate::Batch,
        dataset::{Dataset, IterableDataset},
        fetch::{Iterable, MapStyle, Plain, ShardLayout},
        sampler::{BatchSampler, Sharing, Taken, base_seed},
        torch::BASE_SEED_DRAWS,
    },
    engine::{
        coordinator::{Supply, WorkerOptions},
        interrupt::StartInterrupt,
        iter::{
            BatchSource, FillOf, IdleTeam, Inner, Iter, IterOptions, LocalBatches, LocalShards, ShardSource,
            SharedTuner, Team, WorkerIter,
        },
        plan::Plan,
        pool::Launch,
        shards::Shards,
        start_wait::StartWait,
    },
    error::{Error, exit::WorkerExit},
    report::{
        observers::Observers,
        stats::{LoaderStats, StatsReader},
        warning::{Warn, Warning},
    },
    state::{EpochEnd, Origin, Position, ResumedFrom, State, must_agree},
};

/// Loads batches of type `B`, epoch after epoch, like PyTorch's `DataLoader`.
///
/// [`builder`](DataLoader::builder) makes one for a map-style dataset, [`stream`](DataLoader::stream) one for
/// an iterable dataset. The type has no parameter for the dataset, the sampler or the collation, so it is
/// easy to store in a struct. It is `Send` and `Sync`. Several iterators of one loader may exist at once;
/// each has its own workers. The loader keeps shared memory from one epoch to the next.
///
/// See [`Dataset`] for an example.
pub struct DataLoader<B> {
    loading: Loading<B>,
    content: Content,
    origin: Origin,
    warn: Warn,
    pinner: Option<Pinner>,
    iteration: IterOptions,
    observers: Observers,
    fill: FillOf<B>,
    next_epoch: Mutex<NextEpoch>,
}

/// What the next call of [`DataLoader::iter`] begins with.
#[derive(Debug, Clone, Copy, Default)]
struct NextEpoch {
    epoch: u64,
    /// The merged state from which the run was resumed, if it was.
    resumed_from: Option<ResumedFrom>,
}

/// Where batches are loaded: in this process or in workers.
pub(crate) enum Loading<B> {
    Batches(Arc<dyn BatchSource<B>>),
    Shards(Arc<dyn ShardSource<B>>),
    Workers {
        launch: Arc<Launch>,
        slots: SlotPool,
        epochs: WorkerOptions,
        idle: Option<IdleTeam>,
        interrupt: Option<StartInterrupt>,
        tuner: Option<SharedTuner>,
    },
}

/// What an epoch consists of.
pub(crate) enum Content {
    /// Batches of a map-style dataset, which has `samples` samples. `sharing` is `None` with a sampler of the
    /// user's.
    Batches { sampler: Box<dyn BatchSampler>, sharing: Option<Sharing>, samples: usize },
    /// Shards of an iterable dataset.
    Shards(ShardLayout),
}

impl DataLoader<()> {
    /// Starts to configure a loader for a map-style dataset.
    pub fn builder<D: Dataset>(dataset: D) -> Builder<MapStyle<D>> {
        Builder::map_style(dataset)
    }

    /// Starts to configure a loader for an iterable dataset.
    pub fn stream<D: IterableDataset>(dataset: D) -> Builder<Iterable<Plain<D>>> {
        Builder::iterable(dataset)
    }
}

impl<B: Batch> DataLoader<B> {
    pub(crate) fn new(
        loading: Loading<B>,
        content: Content,
        origin: Origin,
        warn: Warn,
        pinner: Option<Pinner>,
        iteration: IterOptions,
        observers: Observers,
    ) -> Self {
        let (fill, next_epoch): (FillOf<B>, _) = (|_| None, Mutex::default());
        Self { loading, content, origin, warn, pinner, iteration, observers, fill, next_epoch }
    }

    /// Counts the tokens of the batches with `fill`.
    pub(crate) fn with_fill(self, fill: FillOf<B>) -> Self {
        Self { fill, ..self }
    }

    /// Starts the next epoch, and the workers if they do not run yet. The first call starts epoch 0. A call
    /// that fails does not count.
    ///
    /// # Errors
    /// - [`Error::WorkerNotStarted`]: a worker could not be started. No worker is left running.
    /// - [`Error::System`]: the operating system refused a resource.
    /// - [`Error::WorkerMisbehaved`]: a worker broke the protocol and may not be replaced.
    /// - [`Error::WorkerExited`]: a persistent worker died between two epochs, and may not be replaced. The next call
    ///   starts new workers.
    /// - [`Error::InvalidOption`]: the number of the epoch is so large that PyTorch's order would take hours
    ///   to compute.
    pub fn iter(&self) -> Result<Iter<B>, Error> {
        let number = {
            let mut next = self.next_epoch();
            let number = next.epoch;
            next.epoch = number.saturating_add(1);
            number
        };
        self.epoch(number).inspect_err(|_| {
            // The next call starts this epoch again, unless another thread has started a later one meanwhile.
            let mut next = self.next_epoch();
            if next.epoch == number.saturating_add(1) {
                next.epoch = number;
            }
        })
    }

    /// Starts epoch `number`, from 0. It does not change which epoch [`iter`](Self::iter) starts next.
    ///
    /// # Errors
    /// The errors of [`iter`](Self::iter).
    pub fn epoch(&self, number: u64) -> Result<Iter<B>, Error> {
        self.start(number, &Position::Start)
    }

    /// Returns the state at the beginning of the epoch that [`iter`](Self::iter) starts next. [`Iter::state`]
    /// returns the state within an epoch.
    pub fn state(&self) -> State {
        let NextEpoch { epoch, resumed_from } = *self.next_epoch();
        self.state_at_start(epoch, resumed_from)
    }

    /// Returns the state at the beginning of epoch `number`, from 0.
    ///
    /// # Examples
    /// ```
    /// use loader_core::prelude::*;
    ///
    /// let numbers = TensorDataset::new(Tensor::from_slice(&[10i64, 20, 30, 40], [4])?)?;
    /// let loader = DataLoader::builder(numbers).shuffle(true).build()?;
    /// let resumed: Vec<_> = loader.resume(&loader.state_at(3))?.collect::<Result<_, _>>()?;
    /// let begun: Vec<_> = loader.epoch(3)?.collect::<Result<_, _>>()?;
    /// assert_eq!(resumed, begun);
    /// # anyhow::Ok(())
    /// ```
    pub fn state_at(&self, number: u64) -> State {
        self.state_at_start(number, self.resumed_before(number))
    }

    /// Starts the rest of the epoch from which `state` was taken. The next call of [`iter`](Self::iter)
    /// starts the epoch after it. The batches are those that the original loader would have returned, with
    /// any number of workers; for an iterable dataset, [`shards`](Builder::shards) must be set if the number
    /// of workers differs.
    ///
    /// For a map-style dataset, and for an iterable dataset with a [snapshot](Builder::snapshots) after each
    /// batch, this loads no sample before the state. Any other iterable dataset reads each shard from its
    /// last snapshot or from its beginning, without collation, unless it implements
    /// [`iter_at`](IterableDataset::iter_at).
    ///
    /// From a [merged](State::merge) state, any number of ranks loads the rest of the epoch. Its batches are
    /// other ones than those of a run that was never stopped, and are numbered from 0 again.
    ///
    /// The iterator is always in the epoch of the state, even if nothing of it is left: from a state that was taken after
    /// the last batch, before `next` had returned `None`, it has no batches. Its report and digest are those of the
    /// epoch's end. One loop therefore serves a new run, which begins with [`state`](Self::state), and a resumed one.
    ///
    /// # Examples
    /// ```
    /// use loader_core::prelude::*;
    ///
    /// /// Trains for three epochs, from `state` on.
    /// fn train(loader: &DataLoader<Tensor<i64>>, mut state: State) -> anyhow::Result<Vec<i64>> {
    ///     let mut seen = Vec::new();
    ///     while state.epoch() < 3 {
    ///         let mut batches = loader.resume(&state)?;
    ///         while let Some(batch) = batches.next() {
    ///             seen.extend_from_slice(batch?.as_slice());
    ///             state = batches.state(); // to be saved with the model
    ///         }
    ///         state = batches.state();
    ///     }
    ///     Ok(seen)
    /// }
    ///
    /// let numbers = TensorDataset::new(Tensor::from_slice(&[10i64, 20, 30, 40], [4])?)?;
    /// let loader = DataLoader::builder(numbers).batch_size(3).shuffle(true).build()?;
    /// let start = loader.state();
    /// let mut first = loader.resume(&start)?;
    /// first.next().unwrap()?;
    /// let all = train(&loader, start)?;
    /// assert_eq!(train(&loader, first.state())?, all[3..]);
    /// # anyhow::Ok(())
    /// ```
    ///
    /// # Errors
    /// - [`Error::StateVersion`]: another version of this library wrote the state, in another format.
    /// - [`Error::StateMismatch`]: the loader was built differently from the one of the state, or the state has a
    ///   position that the epoch does not have.
    /// - [`Error::StateShards`]: the ranks do not have as many shards as a merged state.
    /// - The errors of [`iter`](Self::iter).
    pub fn resume(&self, state: &State) -> Result<Iter<B>, Error> {
        let state = &*self.of_this_rank(state)?;
        let mut iter = self.start(state.epoch(), state.position())?;
        *self.next_epoch() =
            NextEpoch { epoch: iter.epoch().saturating_add(1), resumed_from: state.resumed_from() };
        iter.continue_from(state);
        Ok(iter)
    }

    /// Checks a state, and returns this rank's part of it.
    fn of_this_rank<'a>(&self, state: &'a State) -> Result<Cow<'a, State>, Error> {
        if state.is_merged() {
            return Ok(Cow::Owned(state.of_rank(&self.origin)?));
        }
        state.check(&self.origin)?;
        Ok(Cow::Borrowed(state))
    }

    fn state_at_start(&self, epoch: u64, resumed_from: Option<ResumedFrom>) -> State {
        let end_before = EpochEnd::without_iterator(self.iteration.steps);
        State::start(&self.origin, epoch).with_end_before(end_before).with_resumed_from(resumed_from)
    }

    fn start(&self, number: u64, position: &Position) -> Result<Iter<B>, Error> {
        let started = Instant::now();
        self.check_epoch(number)?;
        let supply = self.supply(number, position)?;
        let inner = match (&self.loading, supply) {
            (Loading::Batches(source), Supply::Batches { plan, ahead, .. }) => {
                Inner::Batches(LocalBatches::new(Arc::clone(source), plan, ahead))
            }
            (Loading::Shards(source), Supply::Shards { shards, .. }) => {
                Inner::Shards(LocalShards::new(Arc::clone(source), shards))
            }
            (Loading::Workers { launch, slots, epochs, idle, interrupt, tuner }, supply) => {
                let mut wait =
                    StartWait::new(interrupt.as_ref(), epochs.warn_after, epochs.timeout, &self.warn);
                let rested = idle.as_ref().map_or(Ok(None), |idle| idle.take(number, epochs, &mut wait));
                let rested = match rested {
                    Err(Error::Interrupted) => return Err(Error::Interrupted),
                    Err(error @ Error::WorkerExited { exit: WorkerExit { cause: None, .. }, .. })
                        if epochs.max_worker_deaths == 0 =>
                    {
                        return Err(error);
                    }
                    Err(error) => {
                        self.warn.warn(&Warning::WorkersReplaced { problem: error.to_string() });
                        None
                    }
                    Ok(rested) => rested,
                };
                let rested =
                    rested.filter(|team| !tuner.as_ref().is_some_and(|tuner| tuner.needs_larger_team(team)));
                let trace = self.observers.tracer.as_ref().map(|tracer| tracer.begin_pass(number));
                let team = match rested {
                    Some(mut team) => {
                        team.begin_epoch(supply, slots, trace);
                        team
                    }
                    None => {
                        let workers = tuner.as_ref().map_or(epochs.workers, |tuner| tuner.setting().workers);
                        let pool = launch.start(workers, slots, self.base_seed(number), &mut wait)?;
                        let epochs = WorkerOptions { workers, ..epochs.clone() };
                        Team::new(pool, epochs, supply, slots, idle.is_some(), trace)
                    }
                };
                let idle = idle.as_ref().map(IdleTeam::downgrade);
                Inner::Workers(Box::new(WorkerIter::new(team, idle, tuner.clone())?))
            }
            _ => unreachable!("the builder makes `loading` and `content` for the same kind of dataset"),
        };
        let (warn, pinner) = (self.warn.clone(), self.pinner.clone());
        let iter = Iter::new(inner, number, started, self.origin.clone(), warn, pinner, self.iteration);
        let resumed_from = self.resumed_before(number);
        Ok(iter.with_fill(self.fill).with_resumed_from(resumed_from).observed(&self.observers))
    }

    /// Returns the merged state from which the run was resumed before epoch `number`, if it was. An epoch that begins
    /// anew takes nothing from a merged state of it, or of a later one.
    fn resumed_before(&self, number: u64) -> Option<ResumedFrom> {
        self.next_epoch().resumed_from.filter(|from| from.epoch < number)
    }

    /// Returns what epoch `number` loads from `position` on.
    fn supply(&self, number: u64, position: &Position) -> Result<Supply, Error> {
        // `State::check` refuses a state of the other kind. Only a state that was edited by hand gets here.
        let wrong_kind = |state, loader| must_agree("kind of dataset", state, loader).unwrap_err();
        match (&self.content, position) {
            (Content::Batches { .. }, Position::Start) => Ok(Supply::batches(self.plan(number, &[])?)),
            (Content::Batches { .. }, Position::Remaining(taken)) => {
                Ok(Supply::batches(self.plan(number, taken)?))
            }
            (Content::Batches { .. }, Position::Batches(position)) => {
                Supply::batches_from(self.plan(number, &position.taken)?, position)
            }
            (Content::Batches { .. }, Position::Shards(_)) => Err(wrong_kind("iterable", "map-style")),
            (Content::Shards(layout), Position::Start) => Ok(Supply::shards(Shards::new(number, *layout))),
            (Content::Shards(layout), Position::Shards(position)) => {
                Ok(Supply::shards(Shards::resume(number, *layout, position)?))
            }
            (Content::Shards(_), Position::Batches(_) | Position::Remaining(_)) => {
                Err(wrong_kind("map-style", "iterable"))
            }
        }
    }

    /// Returns the plan of this process's share of what `taken` leaves of epoch `number`.
    fn plan(&self, number: u64, taken: &[Taken]) -> Result<Plan, Error> {
        let Content::Batches { sampler, sharing, samples } = &self.content else {
            unreachable!("`supply` has checked the kind of the dataset")
        };
        let epoch = self.origin.epoch(number);
        if taken.is_empty() {
            return Ok(Plan::new(&**sampler, epoch, *samples));
        }
        let Some(sharing) = sharing else {
            // `State::check` refuses the state of another sampler. Only a state that was edited by hand gets here.
            return Err(must_agree("sampler", "shared by ranks", "the user's").unwrap_err());
        };
        Ok(Plan::new(&sharing.of_remaining(taken), epoch, *samples).after(taken.to_vec()))
    }

    /// Refuses an epoch whose order would take too long to compute: PyTorch's generator must skip the numbers
    /// of all earlier epochs.
    fn check_epoch(&self, number: u64) -> Result<(), Error> {
        /// Maximum count of numbers to skip. This takes some hours.
        const MAX_SKIPPED: u128 = 1 << 45;
        let draws = u128::from(BASE_SEED_DRAWS) + u128::from(self.torch_draws());
        let is_drawn = matches!(self.content, Content::Batches { .. });
        if is_drawn && self.origin.order.is_torch() && u128::from(number) * draws > MAX_SKIPPED {
            let problem = format!(
                "epoch {number} is out of reach: PyTorch's generator must skip the numbers of all epochs \
                 before it; use a lower epoch, or order \"native\""
            );
            return Err(Error::invalid_option("order", problem));
        }
        Ok(())
    }

    /// Returns the base seed of an epoch, from which its workers derive their seeds.
    fn base_seed(&self, number: u64) -> u64 {
        base_seed(self.origin.epoch(number), self.torch_draws())
    }

    /// Returns how many numbers an epoch's order takes from the loader's generator, in PyTorch's order.
    fn torch_draws(&self) -> u64 {
        match &self.content {
            Content::Batches { sampler, .. } => sampler.torch_draws(),
            Content::Shards(_) => 0,
        }
    }

    fn next_epoch(&self) -> MutexGuard<'_, NextEpoch> {
        self.next_epoch.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of batches in the epoch that [`iter`](Self::iter) starts next. With a batch
    /// sampler, it may differ from epoch to epoch. For an iterable dataset, it is the option `steps_per_epoch`, or
    /// else an estimate from the
    /// dataset's length, as in PyTorch, because each shard may end with a batch that is not full; it is
    /// `None` if the dataset does not know its length.
    pub fn len(&self) -> Option<usize> {
        if let Some(steps) = self.iteration.steps {
            return usize::try_from(steps).ok();
        }
        match &self.content {
            Content::Batches { sampler, .. } => Some(sampler.len(self.origin.epoch(self.next_epoch().epoch))),
            Content::Shards(ShardLayout { shards, all_shards, batch_size, drop_last, .. }) => {
                // This process's share of the samples.
                let samples = self.origin.samples? as u128 * *shards as u128;
                let samples = usize::try_from(samples.div_ceil(*all_shards as u128)).ok()?;
                Some(if *drop_last { samples / batch_size } else { samples.div_ceil(*batch_size) })
            }
        }
    }

    /// True if the epoch that [`iter`](Self::iter) starts next is known to have no batches.
    pub fn is_empty(&self) -> bool {
        self.len() == Some(0)
    }

    /// Returns the number of samples in the dataset; `None` if it is not known.
    pub fn samples(&self) -> Option<usize> {
        self.origin.samples
    }

    /// Returns the number of worker processes with which an iterator begins; 0 if batches are loaded in this
    /// process.
    pub fn num_workers(&self) -> usize {
        match &self.loading {
            Loading::Batches(_) | Loading::Shards(_) => 0,
            Loading::Workers { tuner: Some(tuner), .. } => tuner.setting().workers,
            Loading::Workers { epochs, .. } => epochs.workers,
        }
    }

    /// Returns the loader's statistics since `build()`. Any thread may call this at any time, also while another
    /// thread waits in `next`.
    ///
    /// # Examples
    /// ```
    /// use loader_core::prelude::*;
    ///
    /// let numbers = TensorDataset::new(Tensor::from_slice(&[1i64, 2, 3], [3])?)?;
    /// let loader = DataLoader::builder(numbers).batch_size(2).build()?;
    /// assert_eq!(loader.iter()?.count(), 2);
    /// let stats = loader.stats();
    /// assert_eq!((stats.epochs, stats.batches, stats.samples), (1, 2, 3));
    /// # anyhow::Ok(())
    /// ```
    pub fn stats(&self) -> LoaderStats {
        self.observers.stats.read()
    }

    /// Returns a reader of the [statistics](Self::stats). It can be moved to a thread that lives longer than
    /// this reference.
    ///
    /// # Examples
    /// ```
    /// use loader_core::prelude::*;
    ///
    /// let numbers = TensorDataset::new(Tensor::from_slice(&[1i64, 2, 3], [3])?)?;
    /// let loader = DataLoader::builder(numbers).build()?;
    /// let reader = loader.stats_reader();
    /// assert_eq!(loader.iter()?.count(), 3);
    /// let batches = std::thread::spawn(move || reader.read().batches).join().unwrap();
    /// assert_eq!(batches, 3);
    /// # anyhow::Ok(())
    /// ```
    pub fn stats_reader(&self) -> StatsReader {
        StatsReader(Arc::clone(&self.observers.stats))
    }

    /// Returns the address of the option [`metrics`](Builder::metrics), with the port that the system chose if the
    /// port of the option is 0; `None` without the option.
    pub fn metrics_address(&self) -> Option<SocketAddr> {
        self.observers.metrics.as_ref().map(|server| server.address())
    }

    /// Returns the seed.
    pub fn seed(&self) -> u64 {
        self.origin.seed
    }
}

impl<B> fmt::Debug for DataLoader<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DataLoader")
            .field("samples", &self.origin.samples)
            .field("seed", &self.origin.seed)
            .finish_non_exhaustive()
    }
}
