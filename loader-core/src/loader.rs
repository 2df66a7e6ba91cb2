//! The loader itself.

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use loader_ipc::{pin::Pinner, slots::SlotPool};

use crate::{
    builder::Builder,
    collate::Batch,
    dataset::{Dataset, IterableDataset},
    error::Error,
    fetch::{Cut, Iterable, MapStyle, Plain},
    iter::{
        BatchSource, Bench, Epochs, Inner, Iter, LocalBatches, LocalShards, ShardSource, Shards, Supply,
        WorkerIter,
    },
    options::Order,
    plan::Plan,
    pool::Launch,
    random::base_seed,
    sampler::BatchSampler,
    state::{Origin, Place, State, must_agree},
    torch::BASE_SEED_DRAWS,
    warning::{Warn, Warning},
};

/// Loads batches of type `B`, epoch after epoch: PyTorch's `DataLoader`.
///
/// It names the batch type and nothing else, so it fits into a struct. It is `Send` and `Sync`, and several iterators over one
/// loader may be alive at once, each with its own workers. Shared memory is kept from one epoch to the next.
///
/// See [`Dataset`] for an example.
pub struct DataLoader<B> {
    loading: Loading<B>,
    content: Content,
    origin: Origin,
    warn: Warn,
    pinner: Option<Pinner>,
    /// Most samples that may be skipped or replaced in an epoch.
    most_bad: u64,
    next_epoch: Mutex<u64>,
}

/// Where batches are loaded.
pub(crate) enum Loading<B> {
    Batches(Arc<dyn BatchSource<B>>),
    Shards(Arc<dyn ShardSource<B>>),
    Workers { launch: Arc<Launch>, slots: SlotPool, epochs: Epochs, bench: Option<Bench> },
}

/// What an epoch consists of.
pub(crate) enum Content {
    /// Of a map-style dataset with so many samples.
    Batches { sampler: Box<dyn BatchSampler>, samples: usize },
    /// Of an iterable dataset.
    Shards(Cut),
}

impl DataLoader<()> {
    /// Starts putting a loader for the map-style `dataset` together.
    pub fn builder<D: Dataset>(dataset: D) -> Builder<MapStyle<D>> {
        Builder::map_style(dataset)
    }

