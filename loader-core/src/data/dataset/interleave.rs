//! Iterable datasets whose samples are interleaved.

use std::marker::PhantomData;

use anyhow::{Context, ensure};
use loader_ipc::codec;
use serde::{Deserialize, Serialize};

use super::{
    IterableDataset, Shard, SnapshotDataset, SnapshotIterator,
    nested::{Nested, open_later},
    with_len,
};
use crate::data::context::SampleContext;

/// Iterable datasets of one type whose samples are interleaved in each shard: the open streams give one
/// sample each in turn, as with `interleave` of `tf.data`.
///
/// At most `cycle_length` streams are open at the same time. When a stream ends, the next stream that has not
/// been opened takes its place and its turn. The order depends only on the streams and on `cycle_length`. To
/// interleave parts of one dataset see [`IterableDataset::interleave`].
///
/// # Examples
/// ```
/// use loader_core::{InterleaveDataset, prelude::*};
/// # #[derive(serde::Serialize, serde::Deserialize)]
/// # struct Numbers(std::ops::Range<u64>);
/// # impl IterableDataset for Numbers {
/// #     type Sample = u64;
/// #     fn iter(&self, shard: Shard, _cx: &mut SampleContext) -> anyhow::Result<impl Iterator<Item = anyhow::Result<u64>> + Send> {
/// #         Ok(shard.of(self.0.clone()).map(Ok))
/// #     }
/// # }
/// let streams = InterleaveDataset::new([Numbers(0..2), Numbers(10..13), Numbers(20..22)], 2);
/// let loader = DataLoader::stream(streams).batch_size(7).build()?;
/// assert_eq!(loader.iter()?.next().unwrap()?.as_slice(), [0, 10, 1, 11, 20, 12, 21]);
/// # anyhow::Ok(())
/// ```
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(bound(serialize = "D: Serialize", deserialize = "D: Deserialize<'de>"))]
pub struct InterleaveDataset<D> {
    streams: Vec<D>,
    /// Number of parts that each stream is split into. Each part has its own turn.
    parts: usize,
    cycle_length: usize,
}

impl<D: IterableDataset> InterleaveDataset<D> {
    /// Interleaves `streams`, of which at most `cycle_length` are open at the same time.
    ///
    /// # Panics
    /// Panics if `cycle_length` is 0.
    pub fn new(streams: impl IntoIterator<Item = D>, cycle_length: usize) -> Self {
        assert!(cycle_length > 0, "the cycle length must be at least 1");
        Self { streams: streams.into_iter().collect(), parts: 1, cycle_length }
    }

    /// Splits `stream` into `parts` parts and interleaves them, all of them open at the same time.
    pub(super) fn of_parts(stream: D, parts: usize) -> Self {
        Self { parts, ..Self::new([stream], parts) }
    }

    /// Number of lanes in a shard: one for each part of each stream.
    fn lanes(&self) -> usize {
        self.streams.len() * self.parts
    }

    /// Returns the stream that a lane reads, and the shard of it.
    fn lane(&self, lane: usize, shard: Shard) -> (&D, Shard) {
        let part =
            Shard::new(shard.index() + shard.count() * (lane % self.parts), shard.count() * self.parts);
        (&self.streams[lane / self.parts], part)
    }
}

impl<D: IterableDataset> IterableDataset for InterleaveDataset<D> {
    type Sample = D::Sample;

    fn iter(
        &self,
        shard: Shard,
        cx: &mut SampleContext,
    ) -> anyhow::Result<impl Iterator<Item = anyhow::Result<D::Sample>> + Send> {
        let own = cx.for_layer(self.layers());
        let open = move |lane, _: Option<()>| {
            let (stream, part) = self.lane(lane, shard);
            open_later(stream, part, own.for_lane(lane, lane / self.parts, part))
        };
        Ok(Turns::new(open, self.lanes(), self.cycle_length))
    }

    fn len(&self) -> Option<usize> {
        self.streams.iter().try_fold(0usize, |sum, stream| sum.checked_add(stream.len()?))
    }

