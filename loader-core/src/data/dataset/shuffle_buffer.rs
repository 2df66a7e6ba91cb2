//! An iterable dataset that is shuffled within a buffer.
//!
//! A snapshot contains the position of the generator, the position in the stream of each sample in the
//! buffer, and a snapshot of the inner stream from before the oldest of these samples, with the items since
//! then that were errors. A resumed stream reads again from that inner snapshot and keeps the samples that were
//! in the buffer. Alternative considered: the
//! samples themselves in the snapshot. Rejected because workers send snapshots with their batches: a buffer
//! of a thousand photographs would add hundreds of megabytes, and each sample type would have to implement
//! `Serialize`.

use std::mem;

use anyhow::{anyhow, ensure};
use rand::rngs::ChaCha8Rng;
use serde::{Deserialize, Serialize};

use super::{
    IterableDataset, Shard, SnapshotDataset, SnapshotIterator,
    out_of_place::OutOfPlace,
    reader::{Reader, ReaderSnapshot},
};
use crate::data::{context::SampleContext, random::below};

/// An iterable dataset whose samples are shuffled within a buffer. Created by
/// [`IterableDataset::shuffle_buffer`].
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ShuffleBuffer<D> {
    dataset: D,
    size: usize,
}

impl<D> ShuffleBuffer<D> {
    pub(super) fn new(dataset: D, size: usize) -> Self {
        assert!(size > 0, "the size of a shuffle buffer must be at least 1");
        Self { dataset, size }
    }

    /// Number of items between two marks of the stream. More marks cost more snapshots; fewer marks cost more
    /// items that a resumed stream reads again. With this interval the distance to the mark adds at most a
    /// quarter of the buffer.
    fn interval(&self) -> u64 {
        self.size.div_ceil(4) as u64
    }
}

impl<D: IterableDataset> IterableDataset for ShuffleBuffer<D> {
    type Sample = D::Sample;

    fn iter(
        &self,
        shard: Shard,
        cx: &mut SampleContext,
    ) -> anyhow::Result<impl Iterator<Item = anyhow::Result<D::Sample>> + Send> {
        let mut buffer = Buffer::new(self.size, cx.buffer_rng(self.layers()));
        let mut items = (0..).zip(self.dataset.iter(shard, cx)?).fuse();
        let mut read = move || {
            let (position, item) = items.next()?;
            Some(item.map_err(|error| OutOfPlace::mark(error, position)))
        };
        Ok(std::iter::from_fn(move || buffer.next(|_| read())))
    }

    fn len(&self) -> Option<usize> {
        self.dataset.len()
    }

    fn fingerprint(&self) -> String {
        format!("shuffle_buffer({}, {})", self.size, self.dataset.fingerprint())
    }

    pass_on_to_inner!(adds_layers: 1);
}

/// Snapshot of a [`ShuffleBuffer`].
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct BufferSnapshot {
    /// Number of words drawn from the generator.
    drawn: u64,
    reader: ReaderSnapshot,
    /// Positions of the samples in the buffer, counted from the start of `reader`.
    held: Vec<u32>,
}

#[cfg(test)]
impl BufferSnapshot {
    /// Number of items that a stream resumed from this snapshot reads again.
    pub(super) fn items_read_again(&self) -> u64 {
        self.reader.read - self.reader.start
    }
}

impl<D: SnapshotDataset> SnapshotDataset for ShuffleBuffer<D> {
    type Snapshot = BufferSnapshot;

    fn iter_from(
        &self,
        shard: Shard,
        cx: &mut SampleContext,
        snapshot: Option<BufferSnapshot>,
    ) -> anyhow::Result<
        impl SnapshotIterator<Item = anyhow::Result<D::Sample>, Snapshot = BufferSnapshot> + Send,
    > {
        let mut buffer = Buffer::new(self.size, cx.buffer_rng(self.layers()));
        let inner = snapshot.as_ref().map(|snapshot| snapshot.reader.inner()).transpose()?.flatten();
        let items = self.dataset.iter_from(shard, cx, inner)?;
        let Some(BufferSnapshot { drawn, reader, held }) = snapshot else {
            return Ok(BufferIter { buffer, reader: Reader::new(items, self.interval()) });
        };
        let end = reader.read;
        let mut reader = Reader::resume(items, self.interval(), reader);
        buffer.held = read_again(&mut reader, end, &held)?;
        buffer.rng.set_word_pos(drawn.into());
        Ok(BufferIter { buffer, reader })
    }
}

/// The samples in the buffer.
struct Buffer<T> {
    held: Vec<T>,
    size: usize,
    rng: ChaCha8Rng,
}

impl<T> Buffer<T> {
    fn new(size: usize, rng: ChaCha8Rng) -> Self {
        Self { held: Vec::new(), size, rng }
    }

