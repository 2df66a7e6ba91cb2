//! Samples that come as a stream.

use std::iter;

use loader_ipc::function::Function;
use serde::{Serialize, de::DeserializeOwned};

use super::{ChainDataset, Filter, InterleaveDataset, Map, ShuffleBuffer, Take};
use crate::{
    context::Context,
    function::{FilterFn, FilterFnWith, MapFn, MapFnWith, Params, WithParams},
};

/// A dataset that is read from its beginning to its end: PyTorch's `IterableDataset`. For logs, archives, sockets and whatever else has
/// no cheap access by index.
///
/// It is read in shards, each by one worker: [`iter`](Self::iter) is told which shard it is to give, so no sample can come twice by
/// accident, as in PyTorch when a dataset does not split itself. Batches are made within a shard, and the loader takes a batch from each
/// shard in turn.
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
///         _cx: &mut Context,
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

    /// The samples of `shard`, each of them in no other shard. Asked twice for the same shard and epoch, it must give the same:
    /// randomness belongs to [`Context::rng`], which here is the shard's own.
    ///
    /// # Errors
    /// An error here is reported at the shard's first batch, and the shard is over for this epoch; a run that is resumed behind the error
    /// tries again. The same holds where [`chain`](Self::chain) or [`InterleaveDataset`] opens a stream in the middle of a shard. An item that is an error fails the batch it
    /// would be in, and the stream goes on behind it; a panic ends the shard.
    fn iter(
        &self,
        shard: Shard,
        cx: &mut Context,
    ) -> anyhow::Result<impl Iterator<Item = anyhow::Result<Self::Sample>> + Send>;

    /// The samples of `shard` behind its first `position` items. Implement it for a dataset that can reach a
    /// position without reading the items before it; the default returns `None`.
    ///
    /// A shard is opened in its middle when a run is resumed or when the worker that read it has died. A
    /// dataset without this method is then read again from the beginning of the shard, and the items before
    /// the position are dropped. If workers are killed again and again, they then never get past the items
    /// that one of them can read before it is killed. A dataset that cannot count its items beforehand may
    /// implement [`SnapshotDataset`](crate::SnapshotDataset) instead.
    ///
    /// The items must be those that [`iter`](Self::iter) gives behind that position. [`Context::rng`] is at its beginning here, so a dataset
    /// that draws from it as it goes cannot implement this method, and one that returns `None` must not have drawn from it. Items that
    /// are errors count.
    ///
    /// # Errors
    /// As [`iter`](Self::iter).
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
    ///         _cx: &mut Context,
    ///     ) -> anyhow::Result<impl Iterator<Item = anyhow::Result<String>>> {
    ///         Ok(shard.of(&self.0).map(|line| Ok(line.clone())))
    ///     }
    ///
    ///     fn iter_at(
    ///         &self,
    ///         shard: Shard,
    ///         position: u64,
    ///         _cx: &mut Context,
    ///     ) -> anyhow::Result<Option<impl Iterator<Item = anyhow::Result<String>>>> {
    ///         Ok(Some(shard.of(&self.0).skip(position as usize).map(|line| Ok(line.clone()))))
    ///     }
    /// }
    ///
    /// let lines = Lines(["a", "b", "c", "d"].map(String::from).into());
    /// let mut cx = Context::new(0);
    /// let rest = lines.iter_at(Shard::new(0, 2), 1, &mut cx)?.unwrap();
    /// assert_eq!(rest.collect::<Result<Vec<_>, _>>()?, ["c"]);
    /// # anyhow::Ok(())
    /// ```
    fn iter_at(
        &self,
        shard: Shard,
        position: u64,
        cx: &mut Context,
    ) -> anyhow::Result<Option<impl Iterator<Item = anyhow::Result<Self::Sample>> + Send>> {
        let _ = (shard, position, cx);
        Ok(None::<iter::Empty<_>>)
    }

    /// Number of samples in all shards together, if it is known; `None` by default. It is what
    /// [`DataLoader::len`](crate::DataLoader::len) goes by, and a stream that turns out longer is warned of.
    fn len(&self) -> Option<usize> {
        None
    }

    /// True when it is known that there are no samples.
    fn is_empty(&self) -> bool {
        self.len() == Some(0)
    }

    /// Opens what is not serialised, as [`Dataset::setup`](crate::Dataset::setup) does.
    ///
    /// # Errors
    /// An error fails every batch of that process.
    fn setup(&mut self, cx: &mut Context) -> anyhow::Result<()> {
        let _ = cx;
        Ok(())
    }

    /// A text that tells which samples a shard has and in which order, for example the version of the files
    /// or an option that selects some of them. The number of samples is compared anyway. Each
    /// [`State`](crate::State) holds the fingerprint, and a loader refuses a state with another one. The text
    /// must not change from build to build. Of a text of more than 200 bytes the end is hashed. `"stream"` by
    /// default.
    fn fingerprint(&self) -> String {
        "stream".to_owned()
    }

    /// Layers of functions around it that draw from generators of their own.
    #[doc(hidden)]
    fn layers(&self) -> u8 {
        0
    }

    /// Passes every sample through `function`, which captures nothing; see [`map_with`](Self::map_with) for one that needs parameters.
    /// Its generator is that of the sample's place in the shard.
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

    /// Passes every sample through `function`, which is given `params` by reference, as
    /// [`Dataset::map_with`](crate::Dataset::map_with) does.
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

    /// Leaves out samples for which `function` returns false. The function captures nothing; see [`filter_with`](Self::filter_with) for
    /// one that needs parameters. Its generator is that of the sample's place in the shard of this dataset. The number of samples is no longer known in advance.
    ///
    /// # Examples
    /// ```
    /// # use loader_core::prelude::*;
    /// # #[derive(serde::Serialize, serde::Deserialize)]
    /// # struct Numbers(u64);
    /// # impl IterableDataset for Numbers {
    /// #     type Sample = u64;
    /// #     fn iter(&self, shard: Shard, _cx: &mut Context) -> anyhow::Result<impl Iterator<Item = anyhow::Result<u64>> + Send> {
    /// #         Ok(shard.of(0..self.0).map(Ok))
    /// #     }
    /// # }
    /// let odd = Numbers(10).filter(|number, _cx| Ok(number % 2 == 1));
    /// let loader = DataLoader::stream(odd).batch_size(5).build()?;
    /// assert_eq!(loader.iter()?.next().unwrap()?.as_slice(), [1, 3, 5, 7, 9]);
    /// # anyhow::Ok(())
    /// ```
    // The compiler shows the next line where a closure captures something.
    #[rustfmt::skip]
    fn filter( // to capture, use `filter_with`
        self,
        function: fn(&Self::Sample, &mut Context) -> anyhow::Result<bool>,
    ) -> Filter<Self, FilterFn<Self::Sample>>
    where
        Self: Sized,
    {
        Filter::new(self, Function::new(function))
    }

    /// Leaves out samples for which `function` returns false. The function gets `params` by reference.
    fn filter_with<P: Params>(
        self,
        params: P,
        function: fn(&P, &Self::Sample, &mut Context) -> anyhow::Result<bool>,
    ) -> Filter<Self, FilterFnWith<P, Self::Sample>>
    where
        Self: Sized,
    {
        Filter::new(self, WithParams::new(params, function))
    }

    /// Takes at most `count` samples from all shards together. Each shard gives an equal share of them from
    /// its beginning; if `count` does not divide evenly, the first shards give one more. A shard that has
    /// fewer samples than its share gives all of them. With one shard these are the first `count` samples. An
    /// item that is an error counts.
    fn take(self, count: usize) -> Take<Self>
    where
        Self: Sized,
    {
        Take::new(self, count)
    }

    /// The samples of each shard of this dataset, then those of `next`: PyTorch's `ChainDataset`.
    fn chain<D: IterableDataset<Sample = Self::Sample>>(self, next: D) -> ChainDataset<Self, D>
    where
        Self: Sized,
    {
        ChainDataset::new(self, next)
    }

    /// Reads each shard in `parts` parts that are open at once, one sample of each in turn: shard `i` of `n`
    /// is read as the shards `i`, `n + i`, `2n + i` and so on of `parts * n`. If the dataset gives whole
    /// files to a shard, this mixes the samples of `parts` files.
    ///
    /// # Panics
    /// When `parts` is 0.
    fn interleave(self, parts: usize) -> InterleaveDataset<Self>
    where
        Self: Sized,
    {
        InterleaveDataset::of_parts(self, parts)
    }

    /// Shuffles each shard's samples within a buffer of `size` samples: each turn gives a random sample of
    /// the buffer, and the stream's next sample takes its place. The order depends on seed, epoch and shard
    /// alone.
    ///
    /// With [`snapshots`](crate::Builder::snapshots), a snapshot has 4 bytes for each sample in the buffer, and a resumed stream reads
    /// the samples that were in the buffer again: for a buffer of 1,000 samples about the last 7,000 of the shard. Put functions that take
    /// long behind the buffer (`.shuffle_buffer(1000).map(decode)`), so that they do not run again.
    ///
    /// # Panics
    /// When `size` is 0.
    fn shuffle_buffer(self, size: usize) -> ShuffleBuffer<Self>
    where
        Self: Sized,
    {
        ShuffleBuffer::new(self, size)
    }
}

/// One of the parts that an iterable dataset is read in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shard {
    index: usize,
    count: usize,
}

impl Shard {
    /// Shard `index` of `count`.
    ///
    /// # Panics
    /// When there is no such shard.
    pub fn new(index: usize, count: usize) -> Self {
        assert!(index < count, "shard {index} of {count}");
        Self { index, count }
    }

    /// Number of the shard, from 0.
    pub fn index(self) -> usize {
        self.index
    }

    /// Number of shards, at least 1.
    pub fn count(self) -> usize {
        self.count
    }

    /// Every `count`-th of `items`, from number `index` on: the simplest way to give each sample to one shard.
    pub fn of<I: IntoIterator>(self, items: I) -> impl Iterator<Item = I::Item> + use<I> {
        items.into_iter().skip(self.index).step_by(self.count)
    }
}
