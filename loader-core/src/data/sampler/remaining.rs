//! What remains of an epoch that several ranks have loaded in part, and the shares of other ranks in it.
//!
//! The order of an epoch is one sequence of positions, the same for all ranks: rank `r` of `n` loads the
//! positions `r`, `r + n`, `r + 2n`, ... So numbers alone say which positions the ranks have returned
//! ([`Taken`]). What remains is a sequence again, and the ranks of the next run share it in the same way. If
//! they stop in mid-epoch too, their positions are positions in that sequence: each run adds a layer. A run whose
//! ranks stopped at the same position took the beginning of its sequence, which is added to the layer below if
//! that is a beginning too. So a run that is stopped often has one number.
//!
//! Alternative considered: a list of the positions that remain before the last position that was returned.
//! Rejected because the list is as long as the epoch if one rank has loaded its whole share and another has
//! loaded nothing.

use std::{collections::BTreeSet, sync::Arc};

use serde::{Deserialize, Serialize};

use super::{
    BatchSampler, DistributedSampler, Epoch, FixedBatches, RandomSampler, Sampler, by_position::ByPosition,
    permutation::Permutations,
};
use crate::options::Order;

/// What the ranks of one run have returned: for each rank, ranges of its share, counted in samples. If all ranks
/// returned the same number from the start, it is one range of the whole sequence instead. A share is counted in
/// samples.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Taken(Vec<Vec<(u64, u64)>>);

impl Taken {
    /// Adds what the ranks of one more run have returned to what the runs before it have.
    pub(crate) fn add(layers: &mut Vec<Self>, ranks: Vec<Vec<(u64, u64)>>) {
        let taken = Self::new(ranks);
        match (layers.last().and_then(Self::beginning), taken.beginning()) {
            (_, Some(0)) => {}
            (Some(before), Some(more)) => {
                layers.pop();
                layers.push(Self(vec![vec![(0, before.saturating_add(more))]]));
            }
            _ => layers.push(taken),
        }
    }

    fn new(mut ranks: Vec<Vec<(u64, u64)>>) -> Self {
        ranks.iter_mut().for_each(|ranges| *ranges = joined(std::mem::take(ranges)));
        let first = ranks.first().cloned().unwrap_or_default();
        match first[..] {
            _ if ranks.iter().any(|ranges| *ranges != first) => Self(ranks),
            [] => Self(vec![vec![]]),
            [(0, end)] => Self(vec![vec![(0, end.saturating_mul(ranks.len() as u64))]]),
            _ => Self(ranks),
        }
    }

    /// Returns the length of the beginning that was taken, if it is all that was taken.
    fn beginning(&self) -> Option<u64> {
        match &self.0[..] {
            [ranges] => match ranges[..] {
                [] => Some(0),
                [(0, end)] => Some(end),
                _ => None,
            },
            _ => None,
        }
    }
}

/// Sorts ranges, and joins those that touch or overlap.
fn joined(mut ranges: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    ranges.retain(|(start, end)| start < end);
    ranges.sort_unstable();
    let mut joined: Vec<(u64, u64)> = Vec::new();
    for (start, end) in ranges {
        match joined.last_mut() {
            Some(last) if start <= last.1 => last.1 = last.1.max(end),
            _ => joined.push((start, end)),
        }
    }
    joined
}

/// The positions of an epoch that remain, in order.
#[derive(Debug)]
pub(crate) struct Remaining {
    len: u64,
    levels: Vec<Level>,
}

/// The positions of a sequence that one run has left.
#[derive(Debug)]
struct Level {
    world_size: u64,
    spans: Vec<Span>,
}

/// Positions from a multiple of the world size to another one that all belong to the same ranks.
#[derive(Debug)]
struct Span {
    /// Number of positions that remain before it.
    start: u64,
    /// Its first position, divided by the world size.
    row: u64,
    /// The ranks whose positions remain.
    ranks: Vec<u32>,
}

impl Remaining {
    /// What remains of an epoch of `len` samples. Memory: at most 4 bytes for each rank, in each span of the
    /// epoch between two positions at which a rank stopped.
    pub(crate) fn new(len: usize, layers: &[Taken]) -> Self {
        let mut remaining = Self { len: len as u64, levels: Vec::new() };
        for taken in layers.iter().filter(|taken| !taken.0.is_empty()) {
            let (level, left) = Level::new(remaining.len, taken);
            remaining.levels.push(level);
            remaining.len = left;
        }
        remaining
    }

    /// Number of positions that remain.
    pub(crate) fn len(&self) -> usize {
        self.len as usize
    }

    /// Returns the position in the epoch of the remaining position `position`, which is below `len`.
    fn at(&self, position: usize) -> usize {
        self.levels.iter().rev().fold(position as u64, |position, level| level.at(position)) as usize
    }
}

