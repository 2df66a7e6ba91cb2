//! Datasets for the tests of this module. A sample is a number and a draw from the sample's generator.

use rand::{RngExt, SeedableRng, rngs::ChaCha8Rng};
use serde::{Deserialize, Serialize};

use super::{Dataset, IterableDataset, Shard, SnapshotDataset, SnapshotIterator};
use crate::data::context::SampleContext;

/// The numbers `first`, `first + 1`, ...; has no `get_many`.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Plain {
    pub(super) first: u64,
    pub(super) len: usize,
}

impl Dataset for Plain {
    type Sample = (u64, u64);

    fn len(&self) -> usize {
        self.len
    }

    fn get(&self, index: usize, cx: &mut SampleContext) -> anyhow::Result<(u64, u64)> {
        Ok((self.first + index as u64, cx.rng().random()))
    }
}

/// The numbers `first`, `first + 1`, ...; its `get_many` returns `surplus` samples too many.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Counted {
    pub(super) first: u64,
    pub(super) len: usize,
    pub(super) surplus: usize,
}

impl Dataset for Counted {
    type Sample = (u64, u64);

    fn len(&self) -> usize {
        self.len
    }

    fn get(&self, index: usize, cx: &mut SampleContext) -> anyhow::Result<(u64, u64)> {
        Ok((self.first + index as u64, cx.rng().random()))
    }

    fn get_many(&self, indices: &[usize], cx: &mut SampleContext) -> anyhow::Result<Vec<(u64, u64)>> {
        let surplus = std::iter::repeat_n(&0, self.surplus);
        let load = |&index| Ok((self.first + index as u64, draw(cx, index)));
        indices.iter().chain(surplus).map(load).collect()
    }
}

/// Draws the first number of the generator of sample `index`.
pub(super) fn draw(cx: &mut SampleContext, index: usize) -> u64 {
    cx.set_index(index);
    cx.rng().random()
}

/// A stream of the numbers below `count`, each with a draw from the shard's generator. Multiples of `bad` are
/// errors.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Stream {
    pub(super) count: u64,
    pub(super) bad: Option<u64>,
    /// True if opening a shard fails.
    pub(super) is_missing: bool,
}

pub(super) struct StreamIter {
    next: u64,
    step: u64,
    stream: Stream,
    rng: ChaCha8Rng,
}

impl Iterator for StreamIter {
    type Item = anyhow::Result<(u64, u64)>;

    fn next(&mut self) -> Option<Self::Item> {
        let number = self.next;
        if number >= self.stream.count {
            return None;
        }
        self.next += self.step;
        let noise = self.rng.random();
        let is_bad = self.stream.bad.is_some_and(|bad| number.is_multiple_of(bad));
        Some(if is_bad { Err(anyhow::anyhow!("{number} is bad")) } else { Ok((number, noise)) })
    }
}

impl SnapshotIterator for StreamIter {
    type Snapshot = (u64, u64);

    fn snapshot(&self) -> anyhow::Result<(u64, u64)> {
        Ok((self.next, u64::try_from(self.rng.get_word_pos())?))
    }
}

impl IterableDataset for Stream {
    type Sample = (u64, u64);

    fn iter(
        &self,
        shard: Shard,
        cx: &mut SampleContext,
    ) -> anyhow::Result<impl Iterator<Item = anyhow::Result<(u64, u64)>> + Send> {
        self.iter_from(shard, cx, None)
    }

    fn len(&self) -> Option<usize> {
        usize::try_from(self.count).ok()
    }
}

impl SnapshotDataset for Stream {
    type Snapshot = (u64, u64);

    fn iter_from(
        &self,
        shard: Shard,
        cx: &mut SampleContext,
        snapshot: Option<(u64, u64)>,
    ) -> anyhow::Result<impl SnapshotIterator<Item = anyhow::Result<(u64, u64)>, Snapshot = (u64, u64)> + Send>
    {
        anyhow::ensure!(!self.is_missing, "the file is missing");
        let mut rng = ChaCha8Rng::from_seed(cx.rng().random());
        let (next, words) = snapshot.unwrap_or((shard.index() as u64, 0));
        rng.set_word_pos(words.into());
        Ok(StreamIter { next, step: shard.count() as u64, stream: self.clone(), rng })
    }
}