    fn setup(&mut self, cx: &mut SampleContext) -> anyhow::Result<()> {
        self.streams.iter_mut().try_for_each(|stream| stream.setup(cx))
    }

    fn fingerprint(&self) -> String {
        let streams = self.streams.iter().map(|stream| with_len(&stream.fingerprint(), stream.len()));
        let streams = streams.collect::<Vec<_>>().join(", ");
        // A cycle longer than the number of lanes gives the same order as one of that length.
        format!("interleave({} of {}, {streams})", self.cycle_length.min(self.lanes()), self.lanes())
    }

    fn layers(&self) -> u8 {
        self.streams.iter().map(D::layers).max().unwrap_or(0).wrapping_add(1)
    }
}

/// Snapshot of an [`InterleaveDataset`].
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct InterleaveSnapshot {
    /// Index in `slots` of the lane whose turn it is.
    turn: usize,
    /// The next lane to be opened.
    next_lane: usize,
    /// The open lanes in the order of their turns, each with its encoded snapshot; `None` stands for the
    /// beginning of the lane.
    slots: Vec<(usize, Option<Vec<u8>>)>,
}

impl<D: SnapshotDataset> SnapshotDataset for InterleaveDataset<D> {
    type Snapshot = InterleaveSnapshot;

    fn iter_from(
        &self,
        shard: Shard,
        cx: &mut SampleContext,
        snapshot: Option<InterleaveSnapshot>,
    ) -> anyhow::Result<
        impl SnapshotIterator<Item = anyhow::Result<D::Sample>, Snapshot = InterleaveSnapshot> + Send,
    > {
        let own = cx.for_layer(self.layers());
        let nested = move |lane, snapshot| {
            let (stream, part) = self.lane(lane, shard);
            Nested::new(stream, part, own.for_lane(lane, lane / self.parts, part), snapshot)
        };
        let Some(InterleaveSnapshot { turn, next_lane, slots }) = snapshot else {
            return Ok(Turns::new(nested, self.lanes(), self.cycle_length));
        };
        let is_valid = turn < slots.len() && slots.iter().all(|(lane, _)| *lane < self.lanes());
        ensure!(
            is_valid,
            "the snapshot of the interleaved streams is invalid; the dataset must have the same streams as when the \
             snapshot was taken"
        );
        let resumed = slots.into_iter().map(|(lane, snapshot)| {
            let Some(bytes) = snapshot else { return Ok(Slot::new(lane)) };
            let inner = codec::decode(&bytes).context("reading the snapshot of an interleaved stream")?;
            let mut items = nested(lane, Some(inner));
            // Opened here instead of at its first item: an error then means that the shard could not be
            // opened, and the shard keeps its position.
            items.open()?;
            Ok(Slot { lane, items: Some(items), snapshot: Some(bytes) })
        });
        let slots = resumed.collect::<anyhow::Result<Vec<_>>>()?;
        Ok(Turns { slots, turn, next_lane, lanes: self.lanes(), open: nested, snapshot: PhantomData })
    }
}

/// Iterator over the samples of lanes that take turns.
struct Turns<L, P, F> {
    /// The open lanes in the order of their turns; empty after all lanes have ended.
    slots: Vec<Slot<L>>,
    /// Index in `slots` of the lane whose turn it is.
    turn: usize,
    /// The next lane to be opened.
    next_lane: usize,
    /// Number of lanes.
    lanes: usize,
    /// Opens a lane, at a snapshot or at its beginning.
    open: F,
    snapshot: PhantomData<fn(P)>,
}

/// A lane that has not ended.
struct Slot<L> {
    lane: usize,
    /// `None` before the first turn of the lane.
    items: Option<L>,
    /// The snapshot at which the lane was resumed; `None` after it has given an item.
    snapshot: Option<Vec<u8>>,
}

impl<L> Slot<L> {
    fn new(lane: usize) -> Self {
        Self { lane, items: None, snapshot: None }
    }
}

impl<L, P, F> Turns<L, P, F> {
    fn new(open: F, lanes: usize, cycle_length: usize) -> Self {
        let first = lanes.min(cycle_length);
        let slots = (0..first).map(Slot::new).collect();
        Self { slots, turn: 0, next_lane: first, lanes, open, snapshot: PhantomData }
    }
}

