//! An iterable dataset without the samples that a function rejects.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{IterableDataset, Shard, SnapshotDataset, SnapshotIterator, out_of_place::OutOfPlace, with_len};
use crate::data::{context::SampleContext, function::FilterFunction};

/// The samples of an iterable dataset for which a function returns true. Created by
/// [`IterableDataset::filter`] and [`IterableDataset::filter_with`]. `F` is
/// [`FilterFn`](crate::function::FilterFn) or [`FilterFnWith`](crate::function::FilterFnWith).
#[derive(Clone, Serialize, Deserialize)]
pub struct Filter<D, F> {
    dataset: D,
    function: F,
}

impl<D, F> Filter<D, F> {
    pub(super) fn new(dataset: D, function: F) -> Self {
        Self { dataset, function }
    }
}

impl<D: IterableDataset, F: FilterFunction<D::Sample>> IterableDataset for Filter<D, F> {
    type Sample = D::Sample;

    fn iter(
        &self,
        shard: Shard,
        cx: &mut SampleContext,
    ) -> anyhow::Result<impl Iterator<Item = anyhow::Result<D::Sample>> + Send> {
        let own = cx.for_layer(self.layers());
        let items = self.dataset.iter(shard, cx)?;
        Ok(FilterIter { items, function: self.function.clone(), cx: own, position: 0 })
    }

    fn fingerprint(&self) -> String {
        // The length of a filter is unknown, so the state cannot compare it.
        format!("filter({})", with_len(&self.dataset.fingerprint(), self.dataset.len()))
    }

    pass_on_to_inner!(adds_layers: 1);
}

impl<D: SnapshotDataset, F: FilterFunction<D::Sample>> SnapshotDataset for Filter<D, F> {
    /// Number of items read from the dataset, and the dataset's own snapshot.
    type Snapshot = (u64, D::Snapshot);

    fn iter_from(
        &self,
        shard: Shard,
        cx: &mut SampleContext,
        snapshot: Option<Self::Snapshot>,
    ) -> anyhow::Result<
        impl SnapshotIterator<Item = anyhow::Result<D::Sample>, Snapshot = Self::Snapshot> + Send,
    > {
        let own = cx.for_layer(self.layers());
        let (position, snapshot) = snapshot.map_or((0, None), |(position, inner)| (position, Some(inner)));
        let items = self.dataset.iter_from(shard, cx, snapshot)?;
        Ok(FilterIter { items, function: self.function.clone(), cx: own, position })
    }
}

struct FilterIter<I, F> {
    items: I,
    function: F,
    /// Context of the function; the dataset has one of its own.
    cx: SampleContext,
    /// Number of items read.
    position: u64,
}

impl<I, F, S> Iterator for FilterIter<I, F>
where
    I: Iterator<Item = anyhow::Result<S>>,
    F: FilterFunction<S>,
{
    type Item = anyhow::Result<S>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let item = self.items.next()?;
            let position = self.position;
            self.cx.set_index(position as usize);
            self.position += 1;
            let judge = |sample| Ok(self.function.call(&sample, &mut self.cx)?.then_some(sample));
            match item.and_then(judge) {
                Ok(Some(sample)) => return Some(Ok(sample)),
                Ok(None) => {}
                Err(error) => return Some(Err(OutOfPlace::mark(error, position))),
            }
        }
    }
}

impl<I, F> SnapshotIterator for FilterIter<I, F>
where
    I: SnapshotIterator,
    Self: Iterator,
{
    type Snapshot = (u64, I::Snapshot);

    fn snapshot(&self) -> anyhow::Result<Self::Snapshot> {
        Ok((self.position, self.items.snapshot()?))
    }
}

impl<D: fmt::Debug, F> fmt::Debug for Filter<D, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Filter").field("dataset", &self.dataset).finish_non_exhaustive()
    }
}
