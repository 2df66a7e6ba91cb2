//! Streams that can write down where they are.

use serde::{Serialize, de::DeserializeOwned};

use super::{IterableDataset, Shard};
use crate::context::Context;

/// An iterable dataset that finds a place in a shard again without reading everything before it: what `state_dict` and
/// `load_state_dict` are for torchdata's `StatefulDataLoader`. Used with [`Builder::snapshots`](crate::Builder::snapshots).
///
/// Any other iterable dataset is resumed by reading and dropping the samples before the place.
///
/// # Examples
/// ```
/// use loader_core::prelude::*;
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize)]
/// struct Squares(u64);
///
/// struct Position {
///     next: u64,
///     end: u64,
///     step: u64,
/// }
///
/// impl Iterator for Position {
///     type Item = anyhow::Result<u64>;
///     fn next(&mut self) -> Option<Self::Item> {
///         let number = self.next;
///         self.next += self.step;
///         (number < self.end).then_some(Ok(number * number))
///     }
/// }
///
/// impl SnapshotIterator for Position {
///     type Snapshot = u64;
///     fn snapshot(&self) -> anyhow::Result<u64> {
///         Ok(self.next)
///     }
/// }
///
/// impl IterableDataset for Squares {
///     type Sample = u64;
///     fn iter(
///         &self,
///         shard: Shard,
///         cx: &mut Context,
///     ) -> anyhow::Result<impl Iterator<Item = anyhow::Result<u64>> + Send> {
///         self.iter_from(shard, cx, None)
///     }
/// }
///
/// impl SnapshotDataset for Squares {
///     type Snapshot = u64;
///     fn iter_from(
///         &self,
///         shard: Shard,
///         _cx: &mut Context,
///         snapshot: Option<u64>,
///     ) -> anyhow::Result<impl SnapshotIterator<Item = anyhow::Result<u64>, Snapshot = u64> + Send> {
///         let next = snapshot.unwrap_or(shard.index() as u64);
///         Ok(Position { next, end: self.0, step: shard.count() as u64 })
///     }
/// }
///
/// let loader = DataLoader::stream(Squares(100)).snapshots().batch_size(10).build()?;
/// let mut batches = loader.iter()?;
/// batches.by_ref().take(3).for_each(drop);
/// let state = batches.state();
/// let fourth = loader.resume(&state)?.next().unwrap()?;
/// assert_eq!(fourth.as_slice()[0], 30 * 30);
/// # anyhow::Ok(())
/// ```
pub trait SnapshotDataset: IterableDataset {
    /// What a place in a shard is written down as: small, since it travels with every batch.
    type Snapshot: Serialize + DeserializeOwned + Send;

    /// The samples of `shard` behind the place `snapshot`, or all of them.
    ///
    /// # Errors
    /// As [`IterableDataset::iter`].
    fn iter_from(
        &self,
        shard: Shard,
        cx: &mut Context,
        snapshot: Option<Self::Snapshot>,
    ) -> anyhow::Result<
        impl SnapshotIterator<Item = anyhow::Result<Self::Sample>, Snapshot = Self::Snapshot> + Send,
    >;
}

/// An iterator that can write down where it is.
pub trait SnapshotIterator: Iterator {
    /// What the place is written down as.
    type Snapshot;

    /// The place behind the item that was taken last. Everything that decides what comes next must be in it, a generator's state too.
    ///
    /// # Errors
    /// An error fails the batch that was just read.
    fn snapshot(&self) -> anyhow::Result<Self::Snapshot>;
}
