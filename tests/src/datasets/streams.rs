//! Iterable datasets without snapshots.

use loader_core::prelude::*;
use rand::RngExt;
use serde::{Deserialize, Serialize};

use super::fault::{Fault, bail_with_cause};

/// Numbers in shards: sample `n` is in shard `n` modulo the number of shards, with noise from the shard's
/// generator.
#[derive(Debug, Serialize, Deserialize)]
pub struct Counting {
    /// Number of samples.
    pub count: u64,
}

impl IterableDataset for Counting {
    type Sample = (u64, u32);

    fn iter(
        &self,
        shard: Shard,
        cx: &mut SampleContext,
    ) -> anyhow::Result<impl Iterator<Item = anyhow::Result<(u64, u32)>> + Send> {
        Ok(shard.of(0..self.count).map(|number| Ok((number, cx.rng().random()))))
    }

    fn len(&self) -> Option<usize> {
        usize::try_from(self.count).ok()
    }
}

/// A map-style dataset as an iterable dataset: shard `n` has every sample whose index is `n` modulo the
/// number of shards.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct AsStream<D>(pub D);

impl<D: Dataset> IterableDataset for AsStream<D> {
    type Sample = D::Sample;

    fn iter(
        &self,
        shard: Shard,
        cx: &mut SampleContext,
    ) -> anyhow::Result<impl Iterator<Item = anyhow::Result<D::Sample>> + Send> {
        Ok(shard.of(0..self.0.len() as u64).map(|index| self.0.get(index as usize, cx)))
    }
}

/// Shards of given sizes. Sample `n` of the shards, one after the other, is the number `n`. PyTorch's tests
/// call it `WorkerSpecificIterableDataset`.
#[derive(Debug, Serialize, Deserialize)]
pub struct Shards {
    /// Number of samples of each shard.
    pub sizes: Vec<u64>,
    /// Length that the dataset states, which may be wrong.
    pub stated_len: Option<usize>,
}

impl Shards {
    /// Makes one shard for each size; the dataset states no length.
    pub fn of(sizes: &[u64]) -> Self {
        Self { sizes: sizes.to_vec(), stated_len: None }
    }
}

impl IterableDataset for Shards {
    type Sample = u64;

    fn iter(
        &self,
        shard: Shard,
        _cx: &mut SampleContext,
    ) -> anyhow::Result<impl Iterator<Item = anyhow::Result<u64>> + Send> {
        let first: u64 = self.sizes[..shard.index()].iter().sum();
        Ok((first..first + self.sizes[shard.index()]).map(Ok))
    }

    fn len(&self) -> Option<usize> {
        self.stated_len
    }
}

/// Shards of given sizes. Sample `p` of shard `s` is the number `100 * s + p`. One sample may fail, or shard
/// 1 cannot be opened.
#[derive(Debug, Serialize, Deserialize)]
pub struct Uneven {
    /// Samples in each shard.
    pub sizes: Vec<u64>,
    /// The number of the sample that fails. For `u64::MAX`, shard 1 cannot be opened.
    pub at: Option<u64>,
    /// How the sample fails.
    pub fault: Fault,
}

impl IterableDataset for Uneven {
    type Sample = Vec<u64>;

    fn iter(
        &self,
        shard: Shard,
        _cx: &mut SampleContext,
    ) -> anyhow::Result<impl Iterator<Item = anyhow::Result<Vec<u64>>> + Send> {
        if self.at == Some(u64::MAX) && shard.index() == 1 {
            bail_with_cause(shard.index())?;
        }
        let first = 100 * shard.index() as u64;
        Ok((first..first + self.sizes[shard.index()]).map(move |number| {
            if self.at == Some(number) {
                self.fault.happen(number as usize)?;
                if let Fault::Ragged = self.fault {
                    return Ok(vec![0, 0]);
                }
            }
            Ok(vec![number])
        }))
    }
}
