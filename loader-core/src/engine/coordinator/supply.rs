//! Supplies an epoch's tasks: from a plan of batches, or from shards.

use std::collections::BTreeSet;

use loader_ipc::frame::{AfterFailure, BadSampleRecord, StreamPosition};

use super::schedule::Schedule;
use crate::{
    data::fetch::{BatchRequest, ShardPosition},
    engine::{
        plan::{Plan, Planned},
        shards::Shards,
    },
    error::Error,
    report::batch_info::BatchInfo,
    state::{BatchesPosition, Position},
};

/// The part of an epoch that has not been sent to workers.
#[derive(Debug)]
#[allow(clippy::large_enum_variant)] // one per epoch
pub(crate) enum Supply {
    Batches {
        plan: Plan,
        /// A batch that was taken from the plan and not sent, because there was no room in shared memory.
        held_back: Option<Planned>,
        /// Batches of the plan that the user has already, and that are not loaded.
        ahead: BTreeSet<u64>,
    },
    Shards {
        shards: Shards,
        /// By shard, whether a worker was told where to open it.
        opened: Vec<bool>,
        /// By shard, how far its workers have read it. The user may be behind.
        reached: Vec<Reached>,
    },
}

/// How far a shard was read, according to its workers.
#[derive(Debug, Clone, Default)]
pub(crate) struct Reached {
    position: StreamPosition,
    /// True if it has no more batches in this epoch.
    is_over: bool,
}

/// Where a batch ends in its shard. Unused for a batch of indices.
#[derive(Debug, Default)]
pub(crate) struct ShardEnd {
    pub(crate) position: StreamPosition,
    pub(crate) snapshot: Option<Vec<u8>>,
    /// What it means for the shard if the batch failed.
    pub(crate) after: AfterFailure,
}

impl Supply {
    pub(crate) fn batches(plan: Plan) -> Self {
        Self::Batches { plan, held_back: None, ahead: BTreeSet::new() }
    }

    /// Supplies the batches of `plan` that were not returned according to a state.
    ///
    /// # Errors
    /// If the state was not taken from an equal plan.
    pub(crate) fn batches_from(mut plan: Plan, position: &BatchesPosition) -> Result<Self, Error> {
        plan.continue_from(position)?;
        Ok(Self::Batches { plan, held_back: None, ahead: position.ahead.iter().copied().collect() })
    }

    pub(crate) fn shards(shards: Shards) -> Self {
        let opened = vec![false; shards.count()];
        let reached = vec![Reached::default(); shards.count()];
        Self::Shards { shards, opened, reached }
    }

    pub(super) fn epoch(&self) -> u64 {
        match self {
            Self::Batches { plan, .. } => plan.epoch(),
            Self::Shards { shards, .. } => shards.epoch(),
        }
    }

    /// Returns an empty schedule for it.
    pub(super) fn schedule<T>(&self, is_working: &[bool], per_worker: usize, in_order: bool) -> Schedule<T> {
        match self {
            Self::Batches { plan, .. } => {
                let mut schedule = Schedule::of_workers(is_working, per_worker, in_order);
                // Batch i belongs to worker i modulo the number of workers, also in an epoch that is resumed.
                let turn = plan.next_number() % is_working.len() as u64;
                schedule.start_at(plan.next_number(), turn as usize);
                schedule
            }
            Self::Shards { shards, .. } => {
                let mut schedule = Schedule::of_shards(shards.count(), is_working, per_worker, in_order);
                schedule.start_at(0, shards.turn());
                (0..shards.count())
                    .filter(|&shard| shards.position(shard).ended)
                    .for_each(|shard| schedule.close_lane(shard));
                schedule
            }
        }
    }

    /// True for an iterable dataset, whose tasks are bound to the worker of their shard.
    pub(super) fn has_shards(&self) -> bool {
        matches!(self, Self::Shards { .. })
    }

    /// Returns the content of the next task of `lane`, and why it cannot be loaded, if so. `None` at the end.
    /// The schedule skips the numbers of batches that the user has already.
    pub(super) fn next<T>(
        &mut self,
        lane: usize,
        schedule: &mut Schedule<T>,
    ) -> Option<(BatchRequest, Option<Error>)> {
        match self {
            Self::Batches { plan, held_back, ahead, .. } => loop {
                let Planned { number, indices, error } = held_back.take().or_else(|| plan.next())?;
                if ahead.remove(&number) {
                    schedule.skip_number();
                    continue;
                }
                debug_assert_eq!(number, schedule.next_number());
                return Some((BatchRequest::Samples(indices), error));
            },
            Self::Shards { .. } => Some((self.next_of(lane), None)),
        }
    }

    /// Returns the content of the next task of `shard`.
    fn next_of(&self, shard: usize) -> BatchRequest {
        let Self::Shards { shards, opened, reached } = self else { unreachable!("a plan has no shards") };
        // The worker that has opened it knows the position.
        let open_at = if opened[shard] {
            ShardPosition::default()
        } else {
            let returned = shards.position(shard);
            let position = returned.position.or_later(reached[shard].position);
            ShardPosition { position, ..returned.clone() }
        };
        BatchRequest::NextOf { shard, open_at }
    }

