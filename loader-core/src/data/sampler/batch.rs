//! Batch samplers, and cutting an order of indices into batches.

use std::fmt;

use super::{Epoch, Sampler};
use crate::data::fingerprint::with_len;

/// An order of batches of sample indices: PyTorch's `BatchSampler`. Batches may differ in length.
pub trait BatchSampler: fmt::Debug + Send + Sync + 'static {
    /// Number of batches in `epoch`. [`DataLoader::len`](crate::DataLoader::len) and the `size_hint` of the
    /// loader's iterator return it. If the number is wrong, the loader still loads all batches of the epoch,
    /// and gives a [`Warning::WrongBatchCount`](crate::Warning::WrongBatchCount).
    fn len(&self, epoch: Epoch) -> usize;

    /// Returns the batches of `epoch`, in order. Two calls for the same epoch must return the same batches.
    fn batches(&self, epoch: Epoch) -> Box<dyn Iterator<Item = Vec<usize>> + Send>;

    /// See [`Sampler::fingerprint`]; `"batch sampler"` by default.
    fn fingerprint(&self) -> String {
        "batch sampler".to_owned()
    }

    /// See [`Sampler::max_index`].
    fn max_index(&self) -> Option<usize> {
        None
    }

    /// Number of indices at the end of the last batch of `epoch` that repeat those of other ranks; 0 by
    /// default. Must not exceed the length of that batch. See [`Sampler::repeated`].
    fn repeated(&self, epoch: Epoch) -> usize {
        let _ = epoch;
        0
    }

    /// See [`Sampler::torch_draws`].
    #[doc(hidden)]
    fn torch_draws(&self) -> u64 {
        0
    }
}

/// Cuts the order of a sampler into batches of equal size: PyTorch's `BatchSampler(sampler, batch_size,
/// drop_last)`.
#[derive(Debug)]
pub struct FixedBatches<S> {
    sampler: S,
    batch_size: usize,
    drop_last: bool,
}

impl<S: Sampler> FixedBatches<S> {
    /// Creates batches of `batch_size` indices. The last batch may be shorter; with `drop_last`, a shorter
    /// batch is left out.
    ///
    /// # Panics
    /// Panics if `batch_size` is 0.
    pub fn new(sampler: S, batch_size: usize, drop_last: bool) -> Self {
        assert!(batch_size > 0, "the batch size must be at least 1");
        Self { sampler, batch_size, drop_last }
    }
}

impl<S: Sampler> BatchSampler for FixedBatches<S> {
    fn len(&self, epoch: Epoch) -> usize {
        let samples = self.sampler.len_of(epoch);
        if self.drop_last { samples / self.batch_size } else { samples.div_ceil(self.batch_size) }
    }

    fn batches(&self, epoch: Epoch) -> Box<dyn Iterator<Item = Vec<usize>> + Send> {
        let size = self.batch_size;
        let batches = self.sampler.batches(epoch, size);
        if self.drop_last { Box::new(FullBatches { batches, size }) } else { batches }
    }

    fn fingerprint(&self) -> String {
        let sampler = with_len(&self.sampler.fingerprint(), Some(self.sampler.len()));
        let rest = if self.drop_last { ", drop_last" } else { "" };
        format!("batches({}{rest}, {sampler})", self.batch_size)
    }

    fn max_index(&self) -> Option<usize> {
        self.sampler.max_index()
    }

    fn repeated(&self, epoch: Epoch) -> usize {
        let left_out = if self.drop_last { self.sampler.len_of(epoch) % self.batch_size } else { 0 };
        self.sampler.repeated(epoch).saturating_sub(left_out)
    }

    fn torch_draws(&self) -> u64 {
        self.sampler.torch_draws()
    }
}

impl<S: BatchSampler + ?Sized> BatchSampler for Box<S> {
    fn len(&self, epoch: Epoch) -> usize {
        (**self).len(epoch)
    }

