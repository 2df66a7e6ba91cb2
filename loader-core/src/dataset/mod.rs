//! Where samples come from.

mod map;
mod subset;

use serde::{Serialize, de::DeserializeOwned};

use crate::{
    context::Context,
    options::Order,
    sampler::{SplitError, random_split_by_counts, random_split_by_fractions},
};

pub use map::Map;
pub use subset::{Subset, SubsetError};

/// A dataset whose samples are numbered from 0 to [`len`](Self::len)` - 1`: PyTorch's map-style `Dataset`.
///
/// Each worker gets its own copy, decoded from what `Serialize` wrote. Keep the copy small: paths and options, and large tables
/// in a [`SharedVec`](crate::SharedVec), which all workers share. Open files, maps and decoders belong into
/// [`setup`](Self::setup), in fields marked `#[serde(skip)]`.
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
    /// As [`get`](Self::get).
    fn get_many(&self, indices: &[usize], cx: &mut Context) -> anyhow::Result<Vec<Self::Sample>> {
        if cx.is_probing() {
            cx.decline_many();
            return Ok(Vec::new());
        }
        let load = |&index| {
            cx.set_index(index);
            self.get(index, cx)
        };
        indices.iter().map(load).collect()
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

    /// Passes every sample through `function`, which also runs where the sample is loaded. It must not capture anything: what it
    /// needs belongs into the dataset, or is drawn from [`Context::rng`].
    fn map<S, F>(self, function: F) -> Map<Self, F, S>
    where
        Self: Sized,
        S: Send + 'static,
        F: Fn(Self::Sample, &mut Context) -> anyhow::Result<S> + Copy + Send + Sync + 'static,
    {
        Map::new(self, function)
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
