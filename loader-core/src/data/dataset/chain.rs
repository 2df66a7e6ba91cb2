//! Two iterable datasets, one after the other.

use serde::{Deserialize, Serialize};

use super::{
    IterableDataset, Shard, SnapshotDataset, SnapshotIterator,
    nested::{Nested, open_later},
    with_len,
};
use crate::data::context::SampleContext;

/// Two iterable datasets, one after the other in each shard: PyTorch's `ChainDataset`. Created by
/// [`IterableDataset::chain`].
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ChainDataset<A, B> {
    first: A,
    second: B,
}

impl<A, B> ChainDataset<A, B> {
    pub(super) fn new(first: A, second: B) -> Self {
        Self { first, second }
    }
}

impl<A: IterableDataset, B> ChainDataset<A, B> {
    /// Returns the context of the second dataset; the first one uses `cx`.
    fn context_of_second(&self, cx: &SampleContext) -> SampleContext {
        cx.for_layer(self.first.layers().wrapping_add(1))
    }
}

impl<A, B> IterableDataset for ChainDataset<A, B>
where
    A: IterableDataset,
    B: IterableDataset<Sample = A::Sample>,
{
    type Sample = A::Sample;

    fn iter(
        &self,
        shard: Shard,
        cx: &mut SampleContext,
    ) -> anyhow::Result<impl Iterator<Item = anyhow::Result<A::Sample>> + Send> {
        let own = self.context_of_second(cx);
        // As in PyTorch, the second dataset is opened when the first one has ended.
        Ok(self.first.iter(shard, cx)?.chain(open_later(&self.second, shard, own)))
    }

    fn len(&self) -> Option<usize> {
        self.first.len()?.checked_add(self.second.len()?)
    }

    fn setup(&mut self, cx: &mut SampleContext) -> anyhow::Result<()> {
        self.first.setup(cx)?;
        self.second.setup(cx)
    }

    fn fingerprint(&self) -> String {
        let (first, second) = (self.first.fingerprint(), self.second.fingerprint());
        format!("chain({}, {})", with_len(&first, self.first.len()), with_len(&second, self.second.len()))
    }

    fn layers(&self) -> u8 {
        self.first.layers().wrapping_add(1).wrapping_add(self.second.layers())
    }
}

/// Snapshot of a [`ChainDataset`]: the dataset that is being read, and its snapshot.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum ChainSnapshot<A, B> {
    /// Snapshot of the first dataset.
    First(A),
    /// Snapshot of the second dataset.
    Second(B),
}

impl<A, B> SnapshotDataset for ChainDataset<A, B>
where
    A: SnapshotDataset,
    B: SnapshotDataset<Sample = A::Sample>,
{
    type Snapshot = ChainSnapshot<A::Snapshot, B::Snapshot>;

    fn iter_from(
        &self,
        shard: Shard,
        cx: &mut SampleContext,
        snapshot: Option<Self::Snapshot>,
    ) -> anyhow::Result<
        impl SnapshotIterator<Item = anyhow::Result<Self::Sample>, Snapshot = Self::Snapshot> + Send,
    > {
        let own = self.context_of_second(cx);
        let (first, second) = match snapshot {
            None => (Some(None), None),
            Some(ChainSnapshot::First(snapshot)) => (Some(Some(snapshot)), None),
            Some(ChainSnapshot::Second(snapshot)) => (None, Some(snapshot)),
        };
        let first = first.map(|snapshot| self.first.iter_from(shard, cx, snapshot)).transpose()?;
        let mut second = Nested::new(&self.second, shard, own, second);
        if first.is_none() {
            // Opened here instead of at its first item: an error then means that the shard could not be
            // opened, and the shard keeps its position.
            second.open()?;
        }
        Ok(ChainIter { first, second })
    }
}

struct ChainIter<A, B> {
    /// `None` after the first dataset has ended.
    first: Option<A>,
    second: B,
}

impl<A: Iterator, B: Iterator<Item = A::Item>> Iterator for ChainIter<A, B> {
    type Item = A::Item;

    fn next(&mut self) -> Option<A::Item> {
        if let Some(first) = &mut self.first {
            match first.next() {
                Some(item) => return Some(item),
                None => self.first = None,
            }
        }
        self.second.next()
    }
}

impl<A: SnapshotIterator, B: SnapshotIterator<Item = A::Item>> SnapshotIterator for ChainIter<A, B> {
    type Snapshot = ChainSnapshot<A::Snapshot, B::Snapshot>;

    fn snapshot(&self) -> anyhow::Result<Self::Snapshot> {
        match &self.first {
            Some(first) => first.snapshot().map(ChainSnapshot::First),
            None => self.second.snapshot().map(ChainSnapshot::Second),
        }
    }
}