impl Level {
    /// Returns what `taken` leaves of a sequence of `len` positions, and the number of these positions.
    fn new(len: u64, taken: &Taken) -> (Self, u64) {
        let world_size = taken.0.len() as u64;
        // Where a range of positions that remain begins (true) or ends, by row.
        let mut events: Vec<(u64, u32, bool)> = Vec::new();
        for (rank, ranges) in (0..).zip(&taken.0) {
            let share = len.saturating_sub(u64::from(rank)).div_ceil(world_size);
            let mut row = 0;
            for (start, end) in joined(ranges.clone()).into_iter().chain([(share, share)]) {
                let start = start.min(share);
                if start > row {
                    events.extend([(row, rank, true), (start, rank, false)]);
                }
                row = row.max(end);
            }
        }
        events.sort_unstable();
        let (mut spans, mut ranks, mut row, mut left) = (Vec::new(), BTreeSet::new(), 0, 0);
        for (at, rank, begins) in events {
            if at > row && !ranks.is_empty() {
                spans.push(Span { start: left, row, ranks: ranks.iter().copied().collect() });
                left += (at - row) * ranks.len() as u64;
            }
            row = at;
            if begins {
                ranks.insert(rank)
            } else {
                ranks.remove(&rank)
            };
        }
        (Self { world_size, spans }, left)
    }

    fn at(&self, position: u64) -> u64 {
        let span = &self.spans[self.spans.partition_point(|span| span.start <= position) - 1];
        let (offset, ranks) = (position - span.start, span.ranks.len() as u64);
        (span.row + offset / ranks) * self.world_size + u64::from(span.ranks[(offset % ranks) as usize])
    }
}

/// The order of a whole epoch, of which each rank loads a share.
#[derive(Debug, Clone, Copy)]
pub(crate) enum EpochOrder {
    /// The order of the ranks.
    Distributed(DistributedSampler),
    /// The order of a loader with `shuffle` that has no rank. In the native order it is that of the ranks.
    Random(RandomSampler),
}

impl EpochOrder {
    /// Returns the index at each position of `epoch`. The positions may be asked for in any order.
    fn indices(&self, epoch: Epoch) -> Option<Permutations> {
        match self {
            Self::Distributed(sampler) => sampler.permutation(epoch),
            Self::Random(sampler) => Some(sampler.permutation(epoch)),
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::Distributed(sampler) => sampler.samples(),
            Self::Random(sampler) => sampler.len(),
        }
    }

    /// Returns a text that is the same for equal orders.
    pub(crate) fn fingerprint(&self, order: Order) -> &'static str {
        match self {
            Self::Distributed(sampler) if !sampler.shuffles() => "sequential",
            Self::Random(_) if order.is_torch() => "shuffle with the loader's generator",
            _ => "shuffle",
        }
    }
}

/// How this process takes its share of an epoch, or of what remains of one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sharing {
    pub(crate) order: EpochOrder,
    pub(crate) rank: usize,
    pub(crate) world_size: usize,
    pub(crate) batch_size: usize,
    pub(crate) drop_last: bool,
}

impl Sharing {
    /// Returns the batches of this process's share of what remains after `layers`.
    pub(crate) fn of_remaining(&self, layers: &[Taken]) -> impl BatchSampler + use<> {
        let remaining = Arc::new(Remaining::new(self.order.len(), layers));
        let share = share(remaining.len(), self.world_size, self.rank, self.drop_last);
        FixedBatches::new(
            ShareOfRemaining { order: self.order, remaining, share },
            self.batch_size,
            self.drop_last,
        )
    }
}

/// Returns the share of `rank` in a sequence of `len` positions.
pub(crate) fn share(len: usize, world_size: usize, rank: usize, drop_last: bool) -> DistributedSampler {
    let share = DistributedSampler::new(len, world_size, rank).expect("`build` has checked the rank");
    share.shuffle(false).drop_last(drop_last)
}

/// A rank's share of what remains of an epoch.
#[derive(Debug)]
struct ShareOfRemaining {
    order: EpochOrder,
    remaining: Arc<Remaining>,
    /// The share of the remaining positions.
    share: DistributedSampler,
}

impl Sampler for ShareOfRemaining {
    fn len(&self) -> usize {
        Sampler::len(&self.share)
    }

    fn indices(&self, epoch: Epoch) -> Box<dyn Iterator<Item = usize> + Send> {
        let (remaining, share, samples) = (Arc::clone(&self.remaining), self.share, self.order.len());
        let mut order = self.order.indices(epoch);
        Box::new(ByPosition::new(Sampler::len(&share), move |position| {
            let position = share.position(position);
            // Like a whole epoch, what remains is filled up with samples from the front of the epoch.
            let position = match position.checked_sub(remaining.len()) {
                None => remaining.at(position),
                Some(behind) => behind % samples,
            };
            order.as_mut().map_or(position, |order| order.at(position))
        }))
    }

    fn repeated(&self, epoch: Epoch) -> usize {
        self.share.repeated(epoch)
    }
}
