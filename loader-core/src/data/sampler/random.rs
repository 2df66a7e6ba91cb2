//! Random order.

use super::{
    Epoch, Sampler, SamplerError, by_position::ByPosition, cut_into_batches, permutation::Permutations,
    source::Source,
};
use crate::data::torch::{integer_draws, permutation_draws};

/// A random order, new for each epoch: a permutation, or draws with replacement. PyTorch's `RandomSampler`.
///
/// A permutation of 65,536 indices or more is computed index by index, in about 200 bytes of memory. Starting
/// an epoch and resuming it at any position take the same short time for any length. Shorter permutations,
/// and all permutations in PyTorch's order, are shuffled in memory when the epoch starts.
///
/// # Examples
/// ```
/// use loader_core::sampler::{Epoch, RandomSampler, Sampler};
///
/// let twice = RandomSampler::new(3).num_samples(6)?;
/// let mut indices: Vec<usize> = twice.indices(Epoch::new(7, 0)).collect();
/// indices.sort();
/// assert_eq!(indices, [0, 0, 1, 1, 2, 2]);
/// # Ok::<(), loader_core::sampler::SamplerError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RandomSampler {
    population: usize,
    replacement: bool,
    num_samples: usize,
    /// True if the sampler shares the loader's generator in PyTorch's order.
    of_loader: bool,
}

impl RandomSampler {
    /// Creates a sampler of permutations of the indices below `len`.
    pub fn new(len: usize) -> Self {
        Self { population: len, replacement: false, num_samples: len, of_loader: false }
    }

    /// Creates the sampler of a loader with `shuffle`. In PyTorch's order, it shares the loader's generator.
    pub(crate) fn of_loader(len: usize) -> Self {
        Self { of_loader: true, ..Self::new(len) }
    }

    /// If true, each index is drawn independently of the others; if false (the default), an epoch consists of
    /// permutations.
    #[must_use]
    pub fn replacement(self, replacement: bool) -> Self {
        Self { replacement, ..self }
    }

    /// Sets the number of indices in an epoch, at least 1; `len` by default. Without replacement, an epoch of
    /// more than `len` indices consists of several permutations, one after the other.
    ///
    /// # Errors
    /// Returns [`SamplerError::NoSamples`] if `num_samples` is 0, and [`SamplerError::NothingToDrawFrom`] if
    /// `len` is 0.
    pub fn num_samples(self, num_samples: usize) -> Result<Self, SamplerError> {
        match (self.population, num_samples) {
            (_, 0) => Err(SamplerError::NoSamples),
            (0, _) => Err(SamplerError::NothingToDrawFrom { num_samples }),
            _ => Ok(Self { num_samples, ..self }),
        }
    }
}

impl Sampler for RandomSampler {
    fn len(&self) -> usize {
        self.num_samples
    }

    fn indices(&self, epoch: Epoch) -> Box<dyn Iterator<Item = usize> + Send> {
        if self.replacement {
            Box::new(self.draws(self.source(epoch)))
        } else {
            Box::new(self.permutations(epoch))
        }
    }

    fn batches(&self, epoch: Epoch, size: usize) -> Box<dyn Iterator<Item = Vec<usize>> + Send> {
        if self.replacement {
            cut_into_batches(self.draws(self.source(epoch)), size)
        } else {
            cut_into_batches(self.permutations(epoch), size)
        }
    }

    fn fingerprint(&self) -> String {
        let replacement = if self.replacement { ", replacement" } else { "" };
        format!("random({}{replacement})", self.population)
    }

    fn torch_draws(&self) -> u64 {
        if self.of_loader { self.draws_of_epoch() } else { 0 }
    }
}

impl RandomSampler {
    /// Number of draws that an epoch takes in PyTorch's order.
    fn draws_of_epoch(&self) -> u64 {
        if self.replacement {
            return (self.num_samples as u64).saturating_mul(integer_draws(self.population as u64));
        }
        // PyTorch draws another permutation for the remaining indices, even if there are none.
        let permutations = self.num_samples.checked_div(self.population).map_or(0, |full| full as u64 + 1);
        permutations.saturating_mul(permutation_draws(self.population))
    }

