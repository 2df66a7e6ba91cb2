//! The random numbers of the samplers: this crate's or PyTorch's.

use rand::rngs::ChaCha8Rng;

use super::Epoch;
use crate::{
    data::{random, torch},
    options::Order,
};

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
