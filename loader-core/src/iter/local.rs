//! An epoch without workers: each batch is loaded when it is asked for.

use std::{
    fmt,
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

use loader_ipc::{arena::Arena, frame::Failure, heap::HeapPool};

use super::{BatchInfo, Step};
use crate::{
    collate::Collate,
    dataset::Dataset,
    error::Error,
    fetch::{Fetcher, NoBatch, NoWorkerInit, Unwatched},
    plan::{Plan, Planned},
};

/// Loads batches of type `B` in this process.
pub(crate) trait Source<B>: Send + Sync {
    fn batch(&self, epoch: u64, indices: &[usize]) -> Result<B, Failure>;
}

/// A dataset that is set up when the first batch is asked for, and shared by the loader's iterators.
pub(crate) struct LocalSource<D, C> {
    closed: Mutex<Option<(D, C)>>,
    open: OnceLock<Result<Fetcher<D, C>, Failure>>,
    seed: u64,
    /// Memory of batches that the program has dropped.
    memory: HeapPool,
}

impl<D, C> LocalSource<D, C> {
    pub(crate) fn new(dataset: D, collate: C, seed: u64) -> Self {
        Self {
            closed: Mutex::new(Some((dataset, collate))),
            open: OnceLock::new(),
            seed,
            memory: HeapPool::default(),
        }
    }
}

impl<D: Dataset, C: Collate<D::Sample>> Source<C::Batch> for LocalSource<D, C> {
    fn batch(&self, epoch: u64, indices: &[usize]) -> Result<C::Batch, Failure> {
        let open = self.open.get_or_init(|| {
            let closed = self.closed.lock().unwrap_or_else(PoisonError::into_inner).take();
            let (dataset, collate) = closed.expect("taken here only, and once");
            Fetcher::open(dataset, collate, self.seed, None, &NoWorkerInit)
        });
        let fetcher = open.as_ref().map_err(Clone::clone)?;
        match fetcher.batch(epoch, indices, &mut Arena::on_heap(&self.memory), &Unwatched) {
            Ok(batch) => Ok(batch),
            Err(NoBatch::Failed(failure)) => Err(failure),
            Err(NoBatch::Unwanted) => unreachable!("nobody watches"),
        }
    }
}

/// The batches of one epoch.
pub(crate) struct LocalIter<B> {
    source: Arc<dyn Source<B>>,
    plan: Plan,
}

impl<B> LocalIter<B> {
    pub(crate) fn new(source: Arc<dyn Source<B>>, plan: Plan) -> Self {
        Self { source, plan }
    }

    pub(super) fn step(&mut self) -> Option<Step<B>> {
        let Planned { number, indices, out_of_range } = self.plan.next()?;
        let batch = match out_of_range {
            Some(error) => Err(error),
            None => {
                let loaded = self.source.batch(self.plan.epoch(), &indices);
                loaded.map_err(|failure| Error::from_failure(failure, number, None))
            }
        };
        Some((Some(BatchInfo { number, indices, worker: None }), batch))
    }

    pub(super) fn size_hint(&self) -> (usize, Option<usize>) {
        self.plan.size_hint()
    }
}

impl<D, C> fmt::Debug for LocalSource<D, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalSource").finish_non_exhaustive()
    }
}
