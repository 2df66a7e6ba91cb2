//! What a dataset is told while it loads.

use std::{any::TypeId, mem};

use rand::{Rng, rngs::ChaCha8Rng};

use crate::{
    dataset::Shard,
    random::{self, Purpose},
};

/// The worker that a dataset runs in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerInfo {
    id: usize,
    num_workers: usize,
    base_seed: u64,
}

impl WorkerInfo {
    #[doc(hidden)]
    pub fn new(id: usize, num_workers: usize, base_seed: u64) -> Self {
        Self { id, num_workers, base_seed }
    }

    /// Number of the worker, from 0.
    pub fn id(&self) -> usize {
        self.id
    }

    /// Number of workers of the loader.
    pub fn num_workers(&self) -> usize {
        self.num_workers
    }

    /// A seed of the process's own, for libraries that want one: the base seed plus the worker's number, as in PyTorch. The base seed
    /// comes from the loader's seed and the epoch that the workers were started for; with `order = "torch"` it is PyTorch's.
    ///
    /// What a sample looks like should not depend on it: use [`Context::rng`] for that.
    pub fn seed(&self) -> u64 {
        self.base_seed.wrapping_add(self.id as u64)
    }
}

/// What a dataset is told while it loads one sample: its generator, the epoch, the worker.
#[derive(Debug)]
pub struct Context {
    worker: Option<WorkerInfo>,
    epoch: u64,
    index: usize,
    shard: Option<Shard>,
    /// Index of the asked dataset's sample 0 in the outermost one.
    shift: usize,
    key: [u8; 32],
    /// Stream of the generator.
    stream: u64,
    /// Layer of the dataset that is asked, and that of the function that draws now.
    base_layer: u8,
    layer: u8,
    /// Made when it is first asked for.
    rng: Option<ChaCha8Rng>,
    many: Many,
}

