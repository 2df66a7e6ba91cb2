//! The context that the loader passes to a dataset, and the shard that the dataset reads.

use std::{
    any::TypeId,
    mem,
    sync::atomic::{AtomicBool, Ordering},
};

use rand::{Rng, rngs::ChaCha8Rng};

use crate::data::{
    dataset_memory::DatasetMemory,
    random::{self, Purpose},
};

/// Identifies the worker that a dataset runs in.
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

    /// Index of the worker, from 0.
    pub fn id(&self) -> usize {
        self.id
    }

    /// Number of workers of the loader; if the loader [finds](crate::AutoWorkers) it, the maximum.
    pub fn num_workers(&self) -> usize {
        self.num_workers
    }

    /// A seed for libraries in this worker: the base seed plus [`id`](Self::id), as in PyTorch. The base seed
    /// is computed from the loader's seed and the epoch for which the workers were started. With `order =
    /// "torch"` it equals PyTorch's base seed.
    ///
    /// Samples should not depend on this seed, because any worker can load any sample: use
    /// [`SampleContext::rng`] for random numbers in samples.
    pub fn seed(&self) -> u64 {
        self.base_seed.wrapping_add(self.id as u64)
    }
}

/// What a dataset can use while it loads a sample: the sample's random number generator, the epoch and the
/// worker.
#[derive(Debug)]
pub struct SampleContext {
    worker: Option<WorkerInfo>,
    memory: DatasetMemory,
    epoch: u64,
    index: usize,
    shard: Option<Shard>,
    /// Index in the outermost dataset of sample 0 of the dataset that is called.
    offset: usize,
    key: [u8; 32],
    /// Key of the generators that all shards of the epoch have in common.
    epoch_key: [u8; 32],
    /// Stream of the generator.
    stream: u64,
    /// Layer 0 of this context. `for_layer` sets it.
    base_layer: u8,
    /// Layer of the generator: `base_layer`, or that of the function that `in_layer` calls.
    layer: u8,
    /// Created by the first call of `rng`.
    rng: Option<ChaCha8Rng>,
    /// True if numbers were drawn since `detect_draws` began, except from the generator in `rng`. An atomic,
    /// so that the context is `Sync`.
    has_drawn: AtomicBool,
    many: Many,
    /// Type of the dataset for which [`is_collated`](Self::is_collated) returns true.
    collated: Option<TypeId>,
}

/// State of the probe for a `get_many` of a dataset's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Many {
    /// No probe.
    Unasked,
    /// The caller probes a dataset of this type. The default `get_many` then declines, so that the caller
    /// loads the samples one by one and can report its progress.
    Probing(TypeId),
    /// The dataset has only the default `get_many`.
    Declined,
}

impl SampleContext {
    /// Creates a context for calling a dataset directly. It equals the context of sample 0 in epoch 0 in the
    /// main process, with the loader's seed `seed`.
    pub fn new(seed: u64) -> Self {
        Self::for_epoch(None, seed, 0)
    }

    pub(crate) fn for_epoch(worker: Option<WorkerInfo>, seed: u64, epoch: u64) -> Self {
        let key = random::key(Purpose::Sample, seed, epoch);
        let epoch_key = random::key(Purpose::Epoch, seed, epoch);
        let many = Many::Unasked;
        Self {
            worker,
            memory: DatasetMemory::default(),
            epoch,
            index: 0,
            offset: 0,
            shard: None,
            key,
            epoch_key,
            stream: 0,
            base_layer: 0,
            layer: 0,
            rng: None,
            has_drawn: AtomicBool::new(false),
            many,
            collated: None,
        }
    }

    /// Creates the context of a shard of an iterable dataset. Its generator is that of the shard until
    /// [`set_index`](Self::set_index) is called.
    pub(crate) fn for_shard(worker: Option<WorkerInfo>, seed: u64, epoch: u64, shard: Shard) -> Self {
        let key = random::shard_key(Purpose::Shard, seed, epoch, shard.index() as u64);
        Self { key, shard: Some(shard), ..Self::for_epoch(worker, seed, epoch) }
    }

