//! Indices in batches.

use std::fmt;

use super::{Epoch, Sampler};

/// An order of batches of sample indices: PyTorch's `BatchSampler`. Batches may differ in length.
pub trait BatchSampler: fmt::Debug + Send + Sync + 'static {
    /// Number of batches in an epoch.
    fn len(&self) -> usize;

    /// True when an epoch has no batches.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The batches of `epoch`, in order. Asked twice for the same epoch, it must give the same.
    fn batches(&self, epoch: Epoch) -> Box<dyn Iterator<Item = Vec<usize>> + Send>;
}

/// Cuts a sampler's order into batches of one size.
#[derive(Debug)]
pub struct FixedBatches<S> {
    sampler: S,
    batch_size: usize,
    drop_last: bool,
}

impl<S: Sampler> FixedBatches<S> {
    /// Batches of `batch_size` indices; the last one may be shorter, or is left out with `drop_last`.
    ///
    /// # Panics
    /// When `batch_size` is 0.
    pub fn new(sampler: S, batch_size: usize, drop_last: bool) -> Self {
        assert!(batch_size > 0, "a batch has at least one sample");
        Self { sampler, batch_size, drop_last }
    }
}

impl<S: Sampler> BatchSampler for FixedBatches<S> {
    fn len(&self) -> usize {
        let samples = self.sampler.len();
        if self.drop_last { samples / self.batch_size } else { samples.div_ceil(self.batch_size) }
    }

    fn batches(&self, epoch: Epoch) -> Box<dyn Iterator<Item = Vec<usize>> + Send> {
        let size = self.batch_size;
        let batches = self.sampler.batches(epoch, size);
        if self.drop_last { Box::new(batches.filter(move |batch| batch.len() == size)) } else { batches }
    }
}

/// Cuts an order into batches of `size` indices; the last one may be shorter.
pub fn cut(
    mut indices: impl Iterator<Item = usize> + Send + 'static,
    size: usize,
) -> Box<dyn Iterator<Item = Vec<usize>> + Send> {
    Box::new(std::iter::from_fn(move || {
        let batch: Vec<usize> = indices.by_ref().take(size).collect();
        (!batch.is_empty()).then_some(batch)
    }))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::sampler::SequentialSampler;

    proptest! {
        #[test]
        fn batches_are_the_order_cut_in_pieces(len in 0usize..100, size in 1usize..20, drop_last: bool) {
            let sampler = FixedBatches::new(SequentialSampler::new(len), size, drop_last);
            let batches: Vec<_> = sampler.batches(Epoch { seed: 0, number: 0 }).collect();
            prop_assert_eq!(batches.len(), sampler.len());
            let kept = if drop_last { len - len % size } else { len };
            prop_assert!(batches.concat().into_iter().eq(0..kept));
            prop_assert!(batches.iter().rev().skip(1).all(|batch| batch.len() == size));
        }
    }
}
