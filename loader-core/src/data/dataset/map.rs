//! A dataset whose samples pass through a function.

use std::fmt;

use loader_ipc::profile::Phase;
use serde::{Deserialize, Serialize};

use super::{Dataset, IterableDataset, Shard, SnapshotDataset, SnapshotIterator, many};
use crate::data::{context::SampleContext, function::MapFunction};

/// A dataset whose samples pass through a function. Created by [`Dataset::map`], [`Dataset::map_with`] and
/// the same methods of [`IterableDataset`]. `F` is [`MapFn`](crate::function::MapFn) or
/// [`MapFnWith`](crate::function::MapFnWith), so that the type can be named.
#[derive(Clone, Serialize, Deserialize)]
pub struct Map<D, F> {
    dataset: D,
    function: F,
}

impl<D, F> Map<D, F> {
    pub(super) fn new(dataset: D, function: F) -> Self {
        Self { dataset, function }
    }
}

impl<D: Dataset, F: MapFunction<D::Sample>> Dataset for Map<D, F> {
    type Sample = F::Output;

    fn len(&self) -> usize {
        self.dataset.len()
    }

    fn get(&self, index: usize, cx: &mut SampleContext) -> anyhow::Result<F::Output> {
        let sample = self.dataset.get(index, cx)?;
        cx.in_layer(Dataset::layers(self), |cx| Phase::Transform.measure(|| self.function.call(sample, cx)))
    }

    fn get_many(&self, indices: &[usize], cx: &mut SampleContext) -> anyhow::Result<Vec<F::Output>> {
        let Some(samples) = many::try_get_many(&self.dataset, indices, cx)? else {
            return many::decline(self, indices, cx);
        };
        let mapped = samples.into_iter().zip(indices).map(|(sample, &index)| {
            cx.set_index(index);
            cx.in_layer(Dataset::layers(self), |cx| {
                Phase::Transform.measure(|| self.function.call(sample, cx))
            })
        });
        mapped.collect()
    }

    fn fingerprint(&self) -> String {
        format!("map({})", self.dataset.fingerprint())
    }

    pass_on_to_inner!(adds_layers: 1);
}

impl<D: IterableDataset, F: MapFunction<D::Sample>> IterableDataset for Map<D, F> {
    type Sample = F::Output;

    fn iter(
        &self,
        shard: Shard,
        cx: &mut SampleContext,
    ) -> anyhow::Result<impl Iterator<Item = anyhow::Result<F::Output>> + Send> {
        let own = cx.for_layer(IterableDataset::layers(self));
        let items = self.dataset.iter(shard, cx)?;
        Ok(MapIter { items, function: self.function.clone(), cx: own, position: 0 })
    }

    fn iter_at(
        &self,
        shard: Shard,
        position: u64,
        cx: &mut SampleContext,
    ) -> anyhow::Result<Option<impl Iterator<Item = anyhow::Result<F::Output>> + Send>> {
        let own = cx.for_layer(IterableDataset::layers(self));
        let items = self.dataset.iter_at(shard, position, cx)?;
        Ok(items.map(|items| MapIter { items, function: self.function.clone(), cx: own, position }))
    }

    fn len(&self) -> Option<usize> {
        self.dataset.len()
    }

    fn fingerprint(&self) -> String {
        format!("map({})", self.dataset.fingerprint())
    }

    pass_on_to_inner!(adds_layers: 1);
}

impl<D: SnapshotDataset, F: MapFunction<D::Sample>> SnapshotDataset for Map<D, F> {
    /// Number of items taken from the shard, and the dataset's own snapshot.
    type Snapshot = (u64, D::Snapshot);

    fn iter_from(
        &self,
        shard: Shard,
        cx: &mut SampleContext,
        snapshot: Option<Self::Snapshot>,
    ) -> anyhow::Result<
        impl SnapshotIterator<Item = anyhow::Result<F::Output>, Snapshot = Self::Snapshot> + Send,
    > {
        let own = cx.for_layer(IterableDataset::layers(self));
        let (position, snapshot) = snapshot.map_or((0, None), |(position, inner)| (position, Some(inner)));
        let items = self.dataset.iter_from(shard, cx, snapshot)?;
        Ok(MapIter { items, function: self.function.clone(), cx: own, position })
    }
}

struct MapIter<I, F> {
    items: I,
    function: F,
    /// Context of the function; the dataset has one of its own.
    cx: SampleContext,
    /// Items taken.
    position: u64,
}

impl<I: Iterator<Item = anyhow::Result<A>>, F: MapFunction<A>, A> Iterator for MapIter<I, F> {
    type Item = anyhow::Result<F::Output>;

    fn next(&mut self) -> Option<Self::Item> {
        let item = self.items.next()?;
        self.cx.set_index(self.position as usize);
        self.position += 1;
        let call = |sample| Phase::Transform.measure(|| self.function.call(sample, &mut self.cx));
        Some(item.and_then(call))
    }
}

impl<I, F> SnapshotIterator for MapIter<I, F>
where
    I: SnapshotIterator,
    Self: Iterator,
{
    type Snapshot = (u64, I::Snapshot);

    fn snapshot(&self) -> anyhow::Result<Self::Snapshot> {
        Ok((self.position, self.items.snapshot()?))
    }
}

impl<D: fmt::Debug, F> fmt::Debug for Map<D, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Map").field("dataset", &self.dataset).finish_non_exhaustive()
    }
}