    /// Creates a context for the same shard whose layer 0 is `layer` of this one. An adaptor uses it for its
    /// function or its second dataset, while its first dataset uses `self`.
    pub(crate) fn for_layer(&self, layer: u8) -> Self {
        let base_layer = self.base_layer.wrapping_add(layer);
        let has_drawn = AtomicBool::new(false);
        let (worker, memory) = (self.worker.clone(), self.memory.clone());
        Self { rng: None, has_drawn, worker, memory, base_layer, layer: base_layer, ..*self }
    }

    /// Creates the context of lane `lane` of interleaved streams, which reads `shard` of stream `stream`. No
    /// two lanes draw the same numbers, even if interleaved streams are nested. The lanes that read parts of
    /// one stream have the same [`epoch_rng`](Self::epoch_rng).
    pub(crate) fn for_lane(&self, lane: usize, stream: usize, shard: Shard) -> Self {
        let derived = |key, number: usize| {
            let mut derived = [0; 32];
            random::generator(random::layer_key(key, self.base_layer), number as u64)
                .fill_bytes(&mut derived);
            derived
        };
        let (key, epoch_key) = (derived(self.key, lane), derived(self.epoch_key, stream));
        let (worker, has_drawn) = (self.worker.clone(), AtomicBool::new(false));
        Self {
            rng: None,
            has_drawn,
            worker,
            memory: self.memory.clone(),
            key,
            epoch_key,
            shard: Some(shard),
            base_layer: 0,
            layer: 0,
            ..*self
        }
    }

    /// Creates the generator of a shuffle buffer in layer `layer` of the shard.
    pub(crate) fn buffer_rng(&self, layer: u8) -> ChaCha8Rng {
        random::generator(self.buffer_key(layer), 0)
    }

    /// Returns the key of the generators of a dataset that collects samples, such as a shuffle buffer, in
    /// layer `layer`.
    pub(crate) fn buffer_key(&self, layer: u8) -> [u8; 32] {
        let key = random::purpose_key(self.key, Purpose::Buffer);
        random::layer_key(key, self.base_layer.wrapping_add(layer))
    }

    /// Runs `call` with the sample's generator of layer `layer`, which starts at its beginning whatever the
    /// dataset has drawn.
    pub(crate) fn in_layer<R>(&mut self, layer: u8, call: impl FnOnce(&mut Self) -> R) -> R {
        let outer = self.layer;
        self.layer = self.base_layer.wrapping_add(layer);
        let result = self.with_restarted_rng(call);
        self.layer = outer;
        result
    }

    /// Runs `call` with the sample's generator at its beginning, and goes on with the generator as it was. Public
    /// because `loader-data` calls it.
    #[doc(hidden)]
    pub fn with_restarted_rng<R>(&mut self, call: impl FnOnce(&mut Self) -> R) -> R {
        let outer = self.rng.take();
        let result = call(self);
        self.restart_rng();
        self.rng = outer;
        result
    }

    /// Switches to sample `index` and restarts the generator for it. `index` is an index of the calling
    /// dataset. If that dataset is a member of a concatenation, this method computes the index in the
    /// concatenation.
    pub fn set_index(&mut self, index: usize) {
        self.index = self.outermost_index(index);
        // Stream 0 of a shard's key is the generator of the shard itself.
        self.stream = self.index as u64 + u64::from(self.shard.is_some());
        self.restart_rng();
    }

    /// Returns the index in the outermost dataset of sample `index` of the dataset that is called.
    pub(crate) fn outermost_index(&self, index: usize) -> usize {
        self.offset + index
    }