    /// Starts putting a loader for the iterable `dataset` together.
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
        most_bad: u64,
    ) -> Self {
        Self { loading, content, origin, warn, pinner, most_bad, next_epoch: Mutex::new(0) }
    }

    /// The next epoch: the first call gives epoch 0, and each call that succeeds a new one. Starts the workers.
    ///
    /// # Errors
    /// When a worker cannot be started (no process is left running then), or the program holds all shared memory.
    pub fn iter(&self) -> Result<Iter<B>, Error> {
        let number = {
            let mut next = self.next_epoch();
            let number = *next;
            *next = number.saturating_add(1);
            number
        };
        self.epoch(number).inspect_err(|_| {
            // Given back, unless somebody else has taken the one behind it.
            let mut next = self.next_epoch();
            if *next == number.saturating_add(1) {
                *next = number;
            }
        })
    }

    /// Epoch `number`, from 0; the count that [`iter`](Self::iter) goes by is left alone.
    ///
    /// # Errors
    /// As [`iter`](Self::iter).
    pub fn epoch(&self, number: u64) -> Result<Iter<B>, Error> {
        self.start(number, &Place::Start)
    }

    /// Where the next [`iter`](Self::iter) begins. Of an epoch that is being loaded see [`Iter::state`].
    pub fn state(&self) -> State {
        State::start(&self.origin, *self.next_epoch())
    }

    /// The rest of the epoch that `state` stands in, and then [`iter`](Self::iter) goes on behind it. The batches are those that the loader
    /// that the state is of would have returned, with any number of workers (of an iterable dataset if [`shards`](Builder::shards) says their
    /// number).
    ///
    /// No sample before the place is loaded for a map-style dataset, nor for an iterable one with snapshots; any other iterable dataset
    /// is read from the beginning of each shard, without collation, and the first batch is waited for here.
    ///
    /// # Errors
    /// [`Error::StateMismatch`] when the state is of a loader that was built differently; else as [`iter`](Self::iter).
    pub fn resume(&self, state: &State) -> Result<Iter<B>, Error> {
        state.check(&self.origin)?;
        let mut iter = self.start(state.epoch(), state.place())?;
        if matches!(state.place(), Place::Shards(_)) && !iter.has_more()? {
            // It was taken behind the last batch, before anybody knew that it was the last.
            drop(iter);
            iter = self.start(state.epoch().saturating_add(1), &Place::Start)?;
        }
        *self.next_epoch() = iter.epoch().saturating_add(1);
        if iter.epoch() == state.epoch() {
            iter.count_bad_from(state.bad_samples());
        }
        Ok(iter)
    }

    fn start(&self, number: u64, place: &Place) -> Result<Iter<B>, Error> {
        let started = Instant::now();
        self.check_epoch(number)?;
        let supply = self.supply(number, place)?;
        let inner = match (&self.loading, supply) {
            (Loading::Batches(source), Supply::Batches { plan, ahead, .. }) => {
                Inner::Batches(LocalBatches::new(Arc::clone(source), plan, ahead))
            }
            (Loading::Shards(source), Supply::Shards { shards, .. }) => {
                Inner::Shards(LocalShards::new(Arc::clone(source), shards))
            }
            (Loading::Workers { launch, slots, epochs, bench }, supply) => {
                let rested = match bench {
                    Some(bench) => bench.take(number, epochs.timeout).unwrap_or_else(|error| {
                        self.warn.warn(&Warning::WorkersReplaced { problem: error.to_string() });
                        None
                    }),
                    None => None,
                };
                let pool = match rested {
                    Some(pool) => pool,
                    None => launch.start(slots, self.base_seed(number))?,
                };
                let home = bench.as_ref().map(Bench::home);
                Inner::Workers(Box::new(WorkerIter::new(
                    pool,
                    home,
                    slots.clone(),
                    epochs.clone(),
                    self.warn.clone(),
                    supply,
                )?))
            }
            _ => unreachable!("the builder makes both of one kind"),
        };
        let (warn, pinner) = (self.warn.clone(), self.pinner.clone());
        Ok(Iter::new(inner, number, started, self.origin.clone(), warn, pinner, self.most_bad))
    }

    /// What is to be loaded of epoch `number` from `place` on.
    fn supply(&self, number: u64, place: &Place) -> Result<Supply, Error> {
        // The check before has refused a state of the other kind; only a state made by hand gets here.
        let wrong_kind = |state, loader| must_agree("kind of dataset", state, loader).unwrap_err();
        match (&self.content, place) {
            (Content::Batches { sampler, samples }, place) => {
                let plan = Plan::new(&**sampler, self.origin.epoch(number), *samples);
                match place {
                    Place::Start => Ok(Supply::batches(plan)),
                    Place::Batches(place) => {
                        plan.check(place)?;
                        Ok(Supply::batches_from(plan, place))
                    }
                    Place::Shards(_) => Err(wrong_kind("iterable", "map-style")),
                }
            }
            (Content::Shards(cut), Place::Start) => Ok(Supply::shards(Shards::new(number, *cut))),
            (Content::Shards(cut), Place::Shards(place)) => {
                Ok(Supply::shards(Shards::resume(number, *cut, place)?))
            }
            (Content::Shards(_), Place::Batches(_)) => Err(wrong_kind("map-style", "iterable")),
        }
    }

    /// PyTorch's generator comes to an epoch through all before it.
    fn check_epoch(&self, number: u64) -> Result<(), Error> {
        /// Some hours of numbers that are left out.
        const FARTHEST: u128 = 1 << 45;
        let draws = u128::from(BASE_SEED_DRAWS) + u128::from(self.torch_draws());
        let is_drawn = matches!(self.content, Content::Batches { .. });
        if is_drawn && self.origin.order == Order::Torch && u128::from(number) * draws > FARTHEST {
            let problem = format!(
                "epoch {number} is out of reach: PyTorch's generator has to go through all epochs before it"
            );
            return Err(Error::invalid_option("order", problem));
        }
        Ok(())
    }

    /// What the workers that are started for an epoch get their seeds from.
    fn base_seed(&self, number: u64) -> u64 {
        base_seed(self.origin.epoch(number), self.torch_draws())
    }

    /// What an epoch's order takes from the loader's generator, in PyTorch's order.
    fn torch_draws(&self) -> u64 {
        match &self.content {
            Content::Batches { sampler, .. } => sampler.torch_draws(),
            Content::Shards(_) => 0,
        }
    }

    fn next_epoch(&self) -> MutexGuard<'_, u64> {
        self.next_epoch.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Number of batches in the epoch that [`iter`](Self::iter) starts next; a batch sampler may have another
    /// number in each epoch. For an iterable dataset an estimate from its length, as in PyTorch (each shard
    /// may end with a batch that is not full), and `None` when it does not say its length.
    pub fn len(&self) -> Option<usize> {
        match &self.content {
            Content::Batches { sampler, .. } => Some(sampler.len(self.origin.epoch(*self.next_epoch()))),
            Content::Shards(Cut { shards, all_shards, batch_size, drop_last, .. }) => {
                // Of the samples of all processes this one's share.
                let samples = self.origin.samples? as u128 * *shards as u128;
                let samples = usize::try_from(samples.div_ceil(*all_shards as u128)).ok()?;
                Some(if *drop_last { samples / batch_size } else { samples.div_ceil(*batch_size) })
            }
        }
    }

    /// True when it is known that an epoch has no batches.
    pub fn is_empty(&self) -> bool {
        self.len() == Some(0)
    }

    /// Number of samples in the dataset, if it is known.
    pub fn samples(&self) -> Option<usize> {
        self.origin.samples
    }

    /// Number of worker processes of an iterator.
    pub fn num_workers(&self) -> usize {
        match &self.loading {
            Loading::Batches(_) | Loading::Shards(_) => 0,
            Loading::Workers { epochs, .. } => epochs.workers,
        }
    }

    /// The seed.
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
