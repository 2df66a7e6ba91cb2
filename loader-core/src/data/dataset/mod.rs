//! Datasets: map-style and iterable, and the ones that are made of other datasets.

/// Implements the methods that a dataset must pass on to the one in its field `dataset`, although they have
/// defaults. A dataset around another one calls it in its implementation of a trait of datasets. `loader-data` and
/// `loader-cli` call it too; it may change in any release.
#[doc(hidden)]
#[macro_export]
macro_rules! pass_on_to_inner {
    (adds_layers: $layers:literal) => {
        fn setup(&mut self, cx: &mut $crate::SampleContext) -> anyhow::Result<()> {
            self.dataset.setup(cx)
        }

        fn layers(&self) -> u8 {
            self.dataset.layers().wrapping_add($layers)
        }
    };
}

mod cached;
mod chain;
mod concat;
mod ends_shard;
mod error;
mod filter;
pub(crate) mod generator;
mod groups;
mod interleave;
mod iterable;
mod length_batches;
pub(crate) mod many;
mod map;
mod mix;
mod nested;
pub(crate) mod out_of_place;
mod pack;
mod reader;
mod shuffle_buffer;
mod snapshot;
mod stack;
mod stream;
mod subset;
mod take;
mod tensors;
#[cfg(test)]
mod testing;

use std::path::Path;

use loader_ipc::function::Function;
use serde::{Serialize, de::DeserializeOwned};

use crate::{
    data::{
        collate::TensorRow,
        context::{SampleContext, Shard},
        fingerprint::{hash, with_len},
        function::{MapFn, MapFnWith, Params, WithParams},
        sampler::{SplitError, random_split_by_counts, random_split_by_fractions},
    },
    options::Order,
};

pub use cached::{CacheError, CachePart, Cached};
pub use chain::ChainDataset;
pub use concat::{Concat, ConcatDataset};
pub use ends_shard::{EndsShard, Outage};
pub use error::ComposeError;
pub use filter::Filter;
pub use interleave::InterleaveDataset;
pub use iterable::IterableDataset;
pub use length_batches::{LengthBatch, LengthBatchesDataset};
pub use many::decline as get_one_by_one;
pub use map::Map;
pub use mix::MixDataset;
pub use pack::PackedDataset;
pub use shuffle_buffer::ShuffleBuffer;
pub use snapshot::{SnapshotDataset, SnapshotIterator};
pub use stack::StackDataset;
pub use stream::DatasetStream;
pub use subset::{Subset, SubsetError};
pub use take::Take;
pub use tensors::{TensorDataset, Tensors};