    /// Returns the random number generator of the sample. Its numbers depend only on the loader's seed, the
    /// epoch and the sample's index, so augmentation is the same with any number of workers, in any order,
    /// and when a batch is loaded again.
    ///
    /// In a dataset that is made of other datasets, the index is that of the outermost dataset; in a
    /// [`Subset`](crate::Subset), it is that of the subset's inner dataset. So if a subset is a member of a
    /// concatenation, one of its samples and one of another member may have the same generator. Each function given
    /// to `map` has its own generator for the sample.
    ///
    /// If a sample is drawn twice in an epoch (sampling with replacement), its generator is the same both
    /// times.
    ///
    /// In [`IterableDataset::iter`](crate::IterableDataset::iter) this is the generator of the shard, which
    /// does not restart between samples.
    ///
    /// The generator implements the traits of rand 0.10, which this crate re-exports as `loader_core::rand`.
    /// A program that uses another version of rand imports the traits from there.
    ///
    /// # Examples
    /// ```
    /// use loader_core::{SampleContext, rand::RngExt};
    ///
    /// let mut cx = SampleContext::new(7);
    /// let flip = cx.rng().random_bool(0.5);
    /// let noise: f32 = cx.rng().random_range(-0.1..0.1);
    /// # let _ = (flip, noise);
    /// ```
    pub fn rng(&mut self) -> &mut ChaCha8Rng {
        let (key, layer, stream) = (self.key, self.layer, self.stream);
        self.rng.get_or_insert_with(|| random::generator(random::layer_key(key, layer), stream))
    }

    /// Creates a generator that is the same in all shards and for all samples of the epoch. Its numbers
    /// depend only on the loader's seed and the epoch; each call returns it at its beginning. An iterable
    /// dataset uses it for what its shards must agree on, such as one permutation of its files, of which each
    /// shard reads its part.
    ///
    /// In a dataset that is made of other datasets, each of them has its own generator: the two datasets of
    /// [`chain`](crate::IterableDataset::chain) draw different numbers, and so do the streams of an
    /// [`InterleaveDataset`](crate::InterleaveDataset). The parts into which
    /// [`interleave`](crate::IterableDataset::interleave) splits one dataset draw the same numbers.
    ///
    /// # Examples
    /// ```
    /// use loader_core::{SampleContext, Shard, rand::seq::SliceRandom};
    ///
    /// fn files(shard: Shard, cx: &SampleContext) -> Vec<usize> {
    ///     let mut files: Vec<usize> = (0..10).collect();
    ///     files.shuffle(&mut cx.epoch_rng());
    ///     shard.of(files).collect()
    /// }
    ///
    /// let cx = SampleContext::new(7);
    /// let mut all = [files(Shard::new(0, 2), &cx), files(Shard::new(1, 2), &cx)].concat();
    /// all.sort_unstable();
    /// assert!(all.into_iter().eq(0..10));
    /// ```
    pub fn epoch_rng(&self) -> ChaCha8Rng {
        // Relaxed: `detect_draws` reads the flag through `&mut self`, so nothing runs at the same time.
        self.has_drawn.store(true, Ordering::Relaxed);
        random::generator(random::layer_key(self.epoch_key, self.layer), 0)
    }

    /// Number of the epoch, from 0.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Index of the sample in the outermost dataset; in a [`Subset`](crate::Subset), the index in its inner
    /// dataset. For an iterable dataset, the position in the shard.
    pub fn index(&self) -> usize {
        self.index
    }

    /// The shard of an iterable dataset that is being read; `None` for a map-style dataset.
    pub fn shard(&self) -> Option<Shard> {
        self.shard
    }

    /// Sets the account from which the dataset reserves the memory that it keeps. Without this call, the
    /// dataset has no limit.
    pub(crate) fn with_memory(self, memory: DatasetMemory) -> Self {
        Self { memory, ..self }
    }

    /// Returns the account from which the dataset reserves the memory that it keeps from one sample to the
    /// next: its part of the loader's [`memory_limit`](crate::Builder::memory_limit).
    pub fn memory(&self) -> &DatasetMemory {
        &self.memory
    }