    fn batches(&self, epoch: Epoch) -> Box<dyn Iterator<Item = Vec<usize>> + Send> {
        (**self).batches(epoch)
    }

    fn fingerprint(&self) -> String {
        (**self).fingerprint()
    }

    fn max_index(&self) -> Option<usize> {
        (**self).max_index()
    }

    fn repeated(&self, epoch: Epoch) -> usize {
        (**self).repeated(epoch)
    }

    fn torch_draws(&self) -> u64 {
        (**self).torch_draws()
    }
}

/// Cuts an order into batches of `size` indices; the last batch may be shorter. The samplers of this crate
/// implement [`batches`](super::Sampler::batches) with it, for iterators whose type is known.
///
/// The iterator's `nth` calls `indices.nth` once, so that resuming in the middle of an epoch is as fast as
/// `indices.nth`.
///
/// # Panics
/// Panics if `size` is 0.
pub(super) fn cut_into_batches(
    indices: impl Iterator<Item = usize> + Send + 'static,
    size: usize,
) -> Box<dyn Iterator<Item = Vec<usize>> + Send> {
    assert!(size > 0, "the batch size must be at least 1");
    Box::new(Batches { indices, size })
}

struct Batches<I> {
    indices: I,
    size: usize,
}

impl<I: Iterator<Item = usize>> Iterator for Batches<I> {
    type Item = Vec<usize>;

    fn next(&mut self) -> Option<Vec<usize>> {
        let batch: Vec<usize> = self.indices.by_ref().take(self.size).collect();
        (!batch.is_empty()).then_some(batch)
    }

    fn nth(&mut self, skipped: usize) -> Option<Vec<usize>> {
        if let Some(last) = skipped.saturating_mul(self.size).checked_sub(1) {
            self.indices.nth(last)?;
        }
        self.next()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let (lower, upper) = self.indices.size_hint();
        (lower.div_ceil(self.size), upper.map(|upper| upper.div_ceil(self.size)))
    }
}

/// Leaves out the last batch if it has fewer than `size` indices.
struct FullBatches<I> {
    batches: I,
    size: usize,
}

impl<I: Iterator<Item = Vec<usize>>> Iterator for FullBatches<I> {
    type Item = Vec<usize>;

    fn next(&mut self) -> Option<Vec<usize>> {
        self.nth(0)
    }

