//! Iterable datasets with snapshots.

use loader_core::prelude::*;
use serde::{Deserialize, Serialize};

/// Reads every n-th number below a bound, where n is the number of shards, and loads a sample of each. The snapshot is
/// the next number.
#[derive(Debug)]
pub struct ShardNumbers<F> {
    next: u64,
    end: u64,
    step: u64,
    load: F,
}

impl<F> ShardNumbers<F> {
    /// Reads the numbers of `shard` below `end`, from the number in the snapshot on.
    pub fn new(shard: Shard, snapshot: Option<u64>, end: u64, load: F) -> Self {
        Self { next: snapshot.unwrap_or(shard.index() as u64), end, step: shard.count() as u64, load }
    }
}

impl<T, F: FnMut(u64) -> anyhow::Result<T>> Iterator for ShardNumbers<F> {
    type Item = anyhow::Result<T>;

    fn next(&mut self) -> Option<Self::Item> {
        let number = self.next;
        (number < self.end).then(|| {
            self.next += self.step;
            (self.load)(number)
        })
    }
}

impl<T, F: FnMut(u64) -> anyhow::Result<T>> SnapshotIterator for ShardNumbers<F> {
    type Snapshot = u64;

    fn snapshot(&self) -> anyhow::Result<u64> {
        Ok(self.next)
    }
}

/// Squares, with snapshots. Each iterator counts the samples that it has read.
#[derive(Debug, Serialize, Deserialize)]
pub struct Squares {
    /// Number of samples.
    pub count: u64,
}

impl IterableDataset for Squares {
    /// The square, and the number of samples that its iterator has read.
    type Sample = (u64, u64);

    fn iter(
        &self,
        shard: Shard,
        cx: &mut SampleContext,
    ) -> anyhow::Result<impl Iterator<Item = anyhow::Result<(u64, u64)>> + Send> {
        self.iter_from(shard, cx, None)
    }
}

impl SnapshotDataset for Squares {
    type Snapshot = u64;

    fn iter_from(
        &self,
        shard: Shard,
        _cx: &mut SampleContext,
        snapshot: Option<u64>,
    ) -> anyhow::Result<impl SnapshotIterator<Item = anyhow::Result<(u64, u64)>, Snapshot = u64> + Send> {
        let mut read = 0;
        let load = move |number| {
            read += 1;
            Ok((number * number, read))
        };
        Ok(ShardNumbers::new(shard, snapshot, self.count, load))
    }
}

/// Samples `(number, length of the hoard)` in one shard. The iterator hoards bytes, and its snapshot contains
/// them.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Hoard {
    /// Number of samples.
    pub count: u64,
    /// Bytes that each sample adds.
    pub bytes: usize,
    /// Every sample whose number plus one is a multiple of this empties the hoard instead.
    pub emptied_every: u64,
}

struct HoardIter {
    dataset: Hoard,
    next: u64,
    bytes: Vec<u8>,
}

impl Iterator for HoardIter {
    type Item = anyhow::Result<(u64, u64)>;

    fn next(&mut self) -> Option<Self::Item> {
        let number = self.next;
        self.next += 1;
        if self.next.is_multiple_of(self.dataset.emptied_every) {
            self.bytes.clear();
        } else {
            self.bytes.resize(self.bytes.len() + self.dataset.bytes, number as u8);
        }
        (number < self.dataset.count).then_some(Ok((number, self.bytes.len() as u64)))
    }
}

impl SnapshotIterator for HoardIter {
    type Snapshot = (u64, Vec<u8>);

    fn snapshot(&self) -> anyhow::Result<Self::Snapshot> {
        Ok((self.next, self.bytes.clone()))
    }
}

impl IterableDataset for Hoard {
    type Sample = (u64, u64);

    fn iter(
        &self,
        shard: Shard,
        cx: &mut SampleContext,
    ) -> anyhow::Result<impl Iterator<Item = anyhow::Result<(u64, u64)>> + Send> {
        self.iter_from(shard, cx, None)
    }
}

impl SnapshotDataset for Hoard {
    type Snapshot = (u64, Vec<u8>);

    fn iter_from(
        &self,
        _shard: Shard,
        _cx: &mut SampleContext,
        snapshot: Option<Self::Snapshot>,
    ) -> anyhow::Result<
        impl SnapshotIterator<Item = anyhow::Result<(u64, u64)>, Snapshot = Self::Snapshot> + Send,
    > {
        let (next, bytes) = snapshot.unwrap_or_default();
        Ok(HoardIter { dataset: self.clone(), next, bytes })
    }
}
