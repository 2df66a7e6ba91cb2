//! PyTorch's random numbers on the CPU, number for number, as of PyTorch 2.15: its generator, and what its samplers draw from it.

mod generator;
#[cfg(test)]
mod golden;
mod replay;

pub(crate) use generator::{Generator, integer_draws, permutation_draws};
pub(crate) use replay::at_epoch;

/// Draws of [`Generator::base_seed`].
pub(crate) const BASE_SEED_DRAWS: u64 = 2;
