//! A dataset behind a function.

use std::{fmt, marker::PhantomData};

use loader_ipc::ZeroSized;
use serde::{Deserialize, Serialize};

use super::{Dataset, IterableDataset, Shard, SnapshotDataset, SnapshotIterator, many};
use crate::context::Context;

/// A dataset whose samples pass through a function; made by [`Dataset::map`] and [`IterableDataset::map`].
#[derive(Serialize, Deserialize)]
#[serde(bound(serialize = "D: Serialize", deserialize = "D: Deserialize<'de>"))]
pub struct Map<D, F, S> {
    dataset: D,
    function: ZeroSized<F>,
    sample: PhantomData<fn() -> S>,
}

impl<D, F: Copy, S> Map<D, F, S> {
    pub(super) fn new(dataset: D, function: F) -> Self {
        Self { dataset, function: ZeroSized::new(function), sample: PhantomData }
    }
}

impl<D, F, S> Dataset for Map<D, F, S>
where
    D: Dataset,
    S: Send + 'static,
    F: Fn(D::Sample, &mut Context) -> anyhow::Result<S> + Copy + Send + Sync + 'static,
{
    type Sample = S;

    fn len(&self) -> usize {
        self.dataset.len()
    }

    fn get(&self, index: usize, cx: &mut Context) -> anyhow::Result<S> {
        let sample = self.dataset.get(index, cx)?;
        cx.in_layer(Dataset::layers(self), |cx| self.function.get()(sample, cx))
    }

    fn get_many(&self, indices: &[usize], cx: &mut Context) -> anyhow::Result<Vec<S>> {
        let Some(samples) = many::ask(&self.dataset, indices, cx)? else {
            return many::decline(self, indices, cx);
        };
        let mapped = samples.into_iter().zip(indices).map(|(sample, &index)| {
            cx.set_index(index);
            cx.in_layer(Dataset::layers(self), |cx| self.function.get()(sample, cx))
        });
        mapped.collect()
    }

    fn setup(&mut self, cx: &mut Context) -> anyhow::Result<()> {
        self.dataset.setup(cx)
    }

    fn layers(&self) -> u8 {
        self.dataset.layers().wrapping_add(1)
    }
}

impl<D, F, S> IterableDataset for Map<D, F, S>
where
    D: IterableDataset,
    S: Send + 'static,
    F: Fn(D::Sample, &mut Context) -> anyhow::Result<S> + Copy + Send + Sync + 'static,
{
    type Sample = S;

    fn iter(
        &self,
        shard: Shard,
        cx: &mut Context,
    ) -> anyhow::Result<impl Iterator<Item = anyhow::Result<S>> + Send> {
        let own = cx.of_layer(IterableDataset::layers(self));
        let items = self.dataset.iter(shard, cx)?;
        Ok(MapIter { items, function: self.function.get(), cx: own, position: 0 })
    }

    fn len(&self) -> Option<usize> {
        self.dataset.len()
    }

    fn setup(&mut self, cx: &mut Context) -> anyhow::Result<()> {
        self.dataset.setup(cx)
    }

    fn layers(&self) -> u8 {
        self.dataset.layers().wrapping_add(1)
    }
}

impl<D, F, S> SnapshotDataset for Map<D, F, S>
where
    D: SnapshotDataset,
    S: Send + 'static,
    F: Fn(D::Sample, &mut Context) -> anyhow::Result<S> + Copy + Send + Sync + 'static,
{
    /// Place in the shard, and the dataset's own snapshot.
    type Snapshot = (u64, D::Snapshot);

    fn iter_from(
        &self,
        shard: Shard,
        cx: &mut Context,
        snapshot: Option<Self::Snapshot>,
    ) -> anyhow::Result<impl SnapshotIterator<Item = anyhow::Result<S>, Snapshot = Self::Snapshot> + Send>
    {
        let own = cx.of_layer(IterableDataset::layers(self));
        let (position, snapshot) = snapshot.map_or((0, None), |(position, inner)| (position, Some(inner)));
        let items = self.dataset.iter_from(shard, cx, snapshot)?;
        Ok(MapIter { items, function: self.function.get(), cx: own, position })
    }
}

struct MapIter<I, F> {
    items: I,
    function: F,
    /// The items keep the other one.
    cx: Context,
    /// Items taken.
    position: u64,
}

impl<I, F, A, S> Iterator for MapIter<I, F>
where
    I: Iterator<Item = anyhow::Result<A>>,
    F: Fn(A, &mut Context) -> anyhow::Result<S>,
{
    type Item = anyhow::Result<S>;

    fn next(&mut self) -> Option<Self::Item> {
        let item = self.items.next()?;
        self.cx.set_index(self.position as usize);
        self.position += 1;
        Some(item.and_then(|sample| (self.function)(sample, &mut self.cx)))
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

impl<D: Clone, F: Copy, S> Clone for Map<D, F, S> {
    fn clone(&self) -> Self {
        Self { dataset: self.dataset.clone(), function: self.function, sample: PhantomData }
    }
}

impl<D: fmt::Debug, F, S> fmt::Debug for Map<D, F, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Map").field("dataset", &self.dataset).finish_non_exhaustive()
    }
}