    fn source(&self, epoch: Epoch) -> Source {
        let draws = self.draws_of_epoch();
        if self.of_loader { Source::of_loader(epoch, draws) } else { Source::of_sampler(epoch, draws) }
    }

    fn draws(&self, mut source: Source) -> impl Iterator<Item = usize> + Send + use<> {
        let len = self.population as u64;
        (0..self.num_samples).map(move |_| source.below(len) as usize)
    }

    /// Returns the order without replacement.
    pub(super) fn permutation(&self, epoch: Epoch) -> Permutations {
        Permutations::new(self.population, epoch, || self.source(epoch))
    }

    fn permutations(&self, epoch: Epoch) -> impl Iterator<Item = usize> + Send + use<> {
        let mut permutations = self.permutation(epoch);
        ByPosition::new(self.num_samples, move |position| permutations.at(position))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::options::Order;

    fn draw(sampler: RandomSampler, seed: u64, number: u64) -> Vec<usize> {
        sampler.indices(Epoch::new(seed, number)).collect()
    }

    #[test]
    fn the_order_depends_on_epoch_and_seed() {
        let sampler = RandomSampler::new(100);
        assert_eq!(draw(sampler, 1, 0), draw(sampler, 1, 0));
        assert_ne!(draw(sampler, 1, 0), draw(sampler, 1, 1));
        assert_ne!(draw(sampler, 1, 0), draw(sampler, 2, 0));
    }

    #[test]
    fn a_sampler_of_no_indices_is_empty_and_cannot_draw() {
        let empty = RandomSampler::new(0);
        assert!(draw(empty, 1, 0).is_empty() && draw(empty.replacement(true), 1, 0).is_empty());
        assert_eq!(empty.num_samples(5), Err(SamplerError::NothingToDrawFrom { num_samples: 5 }));
        assert_eq!(RandomSampler::new(5).num_samples(0), Err(SamplerError::NoSamples));
    }

    // PyTorch: 66, S03
    #[test]
    fn without_replacement_an_index_is_drawn_once_per_permutation() {
        let max_count = |sampler: RandomSampler| {
            let drawn = draw(sampler, 3, 0);
            (0..5).map(|index| drawn.iter().filter(|&&other| other == index).count()).max()
        };
        let sampler = RandomSampler::new(5);
        assert_eq!(max_count(sampler), Some(1));
        assert_eq!(max_count(sampler.num_samples(10).unwrap()), Some(2));
        assert_eq!(max_count(sampler.num_samples(4).unwrap()), Some(1));
        assert_eq!(max_count(sampler.num_samples(6).unwrap()), Some(2));
        let repeats = sampler.replacement(true).num_samples(20).unwrap();
        assert!(Sampler::len(&repeats) == 20 && max_count(repeats) > Some(1));
    }

    proptest! {
        // PyTorch: 66, S03
        #[test]
        fn each_index_is_drawn_equally_often_or_once_more(len in 1usize..50, count in 1usize..200, seed: u64, torch: bool) {
            let order = if torch { Order::Torch } else { Order::Native };
            let mut seen = vec![0; len];
            let sampler = RandomSampler::new(len).num_samples(count).unwrap();
            sampler.indices(Epoch::new(seed, 0).order(order)).for_each(|index| seen[index] += 1);
            let rounds = count / len;
            prop_assert!(seen.iter().all(|&times| times == rounds || times == rounds + 1));
            prop_assert_eq!(seen.iter().sum::<usize>(), count);
        }

        #[test]
        fn draws_with_replacement_are_in_range(len in 1usize..50, count in 1usize..200, seed: u64) {
            let drawn = draw(RandomSampler::new(len).replacement(true).num_samples(count).unwrap(), seed, 0);
            prop_assert_eq!(drawn.len(), count);
            prop_assert!(drawn.into_iter().all(|index| index < len));
        }
    }
}
