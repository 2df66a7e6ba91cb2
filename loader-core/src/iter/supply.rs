//! What an epoch's tasks are made from: a plan of batches, or shards.

use std::collections::BTreeSet;

use loader_ipc::frame::BadSample;

use super::{BatchInfo, shards::Shards};
use crate::{
    error::Error,
    fetch::ShardPlace,
    plan::{Plan, Planned},
    schedule::Schedule,
    state::{BatchesPlace, Place},
};

/// What is still to be loaded.
#[allow(clippy::large_enum_variant)] // one an epoch
pub(crate) enum Supply {
    Batches {
        plan: Plan,
        /// Taken from the plan, not yet sent: there was no room in shared memory.
        held_back: Option<Planned>,
        /// Batches of the plan that are not to be loaded: the user has got them.
        ahead: BTreeSet<u64>,
    },
    Shards {
        shards: Shards,
        /// Shards that a worker has been told where to open.
        opened: Vec<bool>,
        /// How far each one has come in a worker; the user may not have got it yet.
        reached: Vec<Reached>,
    },
}

/// What a task asks for.
#[derive(Debug)]
pub(super) enum Wanted {
    /// The samples of these indices.
    Samples(Vec<usize>),
    /// The next ones of a shard, which is opened at a place if this is its first task.
    NextOf { shard: usize, open_at: Option<ShardPlace> },
}

impl Wanted {
    /// True for a task whose shard is opened before the task's first item, so that its worker reads the item
    /// `position` on the way there.
    pub(super) fn begins_behind(&self, position: usize) -> bool {
        matches!(self, Self::NextOf { open_at: Some(place), .. } if (position as u64) < place.position)
    }
}

/// How far a shard has come, by what its workers have said.
#[derive(Debug, Clone, Default)]
pub(crate) struct Reached {
    position: u64,
    /// It cannot be read any further.
    is_over: bool,
}

/// Where a batch leaves its shard; of no meaning for a batch of indices.
#[derive(Debug, Default)]
pub(super) struct ShardEnd {
    pub(super) position: u64,
    pub(super) snapshot: Option<Vec<u8>>,
    /// There is nothing behind it.
    pub(super) is_last: bool,
}

impl Supply {
    pub(crate) fn batches(plan: Plan) -> Self {
        Self::Batches { plan, held_back: None, ahead: BTreeSet::new() }
    }

