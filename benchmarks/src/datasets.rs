//! The datasets, as a user would write them. The peers have the same datasets with the same values.

use std::{fs::File, path::PathBuf, thread, time::Duration};

use loader_core::{Element, prelude::*};
use nix::sys::signal::SigSet;
use serde::{Deserialize, Serialize};
use stats_alloc::INSTRUMENTED_SYSTEM;

use crate::options::Shape;

/// Number of samples of datasets that are not read to their end.
pub(crate) const SAMPLES: usize = 1_000_000;

/// A dataset whose samples are their indices.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Integers {
    pub(crate) count: usize,
}

impl Dataset for Integers {
    type Sample = i64;

    fn len(&self) -> usize {
        self.count
    }

    fn get(&self, index: usize, _cx: &mut SampleContext) -> anyhow::Result<i64> {
        Ok(index as i64)
    }
}

/// A dataset that returns the same sample for every index: loading it costs only the copy into the batch.
#[derive(Debug, Serialize, Deserialize)]
#[serde(bound = "")]
pub(crate) struct Same<T: Element> {
    count: usize,
    sample: Tensor<T>,
}

impl<T: Element> Same<T> {
    pub(crate) fn new(count: usize, shape: Shape, element: impl Fn(usize) -> T) -> anyhow::Result<Self> {
        let elements = shape.dimensions().iter().product();
        let sample = Tensor::from_vec((0..elements).map(element).collect(), shape.dimensions())?;
        Ok(Self { count, sample })
    }
}

impl<T: Element> Dataset for Same<T> {
    type Sample = Tensor<T>;

    fn len(&self) -> usize {
        self.count
    }

    fn get(&self, _index: usize, _cx: &mut SampleContext) -> anyhow::Result<Tensor<T>> {
        Ok(self.sample.clone())
    }
}

/// Images, each with the number and the bytes of all allocations of the loading process so far.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct CountedImages(pub(crate) Same<f32>);

impl Dataset for CountedImages {
    type Sample = (Tensor<f32>, [u64; 2]);

    fn len(&self) -> usize {
        self.0.count
    }

    fn get(&self, index: usize, cx: &mut SampleContext) -> anyhow::Result<Self::Sample> {
        Ok((self.0.get(index, cx)?, allocated()))
    }
}

/// Returns the number of allocations and of allocated bytes of this process so far. Both are 0 in a program
/// whose allocator does not count.
pub(crate) fn allocated() -> [u64; 2] {
    let stats = INSTRUMENTED_SYSTEM.stats();
    let allocations = stats.allocations + stats.reallocations;
    [allocations as u64, stats.bytes_allocated as u64]
}

/// A dataset of file names in shared memory.
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

    fn get(&self, index: usize, _cx: &mut SampleContext) -> anyhow::Result<i64> {
        Ok(self.names.get(index)?.len() as i64)
    }
}

/// A dataset of the rows of one array of 1 GB.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Rows {
    array: Tensor<f32>,
}

impl Rows {
    pub(crate) fn new() -> anyhow::Result<Self> {
        const ROWS: usize = 1 << 18;
        const LENGTH: usize = 1 << 10;
        let elements = (0..ROWS * LENGTH).map(|position| (position % (1 << 20)) as f32).collect();
        Ok(Self { array: Tensor::from_vec(elements, [ROWS, LENGTH])? })
    }
}

impl Dataset for Rows {
    type Sample = Vec<f32>;

    fn len(&self) -> usize {
        self.array.shape()[0]
    }

    fn get(&self, index: usize, _cx: &mut SampleContext) -> anyhow::Result<Vec<f32>> {
        Ok(self.array.row(index).to_vec())
    }
}

/// [`Integers`] that take 4 ms each, except one in a hundred, which takes 200 ms.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Stragglers {
    pub(crate) count: usize,
}

impl Stragglers {
    /// Returns the time that sample `index` takes. Slow samples look random and are the same for all peers.
    pub(crate) fn pause(index: usize) -> Duration {
        let scattered = (index as u32).wrapping_mul(2_654_435_761);
        Duration::from_millis(if scattered % 100 == 7 { 200 } else { 4 })
    }
}

impl Dataset for Stragglers {
    type Sample = i64;

    fn len(&self) -> usize {
        self.count
    }

    fn get(&self, index: usize, _cx: &mut SampleContext) -> anyhow::Result<i64> {
        thread::sleep(Self::pause(index));
        Ok(index as i64)
    }
}

/// [`Integers`] that take a millisecond each.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Paced {
    pub(crate) count: usize,
}

impl Dataset for Paced {
    type Sample = i64;

    fn len(&self) -> usize {
        self.count
    }

    fn get(&self, index: usize, _cx: &mut SampleContext) -> anyhow::Result<i64> {
        thread::sleep(Duration::from_millis(1));
        Ok(index as i64)
    }
}

/// [`Integers`], one of which takes 30 seconds if `stuck` is set.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Sticky {
    pub(crate) count: usize,
    pub(crate) stuck: Option<Stuck>,
}

/// The sample that takes 30 seconds.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Stuck {
    pub(crate) index: usize,
    /// True if the sample first blocks all signals of its thread.
    pub(crate) blocks_signals: bool,
    /// File that the sample creates before it waits.
    pub(crate) note: PathBuf,
}

impl Dataset for Sticky {
    type Sample = i64;

    fn len(&self) -> usize {
        self.count
    }

    fn get(&self, index: usize, _cx: &mut SampleContext) -> anyhow::Result<i64> {
        if let Some(stuck) = self.stuck.as_ref().filter(|stuck| stuck.index == index) {
            if stuck.blocks_signals {
                SigSet::all().thread_block()?;
            }
            File::create(&stuck.note)?;
            thread::sleep(Duration::from_secs(30));
        }
        Ok(index as i64)
    }
}
