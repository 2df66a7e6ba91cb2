//! Iterable datasets.
//!
//! This module and those of the datasets that it composes import each other, as `Iterator` and its adapters
//! do in the standard library: the trait's methods return these datasets, and these datasets implement the
//! trait.

use std::iter;

use loader_ipc::function::Function;
use serde::{Serialize, de::DeserializeOwned};

use super::{
    ChainDataset, Filter, InterleaveDataset, LengthBatchesDataset, Map, PackedDataset, ShuffleBuffer, Take,
};
use crate::data::{
    context::{SampleContext, Shard},
    function::{FilterFn, FilterFnWith, MapFn, MapFnWith, Params, WithParams},
    pack::{PackError, Packing, TokenSequence},
    sampler::{LengthError, TokenBudget},
};

/// A dataset that is read from its beginning to its end: PyTorch's `IterableDataset`. Use it for logs,
/// archives, sockets and other sources without cheap access by index.
///
/// The loader reads the dataset in shards, each by one worker, and passes the shard to [`iter`](Self::iter).
/// In PyTorch, a dataset that does not split itself among the workers gives every sample once per worker. All
/// samples of a batch come from one shard, and the loader takes a batch from each shard in turn.
///
/// # Examples
/// ```
/// use loader_core::prelude::*;
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize)]
/// struct Lines(Vec<String>);
///
/// impl IterableDataset for Lines {
///     type Sample = (u64, String);
///
///     fn iter(
///         &self,
///         shard: Shard,
///         _cx: &mut SampleContext,
///     ) -> anyhow::Result<impl Iterator<Item = anyhow::Result<Self::Sample>>> {
///         let numbered = self.0.iter().zip(0u64..).map(|(line, number)| Ok((number, line.clone())));
///         Ok(shard.of(numbered))
///     }
/// }
///
/// let lines = Lines(["a", "b", "c", "d", "e"].map(String::from).into());
/// let loader = DataLoader::stream(lines).shards(2).batch_size(2).build()?;
/// let batches: Vec<_> = loader.iter()?.map(|batch| batch.map(|(_, lines)| lines)).collect::<Result<_, _>>()?;
/// assert_eq!(batches, [vec!["a", "c"], vec!["b", "d"], vec!["e"]]);
/// # anyhow::Ok(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an iterable dataset",
    label = "it does not implement `IterableDataset`",
    note = "implement `IterableDataset` (and derive `Serialize` and `Deserialize`) for it; a map-style `Dataset` is loaded with `DataLoader::builder(...)`"
)]
pub trait IterableDataset: Serialize + DeserializeOwned + Send + Sync + 'static {
    /// One sample. Its type decides how a batch is collated, see [`Sample`](crate::Sample).
    type Sample: Send + 'static;

    /// Returns the samples of `shard`. Each sample belongs to one shard only. Two calls for the same shard
    /// and epoch must return the same samples; draw random numbers from [`SampleContext::rng`], which here is
    /// the generator of the shard.
    ///
    /// # Errors
    /// The loader reports an error in place of the shard's next batch, and ends the shard for this epoch. A
    /// run that is resumed after the error opens the shard again. The same holds if [`chain`](Self::chain) or
    /// [`InterleaveDataset`] fails to open a stream in the middle of a shard, and if an item is an error with
    /// the context [`EndsShard`](crate::EndsShard).
    ///
    /// Any other item that is an error fails the batch that it would be in, and the stream continues after
    /// it. A panic ends the shard.
    fn iter(
        &self,
        shard: Shard,
        cx: &mut SampleContext,
    ) -> anyhow::Result<impl Iterator<Item = anyhow::Result<Self::Sample>> + Send>;

    /// Returns the items of `shard` after the first `position` items, or `None` if the dataset does not
    /// support this. Implement it for a dataset that can reach a position without reading the items before
    /// it; the default returns `None`.
    ///
    /// The loader opens a shard in its middle when a run is resumed and when the worker that read the shard
    /// has died. Without this method, it reads the shard again from the beginning and drops the items before
    /// the position. If workers are killed repeatedly, they then never get further than one worker can read
    /// before it is killed. A dataset that does not know where an item with a given number starts can
    /// implement [`SnapshotDataset`](crate::SnapshotDataset) instead.
    ///
    /// The items must be those that [`iter`](Self::iter) returns after that position. Items that are errors
    /// count. [`SampleContext::rng`] starts at its beginning here, so a dataset that draws from it for each
    /// item cannot implement this method. An implementation that returns `None` must not have drawn from the
    /// generator.
    ///
    /// # Errors
    /// As for [`iter`](Self::iter).
    ///
    /// # Examples
    /// ```
    /// use loader_core::prelude::*;
    /// use serde::{Deserialize, Serialize};
    ///
    /// #[derive(Serialize, Deserialize)]
    /// struct Lines(Vec<String>);
    ///
    /// impl IterableDataset for Lines {
    ///     type Sample = String;
    ///
    ///     fn iter(
    ///         &self,
    ///         shard: Shard,
    ///         _cx: &mut SampleContext,
    ///     ) -> anyhow::Result<impl Iterator<Item = anyhow::Result<String>>> {
    ///         Ok(shard.of(&self.0).map(|line| Ok(line.clone())))
    ///     }
    ///
    ///     fn iter_at(
    ///         &self,
    ///         shard: Shard,
    ///         position: u64,
    ///         _cx: &mut SampleContext,
    ///     ) -> anyhow::Result<Option<impl Iterator<Item = anyhow::Result<String>>>> {
    ///         Ok(Some(shard.of(&self.0).skip(position as usize).map(|line| Ok(line.clone()))))
    ///     }
    /// }
    ///
    /// let lines = Lines(["a", "b", "c", "d"].map(String::from).into());
    /// let mut cx = SampleContext::new(0);
    /// let rest = lines.iter_at(Shard::new(0, 2), 1, &mut cx)?.unwrap();
    /// assert_eq!(rest.collect::<Result<Vec<_>, _>>()?, ["c"]);
    /// # anyhow::Ok(())
    /// ```
    fn iter_at(
        &self,
        shard: Shard,
        position: u64,
        cx: &mut SampleContext,
    ) -> anyhow::Result<Option<impl Iterator<Item = anyhow::Result<Self::Sample>> + Send>> {
        let _ = (shard, position, cx);
        Ok(None::<iter::Empty<_>>)
    }

    /// Number of samples in all shards together, or `None` (the default) if it is not known.
    /// [`DataLoader::len`](crate::DataLoader::len) is computed from it. The loader warns if the stream is
    /// longer.
    fn len(&self) -> Option<usize> {
        None
    }

    /// True if the dataset is known to have no samples.
    fn is_empty(&self) -> bool {
        self.len() == Some(0)
    }

    /// Opens what is not serialised, as [`Dataset::setup`](crate::Dataset::setup) does.
    ///
    /// # Errors
    /// An error fails every batch of that process.
    fn setup(&mut self, cx: &mut SampleContext) -> anyhow::Result<()> {
        let _ = cx;
        Ok(())
    }

    /// Returns a text that identifies which samples a shard has and in which order, for example the version
    /// of the files or an option that selects some of them. `"stream"` by default. The rules
    /// of [`Dataset::fingerprint`](crate::Dataset::fingerprint) hold.
    fn fingerprint(&self) -> String {
        "stream".to_owned()
    }

    /// Number of layers above the innermost dataset that have generators of their own. Each
    /// [`map`](Self::map), [`filter`](Self::filter), [`shuffle_buffer`](Self::shuffle_buffer) and
    /// [`interleave`](Self::interleave) adds one; [`chain`](Self::chain) adds one and the layers of its
    /// second dataset.
    #[doc(hidden)]
    fn layers(&self) -> u8 {
        0
    }

    /// Passes every sample through `function`, in the process that loads the sample. Its
    /// [`SampleContext::rng`] depends on the sample's position in the shard. If `function` needs parameters,
    /// use [`map_with`](Self::map_with): a closure that captures something does not compile.
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

    /// Passes every sample through `function` together with a reference to `params`, as
    /// [`Dataset::map_with`](crate::Dataset::map_with) does.
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

    /// Leaves out the samples for which `function` returns false. The result has no known length. The
    /// function's [`SampleContext::rng`] depends on the sample's position in the shard of this dataset. If
    /// `function` needs parameters, use [`filter_with`](Self::filter_with): a closure that captures something
    /// does not compile.
    ///
    /// # Examples
    /// ```
    /// # use loader_core::prelude::*;
    /// # #[derive(serde::Serialize, serde::Deserialize)]
    /// # struct Numbers(u64);
    /// # impl IterableDataset for Numbers {
    /// #     type Sample = u64;
    /// #     fn iter(&self, shard: Shard, _cx: &mut SampleContext) -> anyhow::Result<impl Iterator<Item = anyhow::Result<u64>> + Send> {
    /// #         Ok(shard.of(0..self.0).map(Ok))
    /// #     }
    /// # }
    /// let odd = Numbers(10).filter(|number, _cx| Ok(number % 2 == 1));
    /// let loader = DataLoader::stream(odd).batch_size(5).build()?;
    /// assert_eq!(loader.iter()?.next().unwrap()?.as_slice(), [1, 3, 5, 7, 9]);
    /// # anyhow::Ok(())
    /// ```
    // The compiler shows the line of the name in its error about a closure that captures something.
    #[rustfmt::skip]
    fn filter( // to capture, use `filter_with`
        self,
        function: fn(&Self::Sample, &mut SampleContext) -> anyhow::Result<bool>,
    ) -> Filter<Self, FilterFn<Self::Sample>>
    where
        Self: Sized,
    {
        Filter::new(self, Function::new(function))
    }

    /// Leaves out the samples for which `function` returns false. The function gets a reference to `params`.
    fn filter_with<P: Params>(
        self,
        params: P,
        function: fn(&P, &Self::Sample, &mut SampleContext) -> anyhow::Result<bool>,
    ) -> Filter<Self, FilterFnWith<P, Self::Sample>>
    where
        Self: Sized,
    {
        Filter::new(self, WithParams::new(params, function))
    }

    /// Takes at most `count` samples from all shards together. Each shard gives an equal share from its
    /// beginning; if `count` is not a multiple of the number of shards, the first shards give one sample
    /// more. A shard that has fewer samples than its share gives all of them. With one shard the result is
    /// the first `count` samples. An item that is an error counts as a sample.
    fn take(self, count: usize) -> Take<Self>
    where
        Self: Sized,
    {
        Take::new(self, count)
    }

    /// Reads `next` after this dataset, in each shard: PyTorch's `ChainDataset`.
    fn chain<D: IterableDataset<Sample = Self::Sample>>(self, next: D) -> ChainDataset<Self, D>
    where
        Self: Sized,
    {
        ChainDataset::new(self, next)
    }

    /// Splits each shard into `parts` parts, which are all open at the same time and give one sample each in
    /// turn. Shard `i` of `n` is read as the shards `i`, `n + i`, `2n + i`, ... of `parts * n`. If a shard of
    /// the dataset consists of whole files, this mixes the samples of `parts` files.
    ///
    /// # Panics
    /// Panics if `parts` is 0.
    fn interleave(self, parts: usize) -> InterleaveDataset<Self>
    where
        Self: Sized,
    {
        InterleaveDataset::of_parts(self, parts)
    }

    /// Shuffles the samples of each shard within a buffer of `size` samples: each step returns a random
    /// sample of the buffer and puts the next sample of the stream into its place. The order depends only on
    /// the seed, the epoch and the shard.
    ///
    /// With [`snapshots`](crate::Builder::snapshots), a snapshot has 4 bytes for each sample in the buffer. A
    /// resumed stream reads the samples that were in the buffer again: with a buffer of 1,000 samples about
    /// the last 7,000 samples of the shard. Apply slow functions after the buffer
    /// (`.shuffle_buffer(1000).map(decode)`), so that they do not run again.
    ///
    /// # Panics
    /// Panics if `size` is 0.
    fn shuffle_buffer(self, size: usize) -> ShuffleBuffer<Self>
    where
        Self: Sized,
    {
        ShuffleBuffer::new(self, size)
    }

    /// Puts samples of similar length into batches with at most `budget` tokens, padding included, in each
    /// shard: collects `look_ahead` samples, cuts them as [`LengthBatches`](crate::sampler::LengthBatches)
    /// does, and gives the batches in random order before it reads on. `budget` is a [`TokenBudget`], or the
    /// maximum number of tokens; `len` returns the number of tokens of a sample. Each sample of the result is a
    /// whole batch, so that the loader must be [`unbatched`](crate::Builder::unbatched). A sample that is
    /// longer than the budget allows is the error [`LengthError::TooLong`], as a bad sample.
    ///
    /// # Errors
    /// Returns [`LengthError::Zero`] if `look_ahead` is 0, and this or [`LengthError::UnorderedBoundaries`]
    /// if the budget is invalid.
    ///
    /// # Examples
    /// ```
    /// use loader_core::{collate::Ragged, prelude::*};
    ///
    /// let rows = TensorDataset::new(Tensor::<i64>::from_vec((0..6).collect(), [6])?)?;
    /// // Documents of 6, 5, 4, 3, 2 and 1 tokens.
    /// let documents = rows.map(|row, _cx| Ok(Ragged::new(vec![row[0]; 6 - row[0] as usize]))).into_stream();
    /// let batches = documents.length_batches(12, 1000, |document| document.row().len())?;
    /// let loader = DataLoader::stream(batches).unbatched().build()?;
    /// let mut shapes = Vec::new();
    /// for batch in loader.iter()? {
    ///     shapes.push(batch?.values.shape().to_vec());
    /// }
    /// shapes.sort();
    /// assert_eq!(shapes, [[1, 6], [2, 5], [3, 3]]);
    /// # anyhow::Ok(())
    /// ```
    fn length_batches(
        self,
        budget: impl Into<TokenBudget>,
        look_ahead: usize,
        len: fn(&Self::Sample) -> usize,
    ) -> Result<LengthBatchesDataset<Self>, LengthError>
    where
        Self: Sized,
    {
        LengthBatchesDataset::new(self, budget.into(), look_ahead, len)
    }

    /// Packs documents, which are sequences of tokens, into windows of one length, in each shard. Empty
    /// documents are left out. A batch is a [`PackedBatch`](crate::pack::PackedBatch): tokens, positions and
    /// segments of shape `[B, window]`, and `cu_seqlens`. The module [`pack`](crate::pack) describes the
    /// methods.
    ///
    /// # Errors
    /// Returns a [`PackError`] if the window or `look_ahead` is 0, or if the type of the tokens cannot hold
    /// the positions in a window or the padding token.
    ///
    /// # Examples
    /// ```
    /// use loader_core::{pack::{PackMethod, Packing}, prelude::*};
    ///
    /// let rows = TensorDataset::new(Tensor::<i64>::from_vec((0..6).collect(), [6])?)?;
    /// // Documents of 1, 2, 3, 4, 5 and 6 tokens.
    /// let documents = rows.map(|row, _cx| Ok(vec![row[0]; row[0] as usize + 1])).into_stream();
    /// let packed = documents.pack(Packing::new(7).method(PackMethod::BestFit).pad(-1))?;
    /// let loader = DataLoader::stream(packed).batch_size(3).build()?;
    /// let batch = loader.iter()?.next().unwrap()?;
    /// assert_eq!(batch.tokens.row(0), [0, 5, 5, 5, 5, 5, 5]);
    /// assert_eq!(batch.positions.row(0), [0, 0, 1, 2, 3, 4, 5]);
    /// assert_eq!(batch.segments.row(1), [1, 1, 2, 2, 2, 2, 2]);
    /// assert_eq!(batch.cu_seqlens.values.row(2), [0, 3, 7]);
    /// assert_eq!(batch.fill().ratio(), 1.0);
    /// # anyhow::Ok(())
    /// ```
    fn pack(self, packing: Packing) -> Result<PackedDataset<Self>, PackError>
    where
        Self: Sized,
        Self::Sample: TokenSequence,
    {
        PackedDataset::new(self, packing)
    }
}