    /// A plan without what a state says was returned.
    pub(crate) fn batches_from(mut plan: Plan, place: &BatchesPlace) -> Self {
        plan.skip_to(place.next);
        Self::Batches { plan, held_back: None, ahead: place.ahead.iter().copied().collect() }
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

    /// A schedule for it.
    pub(super) fn schedule<P>(&self, workers: usize, per_worker: usize, in_order: bool) -> Schedule<P> {
        match self {
            Self::Batches { plan, .. } => {
                let mut schedule = Schedule::new(workers, per_worker, in_order);
                schedule.start_at(plan.next_number(), 0);
                schedule
            }
            Self::Shards { shards, .. } => {
                let mut schedule = Schedule::with_lanes(shards.count(), workers, per_worker, in_order);
                schedule.start_at(0, shards.turn());
                (0..shards.count())
                    .filter(|&shard| shards.place(shard).ended)
                    .for_each(|shard| schedule.close_lane(shard));
                schedule
            }
        }
    }

    /// Tasks are of shards, and so bound to their workers.
    pub(super) fn has_shards(&self) -> bool {
        matches!(self, Self::Shards { .. })
    }

    /// What the next task of `lane` asks for; `None` when there is no more. Numbers that the user has already are left out of the schedule.
    pub(super) fn next<P>(
        &mut self,
        lane: usize,
        schedule: &mut Schedule<P>,
    ) -> Option<(Wanted, Option<Error>)> {
        match self {
            Self::Batches { plan, held_back, ahead, .. } => loop {
                let Planned { number, indices, error } = held_back.take().or_else(|| plan.next())?;
                if ahead.remove(&number) {
                    schedule.leave_out();
                    continue;
                }
                debug_assert_eq!(number, schedule.next_number());
                return Some((Wanted::Samples(indices), error));
            },
            Self::Shards { .. } => Some((self.next_of(lane), None)),
        }
    }

    /// What a task of `shard` asks for.
    fn next_of(&self, shard: usize) -> Wanted {
        let Self::Shards { shards, opened, reached } = self else { unreachable!("a plan has no shards") };
        let open_at = (!opened[shard]).then(|| {
            let place = shards.place(shard);
            ShardPlace { position: place.position.max(reached[shard].position), ..place.clone() }
        });
        Wanted::NextOf { shard, open_at }
    }

    /// Notes how far a shard has come, and that it cannot be read any further.
    pub(super) fn reached(&mut self, shard: usize, position: u64, is_over: bool) {
        if let Self::Shards { reached, .. } = self {
            let reached = &mut reached[shard];
            reached.position = reached.position.max(position);
            reached.is_over |= is_over;
        }
    }

    /// Max position that a task's shard can have behind the next batch of it; 0 for a task of indices.
    pub(super) fn max_position(&self, wanted: &Wanted) -> u64 {
        match (self, wanted) {
            (Self::Shards { shards, reached, .. }, &Wanted::NextOf { shard, .. }) => {
                // The worker answers the tasks of a shard in their order, so it begins where the last answer left the shard.
                let position = shards.place(shard).position.max(reached[shard].position);
                position.saturating_add(shards.max_items())
            }
            _ => 0,
        }
    }

    /// Another process will be the worker `worker` of `workers`: its shards are to be opened again, but for those that are over, which are
    /// returned.
    pub(super) fn reopen(&mut self, worker: usize, workers: usize) -> BTreeSet<usize> {
        let Self::Shards { opened, reached, .. } = self else { return BTreeSet::new() };
        let own = (worker..opened.len()).step_by(workers);
        own.clone().for_each(|shard| opened[shard] = false);
        own.filter(|&shard| reached[shard].is_over).collect()
    }

    /// What a task of `shard`, which is sent again with a slot of `room` bytes, asks for.
    pub(super) fn again(&mut self, shard: usize, room: u64) -> Wanted {
        let mut wanted = self.next_of(shard);
        if let Wanted::NextOf { open_at: Some(place), .. } = &mut wanted {
            // The slot was leased for a batch: where it has no room for the snapshot, the shard is read from its beginning.
            place.snapshot.take_if(|snapshot| snapshot.bytes.len() as u64 > room);
        }
        self.sent(&wanted);
        wanted
    }

    /// Takes back what could not be sent as task `number`.
    pub(super) fn hold_back(&mut self, number: u64, wanted: Wanted) {
        if let (Self::Batches { held_back, .. }, Wanted::Samples(indices)) = (self, wanted) {
            *held_back = Some(Planned { number, indices, error: None });
        }
    }

    /// Notes that a task was sent.
    pub(super) fn sent(&mut self, wanted: &Wanted) {
        if let (Self::Shards { opened, .. }, Wanted::NextOf { shard, .. }) = (self, wanted) {
            opened[*shard] = true;
        }
    }

    /// The number that the user knows the batch of task `task` by.
    pub(super) fn number_of(&self, task: u64) -> u64 {
        match self {
            Self::Batches { .. } => task,
            Self::Shards { shards, .. } => shards.returned(),
        }
    }

    /// Notes that the user gets the batch of a task, or its error, which leaves its shard at `end`.
    pub(super) fn returned(
        &mut self,
        task: u64,
        wanted: Wanted,
        worker: usize,
        end: ShardEnd,
        bad: Vec<BadSample>,
    ) -> BatchInfo {
        match wanted {
            Wanted::Samples(indices) => BatchInfo::of_indices(task, indices, Some(worker), bad),
            Wanted::NextOf { shard, .. } => {
                let Self::Shards { shards, .. } = self else { unreachable!("a plan has no shards") };
                let number = shards.returned();
                let samples = shards.advance(shard, end.position, end.snapshot);
                if end.is_last {
                    shards.end(shard);
                }
                BatchInfo::of_shard(number, shard, samples, Some(worker), bad)
            }
        }
    }

    /// Where the user stands, behind what is through in `schedule`.
    pub(super) fn place<P>(&self, schedule: &Schedule<P>) -> Place {
        match self {
            Self::Batches { plan, ahead, .. } => {
                plan.place(schedule.first(), schedule.through().chain(ahead.iter().copied()).collect())
            }
            Self::Shards { shards, .. } => Place::Shards(shards.write()),
        }
    }

    /// The number of batches that the sampler said, and the number that it has given, once they are known to
    /// differ.
    pub(super) fn miscount(&self) -> Option<(usize, u64)> {
        match self {
            Self::Batches { plan, .. } => plan.miscount(),
            Self::Shards { .. } => None,
        }
    }

    /// Batches that are still to be sent.
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
