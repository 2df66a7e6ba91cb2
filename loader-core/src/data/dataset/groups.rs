//! Streams of the groups that a [`Collector`] makes of the samples of another stream.
//!
//! A snapshot has no samples. It is a snapshot of the inner stream from before the oldest sample that is
//! still needed, with the number of samples read since, which items of them were errors, and the number of
//! groups given. A resumed stream reads these samples again, as a shuffle buffer does.

use serde::{Deserialize, Serialize};

use super::{
    IterableDataset, Shard, SnapshotDataset, SnapshotIterator,
    out_of_place::OutOfPlace,
    reader::{Reader, ReaderSnapshot},
};
use crate::data::{
    collector::{Collector, CollectorPosition},
    context::SampleContext,
};

/// Number of samples between two snapshots of the inner stream. A resumed stream reads up to this number of
/// samples more than it needs.
const INTERVAL: u64 = 64;

/// Returns the next group. `read` returns the next sample with its position.
fn next<S, C: Collector<S>>(
    collector: &mut C,
    mut read: impl FnMut(&C) -> Option<anyhow::Result<(u64, S)>>,
) -> Option<anyhow::Result<C::Group>> {
    loop {
        if let Some(group) = collector.pop() {
            return Some(group);
        }
        if collector.position().has_ended {
            return None;
        }
        match read(collector) {
            None => collector.end(),
            Some(Ok((position, sample))) => {
                if let Err(error) = collector.push(position, sample) {
                    return Some(Err(error));
                }
            }
            Some(Err(error)) => return Some(Err(error)),
        }
    }
}

/// Returns the groups of a shard of `dataset`.
pub(super) fn groups<D: IterableDataset, C: Collector<D::Sample> + Send>(
    mut collector: C,
    dataset: &D,
    shard: Shard,
    cx: &mut SampleContext,
) -> anyhow::Result<impl Iterator<Item = anyhow::Result<C::Group>> + Send> {
    let mut items = (0..).zip(dataset.iter(shard, cx)?).fuse();
    let mut read = move || {
        let (position, item) = items.next()?;
        Some(item.map(|sample| (position, sample)).map_err(|error| OutOfPlace::mark(error, position)))
    };
    Ok(std::iter::from_fn(move || next(&mut collector, |_| read())))
}

/// Snapshot of a stream of groups.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct GroupSnapshot {
    at: CollectorPosition,
    reader: ReaderSnapshot,
}

/// Returns the groups of a shard of `dataset` from `snapshot`.
pub(super) fn groups_from<D: SnapshotDataset, C: Collector<D::Sample> + Send>(
    mut collector: C,
    dataset: &D,
    shard: Shard,
    cx: &mut SampleContext,
    snapshot: Option<GroupSnapshot>,
) -> anyhow::Result<impl SnapshotIterator<Item = anyhow::Result<C::Group>, Snapshot = GroupSnapshot> + Send> {
    let inner = snapshot.as_ref().map(|snapshot| snapshot.reader.inner()).transpose()?.flatten();
    let items = dataset.iter_from(shard, cx, inner)?;
    let Some(GroupSnapshot { at, reader }) = snapshot else {
        return Ok(Groups { collector, reader: Reader::new(items, INTERVAL) });
    };
    let end = reader.read;
    let mut reader = Reader::resume(items, INTERVAL, reader);
    let oldest = at.oldest.unwrap_or(end);
    reader.repeat(end, Some(oldest), |position, sample| {
        if position >= oldest {
            // The user has received the error of a sample that fits into no group.
            drop(collector.push(position, sample?));
        }
        Ok(())
    })?;
    collector.restore(&at)?;
    Ok(Groups { collector, reader })
}

struct Groups<I, C> {
    collector: C,
    reader: Reader<I>,
}

impl<S, I, C> Iterator for Groups<I, C>
where
    C: Collector<S>,
    I: SnapshotIterator<Item = anyhow::Result<S>, Snapshot: Serialize>,
{
    type Item = anyhow::Result<C::Group>;

    fn next(&mut self) -> Option<Self::Item> {
        let Self { collector, reader } = self;
        next(collector, |collector| reader.next(|| collector.position().oldest))
    }
}

impl<S, I, C> SnapshotIterator for Groups<I, C>
where
    C: Collector<S>,
    I: SnapshotIterator<Item = anyhow::Result<S>, Snapshot: Serialize>,
{
    type Snapshot = GroupSnapshot;

    fn snapshot(&self) -> anyhow::Result<GroupSnapshot> {
        let at = self.collector.position();
        Ok(GroupSnapshot { at, reader: self.reader.snapshot(at.oldest) })
    }
}
