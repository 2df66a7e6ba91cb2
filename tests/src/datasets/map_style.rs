//! Map-style datasets that do not fail.

use std::{thread, time::Duration};

use loader_core::prelude::*;
use rand::RngExt;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// The numbers below the field's value.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Count(pub usize);

impl Dataset for Count {
    type Sample = u64;

    fn len(&self) -> usize {
        self.0
    }

    fn get(&self, index: usize, _cx: &mut SampleContext) -> anyhow::Result<u64> {
        Ok(index as u64)
    }
}

/// `(index, three random numbers)`: content that depends on seed, epoch and index.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Noise {
    /// Number of samples.
    pub count: usize,
}

impl Dataset for Noise {
    type Sample = (u64, [f32; 3], String);

    fn len(&self) -> usize {
        self.count
    }

    fn get(&self, index: usize, cx: &mut SampleContext) -> anyhow::Result<Self::Sample> {
        let noise = [(); 3].map(|()| cx.rng().random_range(0.0f32..1.0));
        Ok((index as u64, noise, format!("sample {index}")))
    }
}

/// A sample of [`Noise`].
pub type NoiseSample = (u64, [f32; 3], String);

/// Samples of `bytes` bytes, each byte the sample's index.
#[derive(Debug, Serialize, Deserialize)]
pub struct Large {
    /// Number of samples.
    pub count: usize,
    /// Bytes per sample.
    pub bytes: usize,
}

impl Dataset for Large {
    type Sample = Vec<u8>;

    fn len(&self) -> usize {
        self.count
    }

    fn get(&self, index: usize, _cx: &mut SampleContext) -> anyhow::Result<Vec<u8>> {
        Ok(vec![index as u8; self.bytes])
    }
}

/// Returns the samples that it is given.
#[derive(Debug, Serialize, Deserialize)]
#[serde(bound = "")]
pub struct Given<S: Serialize + DeserializeOwned>(pub Vec<S>);

impl<S: Serialize + DeserializeOwned + Clone + Send + Sync + 'static> Dataset for Given<S> {
    type Sample = S;

    fn len(&self) -> usize {
        self.0.len()
    }

    fn get(&self, index: usize, _cx: &mut SampleContext) -> anyhow::Result<S> {
        Ok(self.0[index].clone())
    }
}

/// Numbers that are slow to load.
#[derive(Debug, Serialize, Deserialize)]
pub struct Slow {
    /// Number of samples.
    pub count: usize,
    /// Time per sample.
    pub delay: Duration,
}

impl Dataset for Slow {
    type Sample = u64;

    fn len(&self) -> usize {
        self.count
    }

    fn get(&self, index: usize, _cx: &mut SampleContext) -> anyhow::Result<u64> {
        thread::sleep(self.delay);
        Ok(index as u64)
    }
}

/// Samples of which the first is slow to load.
#[derive(Debug, Serialize, Deserialize)]
pub struct SlowFirst {
    /// Number of samples.
    pub count: usize,
    /// Time for the first sample.
    pub delay: Duration,
    /// Length of a sample; each of its numbers is its index.
    pub numbers: usize,
}

impl Dataset for SlowFirst {
    type Sample = Vec<u64>;

    fn len(&self) -> usize {
        self.count
    }

    fn get(&self, index: usize, _cx: &mut SampleContext) -> anyhow::Result<Vec<u64>> {
        if index == 0 {
            thread::sleep(self.delay);
        }
        Ok(vec![index as u64; self.numbers])
    }
}
