//! In random order.

use super::{Epoch, Sampler, cut};
use crate::random::{below, shuffle};

/// A random order, new for each epoch: a permutation, or draws with replacement. PyTorch's `RandomSampler` (another order for
/// the same seed).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RandomSampler {
    len: usize,
    replacement: bool,
    num_samples: usize,
}

impl RandomSampler {
    /// A permutation of the indices below `len`.
    pub fn new(len: usize) -> Self {
        Self { len, replacement: false, num_samples: len }
    }

    /// Whether an index may be drawn again before all others were.
    #[must_use]
    pub fn replacement(self, replacement: bool) -> Self {
        Self { replacement, ..self }
    }

    /// Number of indices in an epoch; `len` if not said. Without replacement, more than `len` are several permutations one after
    /// the other.
    #[must_use]
    pub fn num_samples(self, num_samples: usize) -> Self {
        Self { num_samples, ..self }
    }
}

impl Sampler for RandomSampler {
    fn len(&self) -> usize {
        if self.len == 0 { 0 } else { self.num_samples }
    }

    fn indices(&self, epoch: Epoch) -> Box<dyn Iterator<Item = usize> + Send> {
        if self.replacement { Box::new(self.draws(epoch)) } else { Box::new(self.permutations(epoch)) }
    }

    fn batches(&self, epoch: Epoch, size: usize) -> Box<dyn Iterator<Item = Vec<usize>> + Send> {
        if self.replacement { cut(self.draws(epoch), size) } else { cut(self.permutations(epoch), size) }
    }
}

impl RandomSampler {
    fn draws(&self, epoch: Epoch) -> impl Iterator<Item = usize> + Send + use<> {
        let (mut rng, len) = (epoch.rng(), self.len as u64);
        (0..Sampler::len(self)).map(move |_| below(&mut rng, len) as usize)
    }

    fn permutations(&self, epoch: Epoch) -> impl Iterator<Item = usize> + Send + use<> {
        let (mut rng, len) = (epoch.rng(), self.len);
        let mut order: Vec<usize> = (0..len).collect();
        let mut place = len;
        (0..Sampler::len(self)).map(move |_| {
            if place == len {
                shuffle(&mut rng, &mut order);
                place = 0;
            }
            place += 1;
            order[place - 1]
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn draw(sampler: RandomSampler, seed: u64, number: u64) -> Vec<usize> {
        sampler.indices(Epoch { seed, number }).collect()
    }

    #[test]
    fn an_epoch_has_its_own_order() {
        let sampler = RandomSampler::new(100);
        assert_eq!(draw(sampler, 1, 0), draw(sampler, 1, 0));
        assert_ne!(draw(sampler, 1, 0), draw(sampler, 1, 1));
        assert_ne!(draw(sampler, 1, 0), draw(sampler, 2, 0));
    }

    #[test]
    fn nothing_comes_of_nothing() {
        assert!(draw(RandomSampler::new(0).replacement(true).num_samples(5), 1, 0).is_empty());
    }

    proptest! {
        #[test]
        fn every_index_as_often_as_it_must_be(len in 1usize..50, count in 0usize..200, seed: u64) {
            let mut seen = vec![0; len];
            draw(RandomSampler::new(len).num_samples(count), seed, 0).into_iter().for_each(|index| seen[index] += 1);
            let rounds = count / len;
            prop_assert!(seen.iter().all(|&times| times == rounds || times == rounds + 1));
            prop_assert_eq!(seen.iter().sum::<usize>(), count);
        }

        #[test]
        fn with_replacement_stays_in_range(len in 1usize..50, count in 0usize..200, seed: u64) {
            let drawn = draw(RandomSampler::new(len).replacement(true).num_samples(count), seed, 0);
            prop_assert_eq!(drawn.len(), count);
            prop_assert!(drawn.into_iter().all(|index| index < len));
        }
    }
}
