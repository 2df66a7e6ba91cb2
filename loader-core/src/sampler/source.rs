//! Where the samplers' random numbers come from: of an epoch, in either order.

use rand::rngs::ChaCha8Rng;

use super::Epoch;
use crate::{
    options::Order,
    random,
    torch::{self, BASE_SEED_DRAWS},
};

/// An epoch's generator.
#[derive(Debug)]
pub(super) enum Source {
    Native(Box<ChaCha8Rng>),
    Torch(Box<torch::Generator>),
}

impl Source {
    /// For a sampler that takes `draws` of PyTorch's numbers in an epoch, from a generator that is seeded once.
    pub(super) fn of_sampler(epoch: Epoch, draws: u64) -> Self {
        Self::new(epoch, || torch::at_epoch(epoch.seed, epoch.number, draws))
    }

    /// The same, where the loader takes its base seed from that generator, before it asks the sampler.
    pub(super) fn of_loader(epoch: Epoch, draws: u64) -> Self {
        Self::new(epoch, || {
            let mut generator =
                torch::at_epoch(epoch.seed, epoch.number, BASE_SEED_DRAWS.saturating_add(draws));
            generator.base_seed();
            generator
        })
    }

    /// For a sampler whose generator is seeded for each epoch.
    pub(super) fn of_epoch(epoch: Epoch) -> Self {
        Self::new(epoch, || torch::Generator::new(epoch.seed.wrapping_add(epoch.number)))
    }

    fn new(epoch: Epoch, torch: impl FnOnce() -> torch::Generator) -> Self {
        match epoch.order {
            Order::Native => Self::Native(Box::new(epoch.rng())),
            Order::Torch => Self::Torch(Box::new(torch())),
        }
    }

    /// Puts `items` into a random order.
    pub(super) fn shuffle<T>(&mut self, items: &mut [T]) {
        match self {
            Self::Native(generator) => random::shuffle(generator, items),
            Self::Torch(generator) => generator.shuffle(items),
        }
    }

    /// A number below `bound`, which must not be 0.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        match self {
            Self::Native(generator) => random::below(generator, bound),
            Self::Torch(generator) => generator.below(bound),
        }
    }

    /// A number from 0 to 1.
    pub(super) fn uniform(&mut self) -> f64 {
        match self {
            // Never 0: what has no weight is never drawn.
            Self::Native(generator) => 1.0 - random::uniform(generator),
            Self::Torch(generator) => generator.uniform(),
        }
    }

    /// A number of the exponential distribution with rate 1.
    pub(super) fn exponential(&mut self) -> f64 {
        match self {
            Self::Native(_) => -self.uniform().ln(),
            Self::Torch(_) => -(-self.uniform()).ln_1p(),
        }
    }
}
