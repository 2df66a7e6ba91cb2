//! Iterable datasets with snapshots that contain a generator of random numbers. Both have three shards, the
//! first of which is empty.

use loader_core::prelude::*;
use rand::{RngExt, SeedableRng, rngs::ChaCha8Rng};
use serde::{Deserialize, Serialize};

const SIZES: [u64; 3] = [0, 100, 37];

/// Samples `(number, random number)`. A snapshot is the position and what the generator is rebuilt from.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Stateful;

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Position {
    next: u64,
    end: u64,
    seed: u64,
    /// Random numbers drawn so far.
    drawn: u64,
}

struct StatefulIter {
    position: Position,
    rng: ChaCha8Rng,
}

impl Iterator for StatefulIter {
    type Item = anyhow::Result<(u64, u32)>;

    fn next(&mut self) -> Option<Self::Item> {
        let Position { next, end, drawn, .. } = &mut self.position;
        if next == end {
            return None;
        }
        *next += 1;
        *drawn += 1;
        Some(Ok((*next - 1, self.rng.random())))
    }
}

impl SnapshotIterator for StatefulIter {
    type Snapshot = Position;

    fn snapshot(&self) -> anyhow::Result<Position> {
        Ok(self.position.clone())
    }
}

impl IterableDataset for Stateful {
    type Sample = (u64, u32);

    fn iter(
        &self,
        shard: Shard,
        cx: &mut SampleContext,
    ) -> anyhow::Result<impl Iterator<Item = anyhow::Result<(u64, u32)>> + Send> {
        self.iter_from(shard, cx, None)
    }
}

impl SnapshotDataset for Stateful {
    type Snapshot = Position;

    fn iter_from(
        &self,
        shard: Shard,
        cx: &mut SampleContext,
        snapshot: Option<Position>,
    ) -> anyhow::Result<impl SnapshotIterator<Item = anyhow::Result<(u64, u32)>, Snapshot = Position> + Send>
    {
        let first: u64 = SIZES[..shard.index()].iter().sum();
        let position = match snapshot {
            Some(position) => position,
            None => {
                Position { next: first, end: first + SIZES[shard.index()], seed: cx.rng().random(), drawn: 0 }
            }
        };
        let mut rng = ChaCha8Rng::seed_from_u64(position.seed);
        for _ in 0..position.drawn {
            rng.random::<u32>();
        }
        Ok(StatefulIter { position, rng })
    }
}

/// A dataset that is its own iterator and its own snapshot.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct OwnIterator {
    /// Samples that are left.
    left: u64,
    /// State of a linear congruential generator.
    generator: u64,
}

impl Iterator for OwnIterator {
    type Item = anyhow::Result<(u64, u32)>;

    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        self.generator =
            self.generator.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        Some(Ok((self.left, (self.generator >> 32) as u32)))
    }
}

impl SnapshotIterator for OwnIterator {
    type Snapshot = Self;

    fn snapshot(&self) -> anyhow::Result<Self> {
        Ok(self.clone())
    }
}

impl IterableDataset for OwnIterator {
    type Sample = (u64, u32);

    fn iter(
        &self,
        shard: Shard,
        cx: &mut SampleContext,
    ) -> anyhow::Result<impl Iterator<Item = anyhow::Result<(u64, u32)>> + Send> {
        self.iter_from(shard, cx, None)
    }
}

impl SnapshotDataset for OwnIterator {
    type Snapshot = Self;

    fn iter_from(
        &self,
        shard: Shard,
        cx: &mut SampleContext,
        snapshot: Option<Self>,
    ) -> anyhow::Result<impl SnapshotIterator<Item = anyhow::Result<(u64, u32)>, Snapshot = Self> + Send>
    {
        // The generator differs from epoch to epoch.
        let generator = cx.rng().random();
        Ok(snapshot.unwrap_or(Self { left: SIZES[shard.index()], generator }))
    }
}