    /// Returns the next sample in shuffled order. Calls `read` with the content of the buffer for the next
    /// item of the stream; `read` returns `None` at the stream's end.
    fn next(&mut self, mut read: impl FnMut(&[T]) -> Option<anyhow::Result<T>>) -> Option<anyhow::Result<T>> {
        loop {
            let len = self.held.len();
            match read(&self.held) {
                // An error is returned at once and not shuffled.
                Some(Err(error)) => return Some(Err(error)),
                Some(Ok(item)) if len < self.size => self.held.push(item),
                Some(Ok(item)) => {
                    let index = self.draw();
                    return Some(Ok(mem::replace(&mut self.held[index], item)));
                }
                None if len == 0 => return None,
                None => {
                    let index = self.draw();
                    return Some(Ok(self.held.swap_remove(index)));
                }
            }
        }
    }

    /// Draws a random index into the buffer, which must not be empty.
    fn draw(&mut self) -> usize {
        below(&mut self.rng, self.held.len() as u64) as usize
    }
}

/// Reads the items from the first mark of `reader` to position `end` again. Returns the samples at `positions`,
/// in this order. `positions` are counted from the first mark.
fn read_again<S, I>(reader: &mut Reader<I>, end: u64, positions: &[u32]) -> anyhow::Result<Vec<(u64, S)>>
where
    I: SnapshotIterator<Item = anyhow::Result<S>, Snapshot: Serialize>,
{
    let start = reader.read();
    // The positions in ascending order, each with its index in `positions`.
    let mut wanted: Vec<(u64, usize)> = (0..)
        .zip(positions)
        .map(|(index, &position)| (start.saturating_add(position.into()), index))
        .collect();
    wanted.sort_unstable();
    let oldest = wanted.first().map(|(position, _)| *position);
    let mut wanted = wanted.into_iter().peekable();
    let mut found: Vec<(usize, (u64, S))> = Vec::new();
    reader.repeat(end, oldest, |position, item| {
        let index = wanted.next_if(|(next, _)| *next == position).map(|(_, index)| index);
        match (item, index) {
            (Ok(sample), Some(index)) => found.push((index, (position, sample))),
            (Err(error), Some(_)) => return Err(error),
            // The user has this sample.
            _ => {}
        }
        Ok(())
    })?;
    ensure!(found.len() == positions.len(), "the snapshot of the shuffle buffer is invalid");
    found.sort_unstable_by_key(|(index, _)| *index);
    Ok(found.into_iter().map(|(_, sample)| sample).collect())
}

/// A shuffled stream with snapshots.
struct BufferIter<I, S> {
    buffer: Buffer<(u64, S)>,
    reader: Reader<I>,
}

/// Returns the position of the oldest sample in the buffer.
fn oldest_position<S>(held: &[(u64, S)]) -> Option<u64> {
    held.iter().map(|(position, _)| *position).min()
}

impl<S, I> Iterator for BufferIter<I, S>
where
    I: SnapshotIterator<Item = anyhow::Result<S>, Snapshot: Serialize>,
{
    type Item = anyhow::Result<S>;

    fn next(&mut self) -> Option<Self::Item> {
        let Self { buffer, reader } = self;
        let item = buffer.next(|held| reader.next(|| oldest_position(held)))?;
        Some(item.map(|(_, sample)| sample))
    }
}

impl<S, I> SnapshotIterator for BufferIter<I, S>
where
    I: SnapshotIterator<Item = anyhow::Result<S>, Snapshot: Serialize>,
{
    type Snapshot = BufferSnapshot;

    fn snapshot(&self) -> anyhow::Result<BufferSnapshot> {
        let Self { buffer, reader } = self;
        let reader = reader.snapshot(oldest_position(&buffer.held));
        let position = |(position, _): &(u64, S)| u32::try_from(position - reader.start);
        let held: Result<Vec<u32>, _> = buffer.held.iter().map(position).collect();
        let held =
            held.map_err(|_| anyhow!("a sample has been in the shuffle buffer for more than 2^32 items"))?;
        Ok(BufferSnapshot { drawn: u64::try_from(buffer.rng.get_word_pos())?, reader, held })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rand::SeedableRng;

    use super::*;

    proptest! {
        #[test]
        fn a_buffer_returns_each_item_once_and_only_after_reading_it(
            count in 0usize..100, size in 1usize..20, seed: u64,
        ) {
            let mut items = (0..count).map(anyhow::Ok);
            let mut buffer = Buffer::new(size, ChaCha8Rng::seed_from_u64(seed));
            let shuffled = std::iter::from_fn(|| buffer.next(|_| items.next())).map(Result::unwrap);
            let mut returned: Vec<usize> = shuffled.collect();
            // Before it returns an item, the buffer reads at most `size` items more than it has returned.
            prop_assert!(returned.iter().enumerate().all(|(before, &item)| item <= before + size));
            returned.sort_unstable();
            prop_assert!(returned.into_iter().eq(0..count));
        }
    }
}
