//! Streams of the groups that a [`Collector`] makes of the samples of another stream.
//!
//! A snapshot has no samples. It is a snapshot of the inner stream from before the oldest sample that is
//! still needed, with the number of samples read since, and of groups given. A resumed stream reads these
//! samples again, as a shuffle buffer does.

use anyhow::Context;
use loader_ipc::codec;
use serde::{Deserialize, Serialize};

use super::{IterableDataset, Shard, SnapshotDataset, SnapshotIterator, reader::Reader};
use crate::{
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
    let mut read = move || items.next().map(|(position, sample)| Ok((position, sample?)));
    Ok(std::iter::from_fn(move || next(&mut collector, |_| read())))
}

/// Snapshot of a stream of groups.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct GroupSnapshot {
    at: CollectorPosition,
    /// Number of items read from the stream.
    read: u64,
    /// Number of items that had been read when the inner snapshot was taken.
    start: u64,
    /// The inner snapshot, encoded; `None` stands for the beginning of the shard.
    inner: Option<Vec<u8>>,
}

/// Returns the groups of a shard of `dataset` from `snapshot`.
pub(super) fn groups_from<D: SnapshotDataset, C: Collector<D::Sample> + Send>(
    mut collector: C,
    dataset: &D,
    shard: Shard,
    cx: &mut SampleContext,
    snapshot: Option<GroupSnapshot>,
) -> anyhow::Result<impl SnapshotIterator<Item = anyhow::Result<C::Group>, Snapshot = GroupSnapshot> + Send> {
    let inner = snapshot.as_ref().and_then(|snapshot| snapshot.inner.as_deref());
    let inner =
        inner.map(codec::decode).transpose().context("reading the snapshot of the collected stream")?;
    let items = dataset.iter_from(shard, cx, inner)?;
    let Some(GroupSnapshot { at, read, start, inner }) = snapshot else {
        return Ok(Groups { collector, reader: Reader::new(items, INTERVAL, 0, None) });
    };
    let mut reader = Reader::new(items, INTERVAL, start, inner);
    let oldest = at.oldest.unwrap_or(read);
    reader.repeat(read, Some(oldest), |position, sample| {
        if let Ok(sample) = sample
            && position >= oldest
        {
            // The user has received the error of a sample that fits into no group.
            drop(collector.push(position, sample));
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
        let (read, start, inner) = self.reader.snapshot_for(at.oldest);
        Ok(GroupSnapshot { at, read, start, inner: inner.map(<[u8]>::to_vec) })
    }
}
