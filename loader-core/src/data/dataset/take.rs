//! The beginning of an iterable dataset.

use serde::{Deserialize, Serialize};

use super::{IterableDataset, Shard, SnapshotDataset, SnapshotIterator, with_len};
use crate::data::context::SampleContext;

/// The first samples of an iterable dataset. Created by [`IterableDataset::take`].
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Take<D> {
    dataset: D,
    count: usize,
}

impl<D> Take<D> {
    pub(super) fn new(dataset: D, count: usize) -> Self {
        Self { dataset, count }
    }

    /// Maximum number of items of `shard`.
    fn share(&self, shard: Shard) -> u64 {
        (self.count / shard.count() + usize::from(shard.index() < self.count % shard.count())) as u64
    }
}

impl<D: IterableDataset> IterableDataset for Take<D> {
    type Sample = D::Sample;

    fn iter(
        &self,
        shard: Shard,
        cx: &mut SampleContext,
    ) -> anyhow::Result<impl Iterator<Item = anyhow::Result<D::Sample>> + Send> {
        Ok(TakeIter { left: self.share(shard), items: self.dataset.iter(shard, cx)? })
    }

    fn iter_at(
        &self,
        shard: Shard,
        position: u64,
        cx: &mut SampleContext,
    ) -> anyhow::Result<Option<impl Iterator<Item = anyhow::Result<D::Sample>> + Send>> {
        let left = self.share(shard).saturating_sub(position);
        let items = self.dataset.iter_at(shard, position, cx)?;
        Ok(items.map(|items| TakeIter { left, items }))
    }

    fn len(&self) -> Option<usize> {
        Some(self.dataset.len()?.min(self.count))
    }

    fn fingerprint(&self) -> String {
        format!("take({}, {})", self.count, with_len(&self.dataset.fingerprint(), self.dataset.len()))
    }

    pass_on_to_inner!(adds_layers: 0);
}

impl<D: SnapshotDataset> SnapshotDataset for Take<D> {
    /// Number of items left, and the dataset's own snapshot.
    type Snapshot = (u64, D::Snapshot);

    fn iter_from(
        &self,
        shard: Shard,
        cx: &mut SampleContext,
        snapshot: Option<Self::Snapshot>,
    ) -> anyhow::Result<
        impl SnapshotIterator<Item = anyhow::Result<D::Sample>, Snapshot = Self::Snapshot> + Send,
    > {
        let (left, snapshot) = match snapshot {
            Some((left, inner)) => (left, Some(inner)),
            None => (self.share(shard), None),
        };
        Ok(TakeIter { left, items: self.dataset.iter_from(shard, cx, snapshot)? })
    }
}

struct TakeIter<I> {
    left: u64,
    items: I,
}

impl<I: Iterator> Iterator for TakeIter<I> {
    type Item = I::Item;

    fn next(&mut self) -> Option<I::Item> {
        self.left = self.left.checked_sub(1)?;
        self.items.next()
    }
}

impl<I: SnapshotIterator> SnapshotIterator for TakeIter<I> {
    type Snapshot = (u64, I::Snapshot);

    fn snapshot(&self) -> anyhow::Result<Self::Snapshot> {
        Ok((self.left, self.items.snapshot()?))
    }
}