    /// Sets for which dataset [`is_collated`](Self::is_collated) returns true: the outermost one, of type
    /// `D`, if `by_type` is true.
    pub(crate) fn collated<D: 'static>(self, by_type: bool) -> Self {
        Self { collated: by_type.then(TypeId::of::<D>), ..self }
    }

    /// True if the loader stacks the samples of dataset `D` by their type as soon as it gets them: no
    /// adaptor, no function of the program and no batch keeps one. A dataset may then return samples that
    /// refer to decoded data of many samples, and a stack that knows such samples copies many of them at
    /// once.
    ///
    /// Alternative considered: a method with which a dataset fills a whole batch. Rejected because each
    /// dataset would have to repeat what the loader does between two samples: bad samples, snapshots,
    /// cancelled tasks and progress.
    #[doc(hidden)]
    pub fn is_collated<D: 'static>(&self) -> bool {
        self.collated == Some(TypeId::of::<D>())
    }

    /// Makes [`is_collated`](Self::is_collated) return for dataset `I` what it returns for `O`. `O` calls it
    /// before it gets samples from its inner dataset `I`, if it returns them unchanged.
    #[doc(hidden)]
    pub fn pass_collated<O: 'static, I: 'static>(&mut self) {
        if self.is_collated::<O>() {
            self.collated = Some(TypeId::of::<I>());
        }
    }

    /// Runs `call`, which calls `get_many` of a dataset of type `D`. The returned flag is true if `D` has
    /// only the default `get_many`, which then has declined.
    pub(crate) fn probe_many<D: 'static, R>(&mut self, call: impl FnOnce(&mut Self) -> R) -> (R, bool) {
        let before = mem::replace(&mut self.many, Many::Probing(TypeId::of::<D>()));
        let result = call(self);
        let declined = mem::replace(&mut self.many, before) == Many::Declined;
        (result, declined)
    }

    /// True while a dataset of type `D` is probed. False for a dataset of another type that the `get_many` of
    /// `D` calls.
    pub(crate) fn is_probing<D: 'static>(&self) -> bool {
        self.many == Many::Probing(TypeId::of::<D>())
    }

    pub(crate) fn decline_many(&mut self) {
        self.many = Many::Declined;
    }

    /// Runs `call` with the sample's generator at its beginning. The returned flag is true if `call` has
    /// drawn from it, or from that of another layer, or has asked for the generator of the epoch.
    pub(crate) fn detect_draws<R>(&mut self, call: impl FnOnce(&mut Self) -> R) -> (R, bool) {
        let before = mem::take(self.has_drawn.get_mut());
        let result = self.with_restarted_rng(call);
        let has_drawn = mem::replace(self.has_drawn.get_mut(), before);
        *self.has_drawn.get_mut() |= has_drawn;
        (result, has_drawn)
    }

    /// Runs `call` for a dataset whose sample 0 is sample `first` of the calling dataset.
    pub(crate) fn with_offset<R>(&mut self, first: usize, call: impl FnOnce(&mut Self) -> R) -> R {
        self.offset += first;
        let result = call(self);
        self.offset -= first;
        result
    }

    /// Restarts the generator of the sample.
    pub(crate) fn restart_rng(&mut self) {
        if let Some(rng) = self.rng.take() {
            *self.has_drawn.get_mut() |= rng.get_word_pos() > 0;
        }
    }

    /// The worker that loads the sample, or `None` in the main process. Samples should not depend on the
    /// worker, because the speed of the workers decides which of them loads a sample.
    pub fn worker(&self) -> Option<&WorkerInfo> {
        self.worker.as_ref()
    }
}

/// A part of an iterable dataset that one worker reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shard {
    index: usize,
    count: usize,
}

impl Shard {
    /// Creates shard `index` of `count`, counted from 0.
    ///
    /// # Panics
    /// Panics if `index` is not below `count`.
    pub fn new(index: usize, count: usize) -> Self {
        assert!(index < count, "shard {index} of {count}: the index must be below the number of shards");
        Self { index, count }
    }

    /// Index of the shard, from 0.
    pub fn index(self) -> usize {
        self.index
    }

    /// Number of shards, at least 1.
    pub fn count(self) -> usize {
        self.count
    }

    /// Returns every [`count`](Self::count)-th of `items`, beginning with number [`index`](Self::index): the
    /// simplest way to give each sample to one shard.
    pub fn of<I: IntoIterator>(self, items: I) -> impl Iterator<Item = I::Item> + use<I> {
        items.into_iter().skip(self.index).step_by(self.count)
    }
}

#[cfg(test)]
mod tests {
    use rand::RngExt;
    use serde::{Deserialize, Serialize};

    use super::*;
    use crate::{DataLoader, Dataset, IterableDataset, Subset};

    /// Its samples tell whether the dataset is collated.
    #[derive(Serialize, Deserialize)]
    struct Collated;

    impl Dataset for Collated {
        type Sample = bool;

        fn len(&self) -> usize {
            1
        }

