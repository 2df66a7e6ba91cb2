//! Datasets in which some samples fail.

use std::path::PathBuf;

use anyhow::bail;
use loader_core::prelude::*;
use serde::{Deserialize, Serialize};

use super::{Fault, Noise, NoiseSample, ShardNumbers, take_token};

/// Samples of which one fails.
#[derive(Debug, Serialize, Deserialize)]
pub struct Faulty {
    /// Number of samples.
    pub count: usize,
    /// Index of the sample that fails.
    pub at: usize,
    /// How it fails.
    pub fault: Fault,
}

impl Dataset for Faulty {
    type Sample = Vec<u64>;

    fn len(&self) -> usize {
        self.count
    }

    fn get(&self, index: usize, _cx: &mut SampleContext) -> anyhow::Result<Vec<u64>> {
        let good = vec![index as u64];
        if index != self.at {
            return Ok(good);
        }
        match self.fault {
            Fault::Ragged => return Ok(vec![0, 0]),
            fault => fault.happen(index)?,
        }
        Ok(good)
    }
}

/// [`Noise`] that only `get_many` loads. Sample 5 may fail.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Many {
    /// Number of samples.
    pub count: usize,
    /// What `get_many` does when it is asked for sample 5.
    pub fault: ManyFault,
}

/// A fault of `get_many`.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub enum ManyFault {
    /// No fault.
    None,
    /// Returns a sample more than it was asked for.
    Surplus,
    /// Returns a sample less than it was asked for.
    Missing,
    /// A fault that [`Faulty`] has too.
    Sample(Fault),
}

/// Makes a [`Many`] without a fault.
pub fn many(count: usize) -> Many {
    Many { count, fault: ManyFault::None }
}

impl Dataset for Many {
    type Sample = NoiseSample;

    fn len(&self) -> usize {
        self.count
    }

    fn get(&self, _index: usize, _cx: &mut SampleContext) -> anyhow::Result<NoiseSample> {
        bail!("the loader must call get_many")
    }

    fn get_many(&self, indices: &[usize], cx: &mut SampleContext) -> anyhow::Result<Vec<NoiseSample>> {
        let load = |&index| {
            cx.set_index(index);
            Noise { count: self.count }.get(index, cx)
        };
        let mut samples: Vec<_> = indices.iter().map(load).collect::<Result<_, _>>()?;
        if indices.contains(&5) {
            match self.fault {
                ManyFault::None => {}
                ManyFault::Surplus => samples.push(samples[0].clone()),
                ManyFault::Missing => drop(samples.pop()),
                ManyFault::Sample(fault) => fault.happen(5)?,
            }
        }
        Ok(samples)
    }
}

/// [`Noise`], but a sample fails as often as it has [tokens](super::put_tokens).
#[derive(Debug, Serialize, Deserialize)]
pub struct Flaky {
    /// Number of samples.
    pub count: usize,
    /// How samples fail.
    pub fault: Fault,
    /// The folder with the tokens.
    pub tokens: PathBuf,
}

impl Dataset for Flaky {
    type Sample = NoiseSample;

    fn len(&self) -> usize {
        self.count
    }

    fn get(&self, index: usize, cx: &mut SampleContext) -> anyhow::Result<NoiseSample> {
        if take_token(&self.tokens, index) {
            self.fault.happen(index)?;
        }
        Noise { count: self.count }.get(index, cx)
    }
}

impl IterableDataset for Flaky {
    type Sample = u64;

    fn iter(
        &self,
        shard: Shard,
        cx: &mut SampleContext,
    ) -> anyhow::Result<impl Iterator<Item = anyhow::Result<u64>> + Send> {
        self.iter_from(shard, cx, None)
    }
}

impl SnapshotDataset for Flaky {
    type Snapshot = u64;

    fn iter_from(
        &self,
        shard: Shard,
        _cx: &mut SampleContext,
        snapshot: Option<u64>,
    ) -> anyhow::Result<impl SnapshotIterator<Item = anyhow::Result<u64>, Snapshot = u64> + Send> {
        let load = |number| {
            if take_token(&self.tokens, number as usize) {
                self.fault.happen(number as usize)?;
            }
            Ok(number)
        };
        Ok(ShardNumbers::new(shard, snapshot, self.count as u64, load))
    }
}
