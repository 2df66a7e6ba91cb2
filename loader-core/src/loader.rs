//! The loader itself.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::Instant,
};

use loader_ipc::slots::SlotPool;

use crate::{
    builder::Builder,
    collate::Batch,
    dataset::Dataset,
    error::Error,
    iter::{Epochs, Iter, LocalIter, Source, WorkerIter},
    options::Order,
    plan::Plan,
    pool::Launch,
    sampler::{BatchSampler, Epoch},
};

/// Loads batches of type `B`, epoch after epoch: PyTorch's `DataLoader`.
///
/// It names the batch type and nothing else, so it fits into a struct. It is `Send` and `Sync`, and several iterators over one
/// loader may be alive at once, each with its own workers. Shared memory is kept from one epoch to the next.
///
/// See [`Dataset`] for an example.
pub struct DataLoader<B> {
    loading: Loading<B>,
    batch_sampler: Box<dyn BatchSampler>,
    samples: usize,
    seed: u64,
    order: Order,
    next_epoch: Mutex<u64>,
}

/// Where batches are loaded.
pub(crate) enum Loading<B> {
    Local(Arc<dyn Source<B>>),
    Workers { launch: Arc<Launch>, slots: SlotPool, epochs: Epochs },
}

impl DataLoader<()> {
    /// Starts putting a loader for `dataset` together.
    pub fn builder<D: Dataset>(dataset: D) -> Builder<D> {
        Builder::new(dataset)
    }
}

impl<B: Batch> DataLoader<B> {
    pub(crate) fn new(
        loading: Loading<B>,
        batch_sampler: Box<dyn BatchSampler>,
        samples: usize,
        seed: u64,
        order: Order,
    ) -> Self {
        Self { loading, batch_sampler, samples, seed, order, next_epoch: Mutex::new(0) }
    }

    /// The next epoch: the first call gives epoch 0, and each call that succeeds a new one. Starts the workers.
    ///
    /// # Errors
    /// When a worker cannot be started (no process is left running then), or the program holds all shared memory.
    pub fn iter(&self) -> Result<Iter<B>, Error> {
        // Held while the workers start, so that a failure gives the number back before anyone else takes one.
        let mut next = self.next_epoch.lock().unwrap_or_else(PoisonError::into_inner);
        let iter = self.epoch(*next)?;
        *next += 1;
        Ok(iter)
    }

    /// Epoch `number`, from 0; the count that [`iter`](Self::iter) goes by is left alone.
    ///
    /// # Errors
    /// As [`iter`](Self::iter).
    pub fn epoch(&self, number: u64) -> Result<Iter<B>, Error> {
        let started = Instant::now();
        let epoch = Epoch::new(self.seed, number).order(self.order);
        let plan = Plan::new(&*self.batch_sampler, epoch, self.samples);
        match &self.loading {
            Loading::Local(source) => Ok(Iter::local(LocalIter::new(Arc::clone(source), plan), number)),
            Loading::Workers { launch, slots, epochs } => {
                let pool = launch.start(slots)?;
                let iter = WorkerIter::new(pool, slots.clone(), epochs.clone(), plan)?;
                Ok(Iter::workers(iter, number, started))
            }
        }
    }

    /// Number of batches in an epoch.
    pub fn len(&self) -> usize {
        self.batch_sampler.len()
    }

    /// True when an epoch has no batches.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of samples in the dataset.
    pub fn samples(&self) -> usize {
        self.samples
    }

    /// Number of worker processes of an iterator.
    pub fn num_workers(&self) -> usize {
        match &self.loading {
            Loading::Local(_) => 0,
            Loading::Workers { epochs, .. } => epochs.workers,
        }
    }

    /// The seed.
    pub fn seed(&self) -> u64 {
        self.seed
    }
}

impl<B> fmt::Debug for DataLoader<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DataLoader")
            .field("samples", &self.samples)
            .field("seed", &self.seed)
            .finish_non_exhaustive()
    }
}