    /// Notes that a worker has read a shard up to `position`, and whether it has no more batches in this epoch.
    pub(super) fn reached(&mut self, shard: usize, position: StreamPosition, is_over: bool) {
        if let Self::Shards { reached, .. } = self {
            let reached = &mut reached[shard];
            reached.position = reached.position.or_later(position);
            reached.is_over |= is_over;
        }
    }

    /// Returns the maximum position of a task's shard after its next batch; 0 for a task of indices.
    pub(super) fn max_position(&self, wanted: &BatchRequest) -> u64 {
        match (self, wanted) {
            (Self::Shards { shards, reached, .. }, &BatchRequest::NextOf { shard, .. }) => {
                // A worker answers the tasks of a shard in their order, so the batch begins where the last
                // answer ended.
                let position = shards.position(shard).position.or_later(reached[shard].position);
                position.items.saturating_add(shards.max_items())
            }
            _ => 0,
        }
    }

    /// Notes that another process loads `shards` from now on, and must open them. Returns those that have no more
    /// batches in this epoch, and of which no more tasks may be sent.
    pub(super) fn reopen(&mut self, shards: &[usize]) -> BTreeSet<usize> {
        let Self::Shards { opened, reached, .. } = self else { return BTreeSet::new() };
        shards.iter().for_each(|&shard| opened[shard] = false);
        shards.iter().copied().filter(|&shard| reached[shard].is_over).collect()
    }

    /// Returns the content of a task of `shard` that is sent again, with a slot of `room` bytes.
    pub(super) fn again(&mut self, shard: usize, room: u64) -> BatchRequest {
        let mut wanted = self.next_of(shard);
        if let BatchRequest::NextOf { open_at, .. } = &mut wanted {
            // The slot was leased for a batch. If the snapshot does not fit, the worker reads the shard from
            // its beginning.
            open_at.snapshot.take_if(|snapshot| snapshot.bytes.len() as u64 > room);
        }
        self.sent(&wanted);
        wanted
    }

    /// Keeps the content of task `number`, which could not be sent, for the next call of
    /// [`next`](Self::next).
    pub(super) fn hold_back(&mut self, number: u64, wanted: BatchRequest) {
        if let (Self::Batches { held_back, .. }, BatchRequest::Samples(indices)) = (self, wanted) {
            *held_back = Some(Planned { number, indices, error: None });
        }
    }

    /// Notes that a task was sent.
    pub(super) fn sent(&mut self, wanted: &BatchRequest) {
        if let (Self::Shards { opened, .. }, BatchRequest::NextOf { shard, .. }) = (self, wanted) {
            opened[*shard] = true;
        }
    }

    /// Returns the number that the user knows the batch of `task` by.
    pub(super) fn number_of(&self, task: u64) -> u64 {
        match self {
            Self::Batches { .. } => task,
            Self::Shards { shards, .. } => shards.returned(),
        }
    }

    /// Notes that the user gets the batch of a task, or its error. The batch ends at `end` in its shard.
    pub(super) fn returned(
        &mut self,
        task: u64,
        wanted: BatchRequest,
        worker: usize,
        end: ShardEnd,
        bad: Vec<BadSampleRecord>,
    ) -> BatchInfo {
        match wanted {
            BatchRequest::Samples(indices) => {
                let Self::Batches { plan, .. } = self else { unreachable!("shards have no indices") };
                BatchInfo::of_indices(task, indices, plan.repeated_of(task), Some(worker), bad)
            }
            BatchRequest::NextOf { shard, .. } => {
                let Self::Shards { shards, .. } = self else { unreachable!("a plan has no shards") };
                let number = shards.returned();
                let samples = shards.advance(shard, end.position, end.snapshot);
                shards.failed(shard, end.after);
                let is_read_again = end.after == AfterFailure::EndsForEpoch;
                BatchInfo { is_read_again, ..BatchInfo::of_shard(number, shard, samples, Some(worker), bad) }
            }
        }
    }

    /// Returns the user's position in the epoch: behind the tasks that are done in `schedule`.
    pub(super) fn position<T>(&self, schedule: &Schedule<T>) -> Position {
        match self {
            Self::Batches { plan, ahead, .. } => {
                plan.position(schedule.first(), schedule.done().chain(ahead.iter().copied()).collect())
            }
            Self::Shards { shards, .. } => Position::Shards(shards.write()),
        }
    }

    /// True if the user's position stays in the epoch at its end: the sampler has panicked, and so the rest of the
    /// epoch is unknown, or a shard was not read to its end.
    pub(super) fn has_rest(&self) -> bool {
        match self {
            Self::Batches { plan, .. } => plan.has_failed(),
            Self::Shards { shards, .. } => shards.has_unread_shard(),
        }
    }

    /// Returns the number of batches that the sampler announced and the number that it has given, once they
    /// differ.
    pub(super) fn miscount(&self) -> Option<(usize, u64)> {
        match self {
            Self::Batches { plan, .. } => plan.miscount(),
            Self::Shards { .. } => None,
        }
    }

    /// Returns bounds of the number of batches that have not been sent.
    pub(super) fn size_hint(&self) -> (usize, Option<usize>) {
        match self {
            Self::Batches { plan, held_back, ahead, .. } => {
                let (low, high) = plan.size_hint();
                let left =
                    |count: usize| (count + usize::from(held_back.is_some())).saturating_sub(ahead.len());
                (left(low), high.map(left))
            }
            Self::Shards { .. } => (0, None),
        }
    }
}
