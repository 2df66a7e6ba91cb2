//! What a dataset is told while it loads.

use rand::rngs::ChaCha8Rng;

use crate::random::{self, Purpose};

/// The worker that a dataset runs in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerInfo {
    id: usize,
    num_workers: usize,
    seed: u64,
}

impl WorkerInfo {
    #[doc(hidden)]
    pub fn new(id: usize, num_workers: usize, seed: u64) -> Self {
        Self { id, num_workers, seed }
    }

    /// Number of the worker, from 0.
    pub fn id(&self) -> usize {
        self.id
    }

    /// Number of workers of the loader.
    pub fn num_workers(&self) -> usize {
        self.num_workers
    }

    /// The loader's seed plus the worker's number, for libraries that want a seed per process. What a sample looks like should
    /// not depend on it: use [`Context::rng`] for that.
    pub fn seed(&self) -> u64 {
        self.seed.wrapping_add(self.id as u64)
    }
}

/// What a dataset is told while it loads one sample: its generator, the epoch, the worker.
#[derive(Debug)]
pub struct Context {
    worker: Option<WorkerInfo>,
    epoch: u64,
    index: usize,
    key: [u8; 32],
    /// Made when it is first asked for.
    rng: Option<ChaCha8Rng>,
    many: Many,
}

/// Whether the dataset has a `get_many` of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Many {
    /// Nobody asks.
    Unasked,
    /// The next call asks: the default declines instead of loading one by one, so that the batch can be watched.
    Probing,
    /// It has not.
    Declined,
}

impl Context {
    /// A context for calling a dataset by hand, as the main process would: no worker, epoch 0, sample 0.
    pub fn new(seed: u64) -> Self {
        Self::for_epoch(None, seed, 0)
    }

    pub(crate) fn for_epoch(worker: Option<WorkerInfo>, seed: u64, epoch: u64) -> Self {
        let key = random::key(Purpose::Sample, seed, epoch);
        Self { worker, epoch, index: 0, key, rng: None, many: Many::Unasked }
    }

    /// Moves on to another sample: its generator starts anew.
    pub fn set_index(&mut self, index: usize) {
        self.index = index;
        self.rng = None;
    }

    /// The sample's own generator. It depends on the loader's seed, the epoch and the sample's index alone: augmentation is
    /// the same with any number of workers, in any order, and when a batch is loaded again.
    ///
    /// A sample that is drawn twice in an epoch (sampling with replacement) has the same generator both times.
    pub fn rng(&mut self) -> &mut ChaCha8Rng {
        let (key, index) = (self.key, self.index as u64);
        self.rng.get_or_insert_with(|| random::generator(key, index))
    }

    /// The epoch, from 0.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Index of the sample.
    pub fn index(&self) -> usize {
        self.index
    }

    pub(crate) fn probe_many(&mut self) {
        self.many = Many::Probing;
    }

    pub(crate) fn is_probing(&self) -> bool {
        self.many == Many::Probing
    }

    pub(crate) fn decline_many(&mut self) {
        self.many = Many::Declined;
    }

    pub(crate) fn many_declined(&self) -> bool {
        self.many == Many::Declined
    }

    /// The worker, or `None` in the main process. Which worker loads a sample depends on the time that others take: what a sample looks
    /// like should not depend on it.
    pub fn worker(&self) -> Option<&WorkerInfo> {
        self.worker.as_ref()
    }
}