        fn get(&self, _index: usize, cx: &mut SampleContext) -> anyhow::Result<bool> {
            Ok(cx.is_collated::<Self>())
        }
    }

    #[derive(Serialize, Deserialize)]
    struct CollatedStream;

    impl IterableDataset for CollatedStream {
        type Sample = bool;

        fn iter(
            &self,
            _shard: Shard,
            cx: &mut SampleContext,
        ) -> anyhow::Result<impl Iterator<Item = anyhow::Result<bool>> + Send> {
            Ok(std::iter::once(Ok(cx.is_collated::<Self>())))
        }
    }

    #[test]
    fn only_the_outermost_dataset_without_functions_of_the_program_is_collated() {
        fn first<B: crate::data::collate::Batch>(loader: Result<DataLoader<B>, crate::Error>) -> B {
            loader.unwrap().iter().unwrap().next().unwrap().unwrap()
        }
        let keep = |samples: Vec<bool>| Ok(samples);
        assert_eq!(first(DataLoader::builder(Collated).build()).as_slice(), [true]);
        assert_eq!(first(DataLoader::stream(CollatedStream).shards(1).build()).as_slice(), [true]);
        let subset = Subset::new(Subset::new(Collated, [0]).unwrap(), [0]).unwrap();
        assert_eq!(first(DataLoader::builder(subset).build()).as_slice(), [true]);
        assert_eq!(first(DataLoader::builder(Collated.map(|it, _cx| Ok(it))).build()).as_slice(), [false]);
        assert_eq!(first(DataLoader::stream(CollatedStream.take(1)).shards(1).build()).as_slice(), [false]);
        assert_eq!(first(DataLoader::builder(Collated).collate(keep).build()), [false]);
        assert_eq!(first(DataLoader::stream(CollatedStream).shards(1).collate(keep).build()), [false]);
    }

    #[test]
    fn pass_collated_changes_only_the_context_of_a_collated_dataset() {
        let cx = || SampleContext::new(0);
        let (mut collated, mut other) =
            (cx().collated::<Collated>(true), cx().collated::<CollatedStream>(true));
        for cx in [&mut collated, &mut other] {
            // A second call, for the next sample, changes nothing.
            cx.pass_collated::<Collated, u8>();
            cx.pass_collated::<Collated, u8>();
        }
        assert!(collated.is_collated::<u8>() && !other.is_collated::<u8>());
        assert!(other.is_collated::<CollatedStream>());
    }

    fn drawn(cx: &SampleContext) -> u64 {
        cx.epoch_rng().random()
    }

    #[test]
    fn all_shards_and_samples_of_an_epoch_have_the_same_epoch_generator() {
        let shard = |epoch, index| SampleContext::for_shard(None, 7, epoch, Shard::new(index, 3));
        let mut first = shard(2, 0);
        let expected = drawn(&first);
        first.set_index(5);
        let _: u64 = first.rng().random();
        let others = [shard(2, 1), shard(2, 2), SampleContext::for_epoch(None, 7, 2), first];
        assert!(others.iter().all(|cx| drawn(cx) == expected));
        let different = [shard(3, 0), SampleContext::for_shard(None, 8, 2, Shard::new(0, 3))];
        assert!(different.iter().all(|cx| drawn(cx) != expected));
        assert_ne!(shard(2, 0).rng().random::<u64>(), expected, "the shard's own generator is another one");
    }

    #[test]
    fn parts_of_one_stream_have_the_same_epoch_generator_and_other_datasets_another() {
        let shard = Shard::new(0, 4);
        let cx = SampleContext::for_shard(None, 7, 0, shard);
        let own = cx.for_layer(1);
        let parts = [own.for_lane(0, 0, shard), own.for_lane(1, 0, Shard::new(2, 4))].map(|cx| drawn(&cx));
        assert_eq!(parts[0], parts[1]);
        let different = [drawn(&cx), drawn(&own), parts[0], drawn(&own.for_lane(2, 1, shard))];
        assert!((1..4).all(|at| !different[..at].contains(&different[at])), "{different:?}");
        let of_other_shard = SampleContext::for_shard(None, 7, 0, Shard::new(3, 4)).for_layer(1);
        assert_eq!(drawn(&of_other_shard.for_lane(0, 0, shard)), parts[0]);
    }
}
