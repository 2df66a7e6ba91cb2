//! The datasets, as a user would write them. The peers have the same, value for value.

use loader_core::prelude::*;
use serde::{Deserialize, Serialize};
use stats_alloc::INSTRUMENTED_SYSTEM;

/// Shape of one image.
pub(crate) const IMAGE: [usize; 3] = [3, 224, 224];

/// Each sample is its index.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Integers {
    pub(crate) count: usize,
}

impl Dataset for Integers {
    type Sample = i64;

    fn len(&self) -> usize {
        self.count
    }

    fn get(&self, index: usize, _cx: &mut Context) -> anyhow::Result<i64> {
        Ok(index as i64)
    }
}

/// One image, given out again and again: a sample costs nothing but its copy into the batch.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Images {
    count: usize,
    image: Tensor<f32>,
}

impl Images {
    pub(crate) fn new(count: usize) -> anyhow::Result<Self> {
        let elements: usize = IMAGE.iter().product();
        // Exact in f32, and different from element to element.
        let image = Tensor::from_vec((0..elements).map(|place| place as f32 / 4.0).collect(), IMAGE)?;
        Ok(Self { count, image })
    }
}

impl Dataset for Images {
    type Sample = Tensor<f32>;

    fn len(&self) -> usize {
        self.count
    }

    fn get(&self, _index: usize, _cx: &mut Context) -> anyhow::Result<Tensor<f32>> {
        Ok(self.image.clone())
    }
}

/// [`Images`] that also say what this process has allocated so far.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct CountedImages(pub(crate) Images);

impl Dataset for CountedImages {
    type Sample = (Tensor<f32>, [u64; 2]);

    fn len(&self) -> usize {
        self.0.count
    }

    fn get(&self, index: usize, cx: &mut Context) -> anyhow::Result<Self::Sample> {
        Ok((self.0.get(index, cx)?, allocated()))
    }
}

/// Allocations and allocated bytes of this process so far; zeros in the program that does not count.
pub(crate) fn allocated() -> [u64; 2] {
    let stats = INSTRUMENTED_SYSTEM.stats();
    let allocations = stats.allocations + stats.reallocations;
    [allocations as u64, stats.bytes_allocated as u64]
}

/// File names in memory that all workers share.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Names {
    names: SharedVec<String>,
}

impl Names {
    pub(crate) fn new(count: usize) -> anyhow::Result<Self> {
        let names =
            (0..count).map(|number| format!("train/class-{:04}/image-{number:08}.jpeg", number % 1000));
        Ok(Self { names: SharedVec::new(names)? })
    }
}

impl Dataset for Names {
    type Sample = i64;

    fn len(&self) -> usize {
        self.names.len()
    }

    fn get(&self, index: usize, _cx: &mut Context) -> anyhow::Result<i64> {
        Ok(self.names.get(index)?.len() as i64)
    }
}
