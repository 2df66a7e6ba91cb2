//! What the datasets of the main program and of the older worker program do, and the types that are equal in both. Each
//! program has its own source of the other types.

use loader_core::prelude::*;

use serde::{Deserialize, Serialize};

use crate::{Label, Longer, Reading, Rows, Spans, Step, Steps};

#[derive(Serialize, Deserialize)]
pub(crate) struct Equal {
    pub(crate) starts: Vec<u64>,
    pub(crate) step: u64,
}

#[derive(Serialize, Deserialize)]
pub(crate) struct Readings {
    pub(crate) len: usize,
}

impl Dataset for Equal {
    type Sample = u64;

    fn len(&self) -> usize {
        self.starts.len()
    }

    fn get(&self, index: usize, _cx: &mut SampleContext) -> anyhow::Result<u64> {
        Ok(self.starts[index] + self.step)
    }
}

impl Dataset for Spans {
    type Sample = u64;

    fn len(&self) -> usize {
        self.starts.len()
    }

    fn get(&self, index: usize, _cx: &mut SampleContext) -> anyhow::Result<u64> {
        Ok(self.ends[index].wrapping_sub(self.starts[index]))
    }
}

impl IterableDataset for Spans {
    type Sample = u64;

    fn iter(
        &self,
        shard: Shard,
        _cx: &mut SampleContext,
    ) -> anyhow::Result<impl Iterator<Item = anyhow::Result<u64>>> {
        Ok(shard.of(self.starts.clone()).map(Ok))
    }
}

impl Dataset for Steps {
    type Sample = u64;

    fn len(&self) -> usize {
        self.steps.len()
    }

    fn get(&self, index: usize, _cx: &mut SampleContext) -> anyhow::Result<u64> {
        Ok(match self.steps[index] {
            Some(Step::Add(number)) => 1000 + number,
            Some(Step::Subtract(number)) => 1000 - number,
            None => 1000,
        })
    }
}

impl Dataset for Rows {
    type Sample = u64;

    fn len(&self) -> usize {
        self.rows.len()
    }

    fn get(&self, index: usize, _cx: &mut SampleContext) -> anyhow::Result<u64> {
        let row = self.rows.get(index)?;
        Ok(row.end.wrapping_sub(row.start))
    }
}

impl Dataset for Longer {
    type Sample = u64;

    fn len(&self) -> usize {
        self.len
    }

    fn get(&self, index: usize, _cx: &mut SampleContext) -> anyhow::Result<u64> {
        Ok(index as u64)
    }
}

impl Dataset for Label {
    type Sample = u64;

    fn len(&self) -> usize {
        self.path.len()
    }

    fn get(&self, index: usize, _cx: &mut SampleContext) -> anyhow::Result<u64> {
        Ok(index as u64)
    }
}

impl Dataset for Readings {
    type Sample = Reading;

    fn len(&self) -> usize {
        self.len
    }

    fn get(&self, index: usize, _cx: &mut SampleContext) -> anyhow::Result<Reading> {
        Ok(Reading { low: index as u64, high: 1000 })
    }
}

impl IterableDataset for Readings {
    type Sample = Reading;

    fn iter(
        &self,
        shard: Shard,
        _cx: &mut SampleContext,
    ) -> anyhow::Result<impl Iterator<Item = anyhow::Result<Reading>>> {
        Ok(shard.of(0..self.len as u64).map(|low| Ok(Reading { low, high: 1000 })))
    }
}
