//! Loads the batches of a map-style dataset in this process.

use std::{collections::BTreeSet, fmt, sync::Arc};

use loader_ipc::{
    arena::Arena,
    frame::{self, Failure},
    heap::HeapPool,
    profile::{BatchTimer, OwnProfile, ProfileArea},
};

use super::{super::Step, digested, once::OpenOnce};
use crate::{
    data::{
        collate::Collate,
        dataset::Dataset,
        fetch::{Fetcher, Hashed, LocalSink, MapStyle, NoBatch},
        worker_init::NoWorkerInit,
    },
    engine::plan::{Plan, Planned},
    error::Error,
    report::batch_info::BatchInfo,
    state::Position,
};

/// Loads batches of type `B` in this process.
pub(crate) trait BatchSource<B>: Send + Sync {
    /// Loads a batch. Returns the batch, or `None` if all of its samples were left out, and its bad samples.
    fn batch(&self, epoch: u64, indices: &[usize], timer: BatchTimer<'_>) -> Loaded<B>;
}

type Loaded<B> = (Result<Option<Hashed<B>>, Failure>, Vec<frame::BadSampleRecord>);

/// A map-style dataset that is opened when the first batch is requested. The iterators of the loader share
/// it.
pub(crate) struct MapSource<D, C> {
    open: OpenOnce<(MapStyle<D>, C), Fetcher<D, C>>,
    seed: u64,
    /// Memory of batches that the program has dropped, for reuse.
    memory: HeapPool,
}

impl<D, C> MapSource<D, C> {
    pub(crate) fn new(kind: MapStyle<D>, collate: C, seed: u64, memory: HeapPool) -> Self {
        Self { open: OpenOnce::new((kind, collate)), seed, memory }
    }
}

impl<D: Dataset, C: Collate<D::Sample>> BatchSource<C::Batch> for MapSource<D, C> {
    fn batch(&self, epoch: u64, indices: &[usize], timer: BatchTimer<'_>) -> Loaded<C::Batch> {
        let open = |(kind, collate)| Fetcher::open(kind, collate, self.seed, None, &NoWorkerInit);
        let fetcher = match self.open.get(open) {
            Ok(fetcher) => fetcher,
            Err(failure) => return (Err(failure), Vec::new()),
        };
        let sink = LocalSink::new(&timer);
        let batch = match fetcher.batch(epoch, indices, &mut Arena::on_heap(&self.memory), &sink) {
            Ok(batch) => Ok(Some(batch)),
            Err(NoBatch::AllSamplesBad) => Ok(None),
            Err(NoBatch::Failed(failure)) => Err(failure),
            Err(NoBatch::Cancelled | NoBatch::Exhausted) => {
                unreachable!("nobody watches, and there are no shards")
            }
        };
        let bad = if batch.is_ok() { sink.into_bad() } else { Vec::new() };
        if batch.is_ok() {
            timer.finish(indices.len() as u64);
        }
        (batch, bad)
    }
}

/// The batches of one epoch.
pub(crate) struct LocalBatches<B> {
    source: Arc<dyn BatchSource<B>>,
    plan: Plan,
    /// Numbers of later batches that the user has already received.
    ahead: BTreeSet<u64>,
    profile: OwnProfile,
}

impl<B> LocalBatches<B> {
    /// Creates the iterator over the rest of `plan`, without the batches `ahead`.
    pub(crate) fn new(source: Arc<dyn BatchSource<B>>, plan: Plan, ahead: BTreeSet<u64>) -> Self {
        let mut batches = Self { source, plan, ahead, profile: OwnProfile::default() };
        batches.leave_out();
        batches
    }

    pub(in super::super) fn step(&mut self) -> Option<Step<B>> {
        let Planned { number, indices, error } = self.plan.next()?;
        let (batch, bad) = match error {
            Some(error) => (Err(error), Vec::new()),
            None => {
                let timer = self.profile.area().start_batch(self.plan.epoch(), number, None);
                let (loaded, bad) = self.source.batch(self.plan.epoch(), &indices, timer);
                (loaded.map_err(|failure| Error::from_failure(failure, number, None)), bad)
            }
        };
        self.leave_out();
        let info = BatchInfo::of_indices(number, indices, self.plan.repeated_of(number), None, bad);
        Some(digested(info, batch))
    }

    /// Takes the first batch from the sampler, as a resumed epoch does at once.
    pub(in super::super) fn draw_first(&mut self) {
        self.plan.draw_first();
    }

    /// Skips batches that the user has already received.
    fn leave_out(&mut self) {
        let mut next = self.plan.next_number();
        while self.ahead.remove(&next) {
            next += 1;
        }
        self.plan.skip_to(next);
    }

    /// Returns the user's position in the epoch, also at its end.
    pub(in super::super) fn position(&self) -> Position {
        self.plan.position(self.plan.next_number(), self.ahead.iter().copied().collect())
    }

    /// True if it is known that the epoch has no more batches, and that no part of it is left for a resumed run.
    pub(in super::super) fn is_over(&self) -> bool {
        self.plan.is_over()
    }

    /// True if an error, here a panic of the sampler, has left a part of the epoch for a resumed run.
    pub(in super::super) fn has_rest(&self) -> bool {
        self.plan.has_failed()
    }

    pub(in super::super) fn profile(&self) -> ProfileArea<'_> {
        self.profile.area()
    }

    pub(in super::super) fn miscount(&self) -> Option<(usize, u64)> {
        self.plan.miscount()
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
