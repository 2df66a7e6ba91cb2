//! The random numbers of PyTorch 2.15 on the CPU, bit for bit: its generator, and what its samplers draw from
//! it.

mod generator;
#[cfg(test)]
mod golden;
mod replay;

pub(crate) use generator::{Generator, integer_draws, permutation_draws};
pub(crate) use replay::{at_epoch, of_loader};

/// Number of draws that [`Generator::base_seed`] takes.
pub(crate) const BASE_SEED_DRAWS: u64 = 2;