    fn nth(&mut self, skipped: usize) -> Option<Vec<usize>> {
        self.batches.nth(skipped).filter(|batch| batch.len() == self.size)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let (lower, upper) = self.batches.size_hint();
        (lower.saturating_sub(1), upper)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{data::sampler::*, options::Order};

    /// Samplers of every kind over the indices below `len`, which is at least 1.
    fn samplers(len: usize, count: usize) -> Vec<Box<dyn Sampler>> {
        let weights = || (1..=len).map(|weight| weight as f64);
        let random = RandomSampler::new(len);
        vec![
            Box::new(SequentialSampler::new(len)),
            Box::new(random),
            Box::new(random.num_samples(count).unwrap()),
            Box::new(random.replacement(true).num_samples(count).unwrap()),
            Box::new(SubsetRandomSampler::new((0..len).rev())),
            Box::new(WeightedRandomSampler::new(weights(), count, true).unwrap()),
            Box::new(WeightedRandomSampler::new(weights(), len.div_ceil(2), false).unwrap()),
            Box::new(DistributedSampler::new(len, 3, 1).unwrap()),
            Box::new(DistributedSampler::new(len, 3, 2).unwrap().shuffle(false).drop_last(true)),
            Box::new((0..len).collect::<Vec<usize>>()),
        ]
    }

    proptest! {
        // PyTorch: S02, S06
        #[test]
        fn the_batches_together_are_the_order(
            len in 1usize..60, count in 1usize..120, size in 1usize..20, drop_last: bool, torch: bool, seed: u64, number in 0u64..3,
        ) {
            let epoch = Epoch::new(seed, number).order(if torch { Order::Torch } else { Order::Native });
            for sampler in samplers(len, count) {
                let order: Vec<usize> = sampler.indices(epoch).collect();
                prop_assert_eq!(order.len(), sampler.len());
                let fixed = FixedBatches::new(sampler, size, drop_last);
                let batches: Vec<_> = fixed.batches(epoch).collect();
                prop_assert_eq!(batches.len(), fixed.len(epoch));
                let kept = if drop_last { order.len() - order.len() % size } else { order.len() };
                prop_assert_eq!(batches.concat(), &order[..kept]);
                prop_assert!(batches.iter().rev().skip(1).all(|batch| batch.len() == size));
            }
        }

        #[test]
        fn nth_returns_the_batch_that_repeated_next_returns(
            len in 1usize..60, count in 1usize..120, size in 1usize..20, drop_last: bool, torch: bool, skipped in 0usize..15,
        ) {
            let epoch = Epoch::new(5, 1).order(if torch { Order::Torch } else { Order::Native });
            for sampler in samplers(len, count) {
                let fixed = FixedBatches::new(sampler, size, drop_last);
                let (mut skipping, mut drawing) = (fixed.batches(epoch), fixed.batches(epoch));
                let drawn = (0..=skipped).map(|_| drawing.next()).last().flatten();
                prop_assert_eq!(skipping.nth(skipped), drawn);
                prop_assert!(skipping.eq(drawing));
            }
        }
    }

    // PyTorch: 71, S03
    #[test]
    fn the_order_of_a_random_sampler_depends_on_the_seed_and_the_epoch_alone() {
        // The first sampler and the last two are not random.
        for sampler in &samplers(50, 80)[1..8] {
            for order in [Order::Native, Order::Torch] {
                let indices = |seed, number| sampler.indices(Epoch::new(seed, number).order(order));
                // Two iterators do not influence each other.
                assert!(indices(42, 1).zip(indices(42, 1)).all(|(one, two)| one == two), "{sampler:?}");
                assert!(indices(1, 0).ne(indices(2, 0)), "{sampler:?}");
                assert!(indices(1, 0).ne(indices(1, 1)), "{sampler:?}");
            }
        }
    }

    // PyTorch: S04
    #[test]
    fn a_subset_sampler_draws_each_of_its_indices_once() {
        for seed in 0..20 {
            let mut drawn: Vec<usize> =
                SubsetRandomSampler::new([3, 1, 4, 15, 92, 65]).indices(Epoch::new(seed, 0)).collect();
            drawn.sort_unstable();
            assert_eq!(drawn, [1, 3, 4, 15, 65, 92]);
        }
    }

    #[test]
    fn nth_does_not_overflow() {
        let all = FixedBatches::new(SequentialSampler::new(usize::MAX), 4, false);
        assert_eq!(
            all.batches(Epoch::new(0, 0)).nth(usize::MAX / 8),
            Some(vec![
                usize::MAX / 8 * 4,
                usize::MAX / 8 * 4 + 1,
                usize::MAX / 8 * 4 + 2,
                usize::MAX / 8 * 4 + 3
            ])
        );
        assert_eq!(all.batches(Epoch::new(0, 0)).nth(usize::MAX), None);
    }

    #[test]
    fn vectors_are_samplers() {
        let sampler = FixedBatches::new((2..12).step_by(2).collect::<Vec<usize>>(), 2, false);
        let batches: Vec<_> = sampler.batches(Epoch::new(0, 0)).collect();
        assert_eq!((batches, sampler.len(Epoch::new(0, 0))), (vec![vec![2, 4], vec![6, 8], vec![10]], 3));
        let list: Box<dyn BatchSampler> = Box::new(vec![vec![0, 1], vec![2, 3, 4]]);
        assert_eq!(list.len(Epoch::new(0, 1)), 2);
        assert!(list.batches(Epoch::new(0, 1)).eq([vec![0, 1], vec![2, 3, 4]]));
    }
}
