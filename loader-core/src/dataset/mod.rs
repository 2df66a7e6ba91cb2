//! Where samples come from.

mod chain;
mod concat;
mod error;
mod filter;
mod fingerprint;
pub(crate) mod generator;
mod interleave;
mod iterable;
pub(crate) mod many;
mod map;
mod nested;
mod shuffle_buffer;
mod snapshot;
mod stack;
mod subset;
mod take;
mod tensor_row;
mod tensors;
#[cfg(test)]
mod testing;

use loader_ipc::function::Function;
use serde::{Serialize, de::DeserializeOwned};

use crate::{
    context::Context,
    function::{MapFn, MapFnWith, Params, WithParams},
    options::Order,
    sampler::{SplitError, random_split_by_counts, random_split_by_fractions},
};

pub use chain::ChainDataset;
pub use concat::{Concat, ConcatDataset};
pub use error::ComposeError;
pub use filter::Filter;
pub(crate) use fingerprint::{hash, with_len};
pub use interleave::InterleaveDataset;
pub use iterable::{IterableDataset, Shard};
pub use map::Map;
pub(crate) use nested::NotOpened;
pub use shuffle_buffer::ShuffleBuffer;
pub use snapshot::{SnapshotDataset, SnapshotIterator};
pub use stack::{Parts, StackDataset};
pub use subset::{Subset, SubsetError};
pub use take::Take;
pub use tensor_row::TensorRow;
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
///     fn get(&self, index: usize, _cx: &mut Context) -> anyhow::Result<Self::Sample> {
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

    /// True when there are no samples.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Sample `index`, which is below [`len`](Self::len).
    ///
    /// # Errors
    /// Any error fails the batch that the sample is for, and that batch only. A panic does the same.
    fn get(&self, index: usize, cx: &mut Context) -> anyhow::Result<Self::Sample>;

    /// The samples `indices`, in that order: PyTorch's `__getitems__`, for datasets that read many at once more cheaply. Call
    /// [`Context::set_index`] before using the generator for each of them. Where it is not overridden, it calls [`get`](Self::get)
    /// for each index.
    ///
    /// # Errors
    /// As [`get`](Self::get). To return more or fewer samples than were asked for is an error too, and fails the batch.
    fn get_many(&self, indices: &[usize], cx: &mut Context) -> anyhow::Result<Vec<Self::Sample>> {
        many::decline(self, indices, cx)
    }

    /// Opens what is not serialised. Runs once in each process that loads (each worker; the main process when there are none),
    /// before the first sample.
    ///
    /// # Errors
    /// An error fails every batch of that process.
    fn setup(&mut self, cx: &mut Context) -> anyhow::Result<()> {
        let _ = cx;
        Ok(())
    }

    /// A text that tells which sample is at which index, for example the version of the files or an option
    /// that selects some of them. The number of samples is compared anyway. Each [`State`](crate::State)
    /// holds the fingerprint, and a loader refuses a state with another one. The text must not change from
    /// build to build. Of a text of more than 200 bytes the end is hashed. `"dataset"` by default.
    fn fingerprint(&self) -> String {
        "dataset".to_owned()
    }

    /// Layers of functions around it that draw from generators of their own.
    #[doc(hidden)]
    fn layers(&self) -> u8 {
        0
    }

    /// Passes every sample through `function`, which also runs where the sample is loaded. It captures nothing; see
    /// [`map_with`](Self::map_with) for one that needs parameters. Random numbers come from [`Context::rng`].
    ///
    /// A closure that captures something does not compile:
    /// ```compile_fail,E0308
    /// # use loader_core::prelude::*;
    /// # let dataset = TensorDataset::new(Tensor::from_slice(&[1.0_f32], [1])?)?;
    /// let mean = 2.0_f32;
    /// dataset.map(|row, _cx| Ok(row[0] - mean)); // `mean` is captured: use `map_with`
    /// # anyhow::Ok(())
    /// ```
    // The compiler shows the next line where a closure captures something.
    fn map<S: Send + 'static /* to capture, use `map_with` */>(
        self,
        function: fn(Self::Sample, &mut Context) -> anyhow::Result<S>,
    ) -> Map<Self, MapFn<Self::Sample, S>>
    where
        Self: Sized,
    {
        Map::new(self, Function::new(function))
    }

    /// Passes every sample through `function`, which gets `params` by reference: values that are known only
    /// at run time, such as a mean. The parameters are sent to the workers with the dataset; they can be of
    /// any serde type that bincode can encode.
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
        function: fn(&P, Self::Sample, &mut Context) -> anyhow::Result<S>,
    ) -> Map<Self, MapFnWith<P, Self::Sample, S>>
    where
        Self: Sized,
    {
        Map::new(self, WithParams::new(params, function))
    }

    /// This dataset and then `other`, as `+` does in PyTorch. It can be repeated: `a.concat(b).concat(c)`. For a list of datasets of
    /// one type see [`ConcatDataset`].
    fn concat<D>(self, other: D) -> Concat<Self, D>
    where
        Self: Sized,
        D: Dataset<Sample = Self::Sample>,
    {
        Concat::new(self, other)
    }

    /// Splits at random into parts of `counts[0]`, `counts[1]`, ... samples, each with a clone of the dataset: PyTorch's
    /// `random_split` with lengths. Clones of a [`SharedVec`](crate::SharedVec) or a [`Tensor`](crate::Tensor) share their data.
    ///
    /// # Errors
    /// [`SplitError::WrongSum`] when the counts do not sum to [`len`](Self::len).
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

    /// The same with parts of `fractions[0]`, `fractions[1]`, ... of the samples, as [`random_split_by_fractions`] rounds them.
    ///
    /// # Errors
    /// [`SplitError::InvalidFraction`] when a fraction is not between 0 and 1, [`SplitError::WrongFractionSum`] when they do not sum
    /// to 1.
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
