//! The order without shuffling.

use super::{Epoch, Sampler, cut_into_batches};

/// The order `0, 1, 2, ...`: PyTorch's `SequentialSampler`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SequentialSampler {
    len: usize,
}

impl SequentialSampler {
    /// Creates a sampler of the indices below `len`.
    pub fn new(len: usize) -> Self {
        Self { len }
    }
}

impl Sampler for SequentialSampler {
    fn len(&self) -> usize {
        self.len
    }

    fn indices(&self, _epoch: Epoch) -> Box<dyn Iterator<Item = usize> + Send> {
        Box::new(0..self.len)
    }

    fn batches(&self, _epoch: Epoch, size: usize) -> Box<dyn Iterator<Item = Vec<usize>> + Send> {
        cut_into_batches(0..self.len, size)
    }

    fn fingerprint(&self) -> String {
        "sequential".to_owned()
    }
}