/// Whether the dataset has a `get_many` of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Many {
    /// Nobody asks.
    Unasked,
    /// A dataset of this type is asked: the default declines instead of loading one by one, so that the batch can be watched.
    Probing(TypeId),
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
        let many = Many::Unasked;
        Self {
            worker,
            epoch,
            index: 0,
            shift: 0,
            shard: None,
            key,
            stream: 0,
            base_layer: 0,
            layer: 0,
            rng: None,
            many,
        }
    }

    /// For a shard of an iterable dataset: the generator is the shard's, until an index is set.
    pub(crate) fn for_shard(worker: Option<WorkerInfo>, seed: u64, epoch: u64, shard: Shard) -> Self {
        let key = random::shard_key(Purpose::Shard, seed, epoch, shard.index() as u64);
        Self { key, shard: Some(shard), ..Self::for_epoch(worker, seed, epoch) }
    }

    /// Another one for the same shard, whose layer 0 is this one's `layer`: for an adaptor whose dataset keeps this one.
    pub(crate) fn of_layer(&self, layer: u8) -> Self {
        let base_layer = self.base_layer.wrapping_add(layer);
        Self { rng: None, worker: self.worker.clone(), base_layer, layer: base_layer, ..*self }
    }

    /// The context of the stream that reads `shard`, one of several streams that take turns. Its generators
    /// draw other numbers than those of the other streams, also where streams are nested.
    pub(crate) fn of_lane(&self, lane: usize, shard: Shard) -> Self {
        let mut key = [0; 32];
        random::generator(random::layer_key(self.key, self.base_layer), lane as u64).fill_bytes(&mut key);
        let worker = self.worker.clone();
        Self { rng: None, worker, key, shard: Some(shard), base_layer: 0, layer: 0, ..*self }
    }

    /// The generator of a shuffle buffer, which is in `layer` of the shard's pipeline.
    pub(crate) fn buffer_rng(&self, layer: u8) -> ChaCha8Rng {
        let key = random::purpose_key(self.key, Purpose::Buffer);
        random::generator(random::layer_key(key, self.base_layer.wrapping_add(layer)), 0)
    }

    /// Runs a function around a dataset: it draws from the sample's generator of `layer`, whatever the dataset has drawn.
    pub(crate) fn in_layer<R>(&mut self, layer: u8, call: impl FnOnce(&mut Self) -> R) -> R {
        let own = (self.layer, self.rng.take());
        self.layer = self.base_layer.wrapping_add(layer);
        let result = call(self);
        (self.layer, self.rng) = own;
        result
    }

    /// Moves on to another sample: its generator starts anew. `index` counts as the one that was given to the dataset that calls
    /// this; if that is a member of a concatenation, the index in the whole is derived from it.
    pub fn set_index(&mut self, index: usize) {
        self.index = self.shift + index;
        // Stream 0 of a shard is the shard's own.
        self.stream = self.index as u64 + u64::from(self.shard.is_some());
        self.rng = None;
    }

    /// The sample's own generator. It depends on the loader's seed, the epoch and the sample's index alone: augmentation is
    /// the same with any number of workers, in any order, and when a batch is loaded again.
    ///
    /// In a dataset made of others the index is the one that the loader asked the outermost dataset for. A function given to `map` has a
    /// generator of its own for the sample, and so has each of several.
    ///
    /// A sample that is drawn twice in an epoch (sampling with replacement) has the same generator both times.
    ///
    /// In [`IterableDataset::iter`](crate::IterableDataset::iter) it is the shard's, which goes on from sample to sample.
    ///
    /// It implements the traits of rand 0.10, which this crate re-exports as `loader_core::rand`: a program with another version of rand
    /// takes the traits from there.
    ///
    /// # Examples
    /// ```
    /// use loader_core::{Context, rand::RngExt};
    ///
    /// let mut cx = Context::new(7);
    /// let flip = cx.rng().random_bool(0.5);
    /// let noise: f32 = cx.rng().random_range(-0.1..0.1);
    /// # let _ = (flip, noise);
    /// ```
    pub fn rng(&mut self) -> &mut ChaCha8Rng {
        let (key, layer, stream) = (self.key, self.layer, self.stream);
        self.rng.get_or_insert_with(|| random::generator(random::layer_key(key, layer), stream))
    }

    /// The epoch, from 0.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Index of the sample, in the outermost dataset: the one that the loader asked for; of an iterable dataset, its place in the shard.
    pub fn index(&self) -> usize {
        self.index
    }

    /// The shard of an iterable dataset that is being read; `None` for a map-style one.
    pub fn shard(&self) -> Option<Shard> {
        self.shard
    }

    /// Asks, in `call`, whether a dataset of type `D` has a `get_many` of its own; also true where it has not.
    pub(crate) fn probe_many<D: 'static, R>(&mut self, call: impl FnOnce(&mut Self) -> R) -> (R, bool) {
        let before = mem::replace(&mut self.many, Many::Probing(TypeId::of::<D>()));
        let result = call(self);
        let declined = mem::replace(&mut self.many, before) == Many::Declined;
        (result, declined)
    }

    /// True while a dataset of type `D` is asked; false for one inside it, which its own `get_many` calls.
    pub(crate) fn is_probing<D: 'static>(&self) -> bool {
        self.many == Many::Probing(TypeId::of::<D>())
    }

    pub(crate) fn decline_many(&mut self) {
        self.many = Many::Declined;
    }

    /// Runs `call` for a dataset whose sample 0 is sample `first` of the one that calls this.
    pub(crate) fn within<R>(&mut self, first: usize, call: impl FnOnce(&mut Self) -> R) -> R {
        self.shift += first;
        let result = call(self);
        self.shift -= first;
        result
    }

    /// Lets the sample's generator start anew.
    pub(crate) fn restart(&mut self) {
        self.rng = None;
    }

    /// The worker, or `None` in the main process. Which worker loads a sample depends on the time that others take: what a sample looks
    /// like should not depend on it.
    pub fn worker(&self) -> Option<&WorkerInfo> {
        self.worker.as_ref()
    }
}