/// A dataset whose samples are numbered from 0 to [`len`](Self::len)` - 1`: PyTorch's map-style `Dataset`.
///
/// Each worker loads from a copy of the dataset, decoded from what `Serialize` wrote. Without workers
/// `build()` makes one such copy for the main process, so that the samples do not depend on the number of
/// workers. Keep the copy small: store paths and options, and put large tables into a
/// [`SharedVec`](crate::SharedVec) or a [`Tensor`](crate::Tensor), which all workers share.
///
/// A field marked `#[serde(skip)]` has its default value in every copy. Use it only for fields that
/// [`setup`](Self::setup) fills again, such as open files, maps and decoders. Never use it for data.
///
/// | PyTorch | here |
/// |---|---|
/// | `Dataset.__getitem__`, `__len__` | [`get`](Self::get), [`len`](Self::len) |
/// | `Dataset.__getitems__` | [`get_many`](Self::get_many) |
/// | `transform=...` | [`map`](Self::map), [`map_with`](Self::map_with) |
/// | `TensorDataset(x, y)` | [`TensorDataset::new((x, y))`](TensorDataset) |
/// | `StackDataset(a, b)` | [`StackDataset::new((a, b))`](StackDataset) |
/// | `StackDataset(a=a, b=b)` | [`StackDataset::new(BTreeMap)`](StackDataset) |
/// | `ConcatDataset([a, b])` | [`ConcatDataset::new([a, b])`](ConcatDataset) |
/// | `a + b` | [`a.concat(b)`](Self::concat) |
///
/// # Examples
/// ```
/// use loader_core::prelude::*;
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize)]
/// struct Squares {
///     count: usize,
/// }
///
/// impl Dataset for Squares {
///     type Sample = (u64, f32);
///
///     fn len(&self) -> usize {
///         self.count
///     }
///
///     fn get(&self, index: usize, _cx: &mut SampleContext) -> anyhow::Result<Self::Sample> {
///         Ok((index as u64, (index * index) as f32))
///     }
/// }
///
/// let loader = DataLoader::builder(Squares { count: 10 }).batch_size(4).build()?;
/// let (numbers, squares) = loader.iter()?.next().unwrap()?;
/// assert_eq!(numbers.as_slice(), [0, 1, 2, 3]);
/// assert_eq!(squares.as_slice(), [0.0, 1.0, 4.0, 9.0]);
/// # anyhow::Ok(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a map-style dataset",
    label = "it does not implement `Dataset`",
    note = "implement `Dataset` (and derive `Serialize` and `Deserialize`) for it; an `IterableDataset` is loaded with `DataLoader::stream(...)`"
)]
pub trait Dataset: Serialize + DeserializeOwned + Send + Sync + 'static {
    /// One sample. Its type decides how a batch is collated, see [`Sample`](crate::Sample).
    type Sample: Send + 'static;

    /// Number of samples.
    fn len(&self) -> usize;

    /// True if there are no samples.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns sample `index`, which is below [`len`](Self::len).
    ///
    /// # Errors
    /// Any error fails the batch that contains the sample, and no other batch. A panic does the same.
    fn get(&self, index: usize, cx: &mut SampleContext) -> anyhow::Result<Self::Sample>;

    /// Returns the samples `indices`, in that order: PyTorch's `__getitems__`. Override it if the dataset
    /// reads several samples together at lower cost; the default calls [`get`](Self::get) for each index.
    /// Call [`SampleContext::set_index`] for each sample before you use its generator.
    ///
    /// # Errors
    /// As for [`get`](Self::get). The batch also fails if the number of returned samples differs from the
    /// number of indices.
    fn get_many(&self, indices: &[usize], cx: &mut SampleContext) -> anyhow::Result<Vec<Self::Sample>> {
        many::decline(self, indices, cx)
    }

    /// Opens what is not serialised. Runs once before the first sample, in each process that loads: in each
    /// worker, or in the main process if there are no workers.
    ///
    /// # Errors
    /// An error fails every batch of that process.
    fn setup(&mut self, cx: &mut SampleContext) -> anyhow::Result<()> {
        let _ = cx;
        Ok(())
    }

    /// Returns a text that identifies which sample is at which index, for example the version of the files or
    /// an option that selects some of them. `"dataset"` by default.
    ///
    /// Each [`State`](crate::State) contains the fingerprint, and a loader refuses a state with a different
    /// one. The text must be the same in every build of the program. If it is longer than 200 bytes, the
    /// state contains its beginning and a hash of the whole. It need not contain the number of samples, which
    /// the loader compares separately.
    fn fingerprint(&self) -> String {
        "dataset".to_owned()
    }

    /// Number of layers above the innermost dataset that have a generator of their own. Each
    /// [`map`](Self::map) adds one.
    #[doc(hidden)]
    fn layers(&self) -> u8 {
        0
    }

    /// Passes every sample through `function`, in the process that loads the sample. `function` draws random
    /// numbers from [`SampleContext::rng`]. If it needs parameters, use [`map_with`](Self::map_with): a
    /// closure that captures something does not compile.
    ///
    /// ```compile_fail,E0308
    /// # use loader_core::prelude::*;
    /// # let dataset = TensorDataset::new(Tensor::from_slice(&[1.0_f32], [1])?)?;
    /// let mean = 2.0_f32;
    /// dataset.map(|row, _cx| Ok(row[0] - mean)); // `mean` is captured: use `map_with`
    /// # anyhow::Ok(())
    /// ```
    // The compiler shows the next line in its error about a closure that captures something.
    fn map<S: Send + 'static /* to capture, use `map_with` */>(
        self,
        function: fn(Self::Sample, &mut SampleContext) -> anyhow::Result<S>,
    ) -> Map<Self, MapFn<Self::Sample, S>>
    where
        Self: Sized,
    {
        Map::new(self, Function::new(function))
    }

    /// Passes every sample through `function` together with a reference to `params`: values that are known
    /// only at run time, such as a mean. The loader sends the parameters to the workers with the dataset.
    /// They can have any serde type that bincode can encode.
    ///
    /// # Examples
    /// ```
    /// use loader_core::prelude::*;
    ///
    /// let (mean, scale) = (2.0_f32, 10.0_f32); // known only at run time
    /// let rows = TensorDataset::new(Tensor::from_slice(&[1.0_f32, 2.0, 3.0], [3])?)?;
    /// let dataset = rows.map_with((mean, scale), |(mean, scale), row, _cx| Ok((row[0] - mean) * scale));
    /// let loader = DataLoader::builder(dataset).batch_size(3).build()?;
    /// assert_eq!(loader.iter()?.next().unwrap()?.as_slice(), [-10.0, 0.0, 10.0]);
    /// # anyhow::Ok(())
    /// ```
    fn map_with<P: Params, S: Send + 'static>(
        self,
        params: P,
        function: fn(&P, Self::Sample, &mut SampleContext) -> anyhow::Result<S>,
    ) -> Map<Self, MapFnWith<P, Self::Sample, S>>
    where
        Self: Sized,
    {
        Map::new(self, WithParams::new(params, function))
    }

    /// Keeps the samples in files in `folder`, so that each is computed once: in the first epoch, by the
    /// worker that loads it. Later epochs, and other programs that use the folder at any time, read it. Use
    /// it after an expensive stage without random numbers, such as decoding and scaling, and draw random
    /// numbers in a [`map`](Self::map) after it.
    ///
    /// The cache belongs to one `version`, type of samples, [`len`](Self::len) and [`fingerprint`](Self::fingerprint),
    /// and refuses another. Before a process uses the cache, it computes one of the samples that are stored, and
    /// compares the two. A change of a few samples may remain unnoticed: change the version when you change the files,
    /// the fields of the type, or the code or the options of a stage, such as the transform of images. A sample must
    /// not depend on the epoch, the worker or the machine.
    ///
    /// A process may be killed at any time: a sample is complete or absent. A damaged sample is absent. If a
    /// sample cannot be written, for example because the disk is full, the process prints a warning, and
    /// computes samples that are not in the cache. The files are as large as the encoded samples, and this
    /// method never removes them. Samples of any type that bincode can encode can be cached.
    ///
    /// # Errors
    /// Returns [`CacheError::Differs`] if the folder has the cache of another dataset or version,
    /// [`CacheError::NotACache`] if its index is damaged, and [`CacheError::System`] if the files cannot be
    /// opened or made. A sample that draws from [`SampleContext::rng`] or [`SampleContext::epoch_rng`] fails
    /// with [`CacheError::RandomSample`]. If the stored sample that a process
    /// compares differs from that of the dataset, each of its samples fails with [`CacheError::OtherSample`].
    ///
    /// # Examples
    /// ```
    /// use loader_core::{prelude::*, rand::RngExt};
    ///
    /// let folder = tempfile::tempdir()?;
    /// let numbers = TensorDataset::new(Tensor::from_slice(&[1.0_f32, 2.0, 3.0], [3])?)?;
    /// let roots = numbers.map(|row, _cx| Ok(row[0].sqrt())); // the expensive stage
    /// let dataset = roots
    ///     .cached(folder.path(), "1")?
    ///     .map(|root, cx| Ok(root + cx.rng().random_range(-0.1..0.1_f32))); // new numbers in each epoch
    /// let loader = DataLoader::builder(dataset).batch_size(3).build()?;
    /// for epoch in 0..2 {
    ///     let roots = loader.epoch(epoch)?.next().unwrap()?;
    ///     assert!((roots.as_slice()[2] - 1.7).abs() < 0.2);
    /// }
    /// # anyhow::Ok(())
    /// ```
    fn cached(self, folder: impl AsRef<Path>, version: &str) -> Result<Cached<Self>, CacheError>
    where
        Self: Sized,
        Self::Sample: Serialize + DeserializeOwned,
    {
        Cached::new(self, folder.as_ref(), version)
    }

    /// Concatenates this dataset and `other`: PyTorch's `+`. Calls can be chained: `a.concat(b).concat(c)`.
    /// For a list of datasets of one type see [`ConcatDataset`].
    fn concat<D>(self, other: D) -> Concat<Self, D>
    where
        Self: Sized,
        D: Dataset<Sample = Self::Sample>,
    {
        Concat::new(self, other)
    }

    /// Reads the dataset as a stream, so that it can be mixed with streams or packed. Each shard reads every
    /// `count`-th sample, and a resumed run opens the stream at its position. [`get_many`](Self::get_many) is
    /// not used. The generator of a sample differs from that in a map-style loader. An error that is marked with
    /// [`Outage`](crate::Outage) ends the shard, see [`EndsShard`].
    ///
    /// # Examples
    /// ```
    /// use loader_core::prelude::*;
    ///
    /// let rows = TensorDataset::new(Tensor::<i64>::from_vec((0..6).collect(), [6])?)?;
    /// let loader = DataLoader::stream(rows.into_stream()).shards(2).batch_size(3).build()?;
    /// assert_eq!(loader.iter()?.next().unwrap()?.as_slice(), [0, 2, 4]);
    /// # anyhow::Ok(())
    /// ```
    fn into_stream(self) -> DatasetStream<Self>
    where
        Self: Sized,
    {
        DatasetStream::new(self)
    }

    /// Splits the dataset at random into parts of `counts[0]`, `counts[1]`, ... samples: PyTorch's
    /// `random_split` with lengths. Each part has a clone of the dataset. Clones of a
    /// [`SharedVec`](crate::SharedVec) or a [`Tensor`](crate::Tensor) share their data.
    ///
    /// # Errors
    /// Returns [`SplitError::WrongSum`] if the counts do not sum to [`len`](Self::len).
    fn random_split_by_counts(
        self,
        counts: &[usize],
        seed: u64,
        order: Order,
    ) -> Result<Vec<Subset<Self>>, SplitError>
    where
        Self: Clone,
    {
        let parts = random_split_by_counts(self.len(), counts, seed, order)?;
        Ok(subset::parts(&self, parts))
    }

    /// Splits the dataset at random into parts that have the given `fractions` of the samples, rounded as by
    /// [`random_split_by_fractions`]. Each part has a clone of the dataset.
    ///
    /// # Errors
    /// Returns [`SplitError::InvalidFraction`] if a fraction is not between 0 and 1, and
    /// [`SplitError::WrongFractionSum`] if the fractions do not sum to 1.
    fn random_split_by_fractions(
        self,
        fractions: &[f64],
        seed: u64,
        order: Order,
    ) -> Result<Vec<Subset<Self>>, SplitError>
    where
        Self: Clone,
    {
        let parts = random_split_by_fractions(self.len(), fractions, seed, order)?;
        Ok(subset::parts(&self, parts))
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    /// A dataset whose `setup` fails, so that a test can see that it was called.
    #[derive(Clone, Serialize, Deserialize)]
    struct Probe;

    const LAYERS: u8 = 3;

    macro_rules! probe {
        ($trait:ident, $len:ty, $value:expr, $($load:tt)*) => {
            impl $trait for Probe {
                type Sample = u64;

                $($load)*

                fn len(&self) -> $len {
                    $value
                }

                fn setup(&mut self, _cx: &mut SampleContext) -> anyhow::Result<()> {
                    anyhow::bail!("setup was called")
                }

                fn fingerprint(&self) -> String {
                    "probe".to_owned()
                }

                fn layers(&self) -> u8 {
                    LAYERS
                }
            }
        };
    }

    probe! { Dataset, usize, 10,
        fn get(&self, index: usize, _cx: &mut SampleContext) -> anyhow::Result<u64> {
            Ok(index as u64)
        }
    }

    probe! { IterableDataset, Option<usize>, Some(10),
        fn iter(
            &self,
            shard: Shard,
            _cx: &mut SampleContext,
        ) -> anyhow::Result<impl Iterator<Item = anyhow::Result<u64>> + Send> {
            Ok(shard.of(0..10).map(Ok))
        }
    }

    /// Checks that a dataset made of [`Probe`]s passes on `setup`, the fingerprint and the layers. `$layers`:
    /// number of layers that it adds.
    macro_rules! check {
        ($trait:ident, $dataset:expr, layers: $layers:expr, len: $len:expr) => {{
            let mut dataset = $dataset;
            let name = stringify!($dataset);
            let error = $trait::setup(&mut dataset, &mut SampleContext::new(0)).unwrap_err();
            assert_eq!(error.root_cause().to_string(), "setup was called", "{name}");
            assert!($trait::fingerprint(&dataset).contains("probe"), "{name}");
            assert_eq!($trait::layers(&dataset), LAYERS + $layers, "{name}");
            assert_eq!($trait::len(&dataset), $len, "{name}");
        }};
    }

    #[test]
    fn datasets_made_of_others_pass_on_what_has_a_default() {
        check!(Dataset, Dataset::map(Probe, |number, _cx| Ok(number)), layers: 1, len: 10);
        check!(Dataset, Subset::new(Probe, [1, 2]).unwrap(), layers: 0, len: 2);
        check!(Dataset, Probe.concat(Probe), layers: 0, len: 20);
        check!(Dataset, ConcatDataset::new([Probe, Probe]).unwrap(), layers: 0, len: 20);
        check!(Dataset, StackDataset::new((Probe, Probe)).unwrap(), layers: 0, len: 10);
        check!(IterableDataset, IterableDataset::map(Probe, |n, _cx| Ok(n)), layers: 1, len: Some(10));
        check!(IterableDataset, Probe.filter(|_, _cx| Ok(true)), layers: 1, len: None);
        check!(IterableDataset, Probe.take(5), layers: 0, len: Some(5));
        check!(IterableDataset, Probe.chain(Probe), layers: LAYERS + 1, len: Some(20));
        check!(IterableDataset, Probe.interleave(2), layers: 1, len: Some(10));
        check!(IterableDataset, Probe.shuffle_buffer(4), layers: 1, len: Some(10));
        check!(IterableDataset, Probe.length_batches(9, 4, |_| 1).unwrap(), layers: 1, len: None);
    }
}
