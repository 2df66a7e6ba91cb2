//! Of a map-style dataset.

use std::{collections::BTreeSet, fmt, sync::Arc};

use loader_ipc::{arena::Arena, frame::Failure, heap::HeapPool};

use super::{
    super::{BatchInfo, Step},
    once::OpenOnce,
};
use crate::{
    collate::Collate,
    dataset::Dataset,
    error::Error,
    fetch::{Fetcher, NoBatch, NoWorkerInit, Unwatched},
    plan::{Plan, Planned},
    state::Place,
};

/// Loads batches of type `B` in this process.
pub(crate) trait BatchSource<B>: Send + Sync {
    fn batch(&self, epoch: u64, indices: &[usize]) -> Result<B, Failure>;
}

/// A dataset that is set up when the first batch is asked for, and shared by the loader's iterators.
pub(crate) struct MapSource<D, C> {
    open: OpenOnce<(D, C), Fetcher<D, C>>,
    seed: u64,
    /// Memory of batches that the program has dropped.
    memory: HeapPool,
}

impl<D, C> MapSource<D, C> {
    pub(crate) fn new(dataset: D, collate: C, seed: u64, memory: HeapPool) -> Self {
        Self { open: OpenOnce::new((dataset, collate)), seed, memory }
    }
}

impl<D: Dataset, C: Collate<D::Sample>> BatchSource<C::Batch> for MapSource<D, C> {
    fn batch(&self, epoch: u64, indices: &[usize]) -> Result<C::Batch, Failure> {
        let open = |(dataset, collate)| Fetcher::open(dataset, collate, self.seed, None, &NoWorkerInit);
        let fetcher = self.open.get(open)?;
        match fetcher.batch(epoch, indices, &mut Arena::on_heap(&self.memory), &Unwatched) {
            Ok(batch) => Ok(batch),
            Err(NoBatch::Failed(failure)) => Err(failure),
            Err(NoBatch::Unwanted | NoBatch::Exhausted) => {
                unreachable!("nobody watches, and there are no shards")
            }
        }
    }
}

/// The batches of one epoch.
pub(crate) struct LocalBatches<B> {
    source: Arc<dyn BatchSource<B>>,
    plan: Plan,
    /// Batches that the user has got already.
    ahead: BTreeSet<u64>,
}

impl<B> LocalBatches<B> {
    /// The rest of `plan`, without the batches `ahead`.
    pub(crate) fn new(source: Arc<dyn BatchSource<B>>, plan: Plan, ahead: BTreeSet<u64>) -> Self {
        let mut batches = Self { source, plan, ahead };
        batches.leave_out();
        batches
    }

    pub(in super::super) fn step(&mut self) -> Option<Step<B>> {
        let Planned { number, indices, error } = self.plan.next()?;
        let batch = match error {
            Some(error) => Err(error),
            None => {
                let loaded = self.source.batch(self.plan.epoch(), &indices);
                loaded.map_err(|failure| Error::from_failure(failure, number, None))
            }
        };
        self.leave_out();
        Some((Some(BatchInfo::of_indices(number, indices, None)), batch))
    }

    /// Passes over what the user has got already.
    fn leave_out(&mut self) {
        let mut next = self.plan.next_number();
        while self.ahead.remove(&next) {
            next += 1;
        }
        self.plan.skip_to(next);
    }

    /// Where the user stands; `None` at the end.
    pub(in super::super) fn place(&self) -> Option<Place> {
        let ahead = || self.ahead.iter().copied().collect();
        (!self.plan.is_over()).then(|| self.plan.place(self.plan.next_number(), ahead()))
    }

    pub(in super::super) fn size_hint(&self) -> (usize, Option<usize>) {
        let (low, high) = self.plan.size_hint();
        let left = |count: usize| count.saturating_sub(self.ahead.len());
        (left(low), high.map(left))
    }
}

impl<D, C> fmt::Debug for MapSource<D, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MapSource").finish_non_exhaustive()
    }
}