impl<L: Iterator, P, F: Fn(usize, Option<P>) -> L> Iterator for Turns<L, P, F> {
    type Item = L::Item;

    fn next(&mut self) -> Option<L::Item> {
        loop {
            let slot = self.slots.get_mut(self.turn)?;
            let lane = slot.lane;
            if let Some(item) = slot.items.get_or_insert_with(|| (self.open)(lane, None)).next() {
                slot.snapshot = None;
                self.turn = (self.turn + 1) % self.slots.len();
                return Some(item);
            }
            if self.next_lane < self.lanes {
                *slot = Slot::new(self.next_lane);
                self.next_lane += 1;
            } else {
                self.slots.remove(self.turn);
                self.turn = if self.turn < self.slots.len() { self.turn } else { 0 };
            }
        }
    }
}

impl<L, P, F> SnapshotIterator for Turns<L, P, F>
where
    L: SnapshotIterator<Snapshot: Serialize>,
    F: Fn(usize, Option<P>) -> L,
{
    type Snapshot = InterleaveSnapshot;

    fn snapshot(&self) -> anyhow::Result<InterleaveSnapshot> {
        let write = |slot: &Slot<L>| {
            let snapshot = match (&slot.snapshot, &slot.items) {
                (Some(bytes), _) => Some(bytes.clone()),
                (None, Some(items)) => Some(codec::encode(&items.snapshot()?)?),
                (None, None) => None,
            };
            Ok((slot.lane, snapshot))
        };
        let slots = self.slots.iter().map(write).collect::<anyhow::Result<_>>()?;
        Ok(InterleaveSnapshot { turn: self.turn, next_lane: self.next_lane, slots })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::data::dataset::testing::Stream;

    fn samples<D: IterableDataset>(dataset: &D, shard: Shard) -> Vec<D::Sample> {
        let mut cx = SampleContext::for_shard(None, 5, 0, shard);
        dataset.iter(shard, &mut cx).unwrap().map(Result::unwrap).collect()
    }

    #[test]
    fn interleaved_parts_give_the_samples_in_their_order() {
        let stream = || Stream { count: 23, bad: None, is_missing: false };
        for (index, count) in [(0, 1), (1, 3)] {
            let shard = Shard::new(index, count);
            let numbers =
                |samples: Vec<(u64, u64)>| samples.into_iter().map(|(number, _)| number).collect::<Vec<_>>();
            let interleaved = numbers(samples(&stream().interleave(4), shard));
            assert_eq!(
                interleaved,
                numbers(samples(&stream(), shard)),
                "each part gives every fourth sample"
            );
        }
    }

    #[test]
    fn a_cycle_length_above_the_number_of_streams_does_not_change_the_fingerprint() {
        let fingerprint = |cycle_length| {
            let stream = Stream { count: 5, bad: None, is_missing: false };
            InterleaveDataset::new([stream.clone(), stream.clone(), stream], cycle_length).fingerprint()
        };
        assert_eq!(fingerprint(8), fingerprint(3));
        assert_ne!(fingerprint(2), fingerprint(3));
    }

    #[test]
    fn no_two_streams_draw_the_same_numbers() {
        let stream = || Stream { count: 30, bad: None, is_missing: false }.shuffle_buffer(4);
        let pair = || InterleaveDataset::new([stream(), stream()], 2);
        let nested = InterleaveDataset::new([pair(), pair()], 2);
        let drawn = samples(&nested, Shard::new(0, 1));
        let distinct: BTreeSet<u64> = drawn.iter().map(|(_, noise)| *noise).collect();
        assert_eq!((drawn.len(), distinct.len()), (120, 120));
        let orders: BTreeSet<Vec<u64>> = (0..4)
            .map(|lane| drawn.iter().skip(lane).step_by(4).map(|(number, _)| *number).collect())
            .collect();
        assert_eq!(orders.len(), 4, "each buffer shuffles differently");
    }
}
