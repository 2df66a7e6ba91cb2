//! The random numbers of the samplers and of the seeds of workers: this crate's or PyTorch's.

use rand::{Rng, rngs::ChaCha8Rng};

use super::Epoch;
use crate::{
    data::{
        random::{self, Purpose},
        torch,
    },
    options::Order,
};

/// Returns the seed from which the seeds of an epoch's workers are derived; it has 63 bits. In an order of PyTorch, it
/// is the number that PyTorch draws at the beginning of the epoch, or with persistent workers of the first epoch. The
/// former depends on `draws`, the number of draws that the sampler takes from the loader's generator per epoch
/// (`BatchSampler::torch_draws`).
pub(crate) fn base_seed(epoch: Epoch, draws: u64) -> u64 {
    match epoch.order {
        Order::Native => {
            random::generator(random::key(Purpose::Worker, epoch.seed, epoch.number), 0).next_u64() >> 1
        }
        Order::Torch | Order::TorchPersistent => torch::of_loader(epoch, draws).0,
    }
}

/// The generator of an epoch.
#[derive(Debug)]
pub(super) enum Source {
    Native(Box<ChaCha8Rng>),
    Torch(Box<torch::Generator>),
}

impl Source {
    /// Generator for a sampler that takes `draws` draws per epoch in PyTorch's order, from a generator of its
    /// own that is seeded once.
    pub(super) fn of_sampler(epoch: Epoch, draws: u64) -> Self {
        Self::new(epoch, || torch::at_epoch(epoch.seed, epoch.number, draws))
    }

    /// Generator for a sampler that shares the loader's generator and takes `draws` draws per epoch.
    pub(super) fn of_loader(epoch: Epoch, draws: u64) -> Self {
        Self::new(epoch, || torch::of_loader(epoch, draws).1)
    }

    /// Generator for a sampler whose generator is seeded for each epoch.
    pub(super) fn of_epoch(epoch: Epoch) -> Self {
        Self::new(epoch, || torch::Generator::new(epoch.seed.wrapping_add(epoch.number)))
    }

    fn new(epoch: Epoch, torch: impl FnOnce() -> torch::Generator) -> Self {
        match epoch.order {
            Order::Native => Self::Native(Box::new(epoch.rng())),
            Order::Torch | Order::TorchPersistent => Self::Torch(Box::new(torch())),
        }
    }

    /// Shuffles `items`.
    pub(super) fn shuffle<T>(&mut self, items: &mut [T]) {
        match self {
            Self::Native(generator) => random::shuffle(generator, items),
            Self::Torch(generator) => generator.shuffle(items),
        }
    }

    /// Draws a number below `bound`, which must not be 0.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        match self {
            Self::Native(generator) => random::below(generator, bound),
            Self::Torch(generator) => generator.below(bound),
        }
    }

    /// Draws a number between 0 and 1: in (0, 1] in the native order, in [0, 1) in PyTorch's.
    pub(super) fn uniform(&mut self) -> f64 {
        match self {
            // Never 0, so that an index of weight 0 is never drawn.
            Self::Native(generator) => 1.0 - random::uniform(generator),
            Self::Torch(generator) => generator.uniform(),
        }
    }

    /// Draws a number from the exponential distribution with rate 1.
    pub(super) fn exponential(&mut self) -> f64 {
        match self {
            Self::Native(_) => -self.uniform().ln(),
            Self::Torch(_) => -(-self.uniform()).ln_1p(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base_seeds_have_63_bits_and_differ_by_epoch() {
        let epochs = |order| (0..100).map(move |number| base_seed(Epoch { seed: 7, number, order }, 38));
        for order in [Order::Native, Order::Torch] {
            let mut seeds: Vec<u64> = epochs(order).collect();
            assert!(seeds.iter().all(|&seed| seed < 1 << 63) && seeds.iter().any(|&seed| seed >= 1 << 62));
            seeds.sort_unstable();
            seeds.dedup();
            assert_eq!(seeds.len(), 100);
        }
        assert_eq!(epochs(Order::Native).next(), Some(GOLDEN_WORKER_7_0));
    }

    const GOLDEN_WORKER_7_0: u64 = 8_297_548_376_829_063_600;
}
