//! An epoch's batches of indices, numbered and checked.

use std::{fmt, iter::Fuse};

use crate::{
    error::Error,
    sampler::{BatchSampler, Epoch},
};

/// The batches of one epoch that are still to be loaded.
pub(crate) struct Plan {
    batches: Fuse<Box<dyn Iterator<Item = Vec<usize>> + Send>>,
    epoch: u64,
    next: u64,
    /// Batches that the sampler said there would be.
    announced: usize,
    /// Samples of the dataset.
    samples: usize,
}

/// One batch to load.
#[derive(Debug)]
pub(crate) struct Planned {
    pub(crate) number: u64,
    pub(crate) indices: Vec<usize>,
    /// Set when an index is not one of the dataset's: the batch is not loaded.
    pub(crate) out_of_range: Option<Error>,
}

impl Plan {
    pub(crate) fn new(sampler: &dyn BatchSampler, epoch: Epoch, samples: usize) -> Self {
        Self {
            batches: sampler.batches(epoch).fuse(),
            epoch: epoch.number,
            next: 0,
            announced: sampler.len(),
            samples,
        }
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }
}

impl Iterator for Plan {
    type Item = Planned;

    fn next(&mut self) -> Option<Planned> {
        let indices = self.batches.next()?;
        let number = self.next;
        self.next += 1;
        let wrong = indices.iter().copied().find(|&index| index >= self.samples);
        let out_of_range =
            wrong.map(|index| Error::IndexOutOfRange { index, batch: number, len: self.samples });
        Some(Planned { number, indices, out_of_range })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.announced.saturating_sub(usize::try_from(self.next).unwrap_or(usize::MAX));
        (left, Some(left))
    }
}

impl fmt::Debug for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Plan").field("epoch", &self.epoch).field("next", &self.next).finish_non_exhaustive()
    }
}
