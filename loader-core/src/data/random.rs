//! Random number generators. Every random number is a function of the seed, the epoch and its purpose. None
//! depends on the number of workers, on time or on the order of loading.
//!
//! The generator is ChaCha8, keyed by `(purpose, seed, epoch)`; for a sample, the index selects the stream.
//! This module has its own shuffle, because a checkpoint is only valid while the order of an epoch does not
//! change, and `rand` may change its shuffle between minor releases.

use rand::{Rng, SeedableRng, rngs::ChaCha8Rng};

use crate::options::Order;

/// The epoch whose order a sampler computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Epoch {
    /// The loader's seed.
    pub seed: u64,
    /// Number of the epoch, from 0.
    pub number: u64,
    /// The random numbers that determine the order: this crate's or PyTorch's.
    pub order: Order,
}

impl Epoch {
    /// Creates epoch `number` of a loader with the given seed, in the native order.
    pub fn new(seed: u64, number: u64) -> Self {
        Self { seed, number, order: Order::default() }
    }

    /// Returns the same epoch with another order.
    #[must_use]
    pub fn order(self, order: Order) -> Self {
        Self { order, ..self }
    }

    /// Returns this crate's generator for the order of this epoch. Each call returns the generator in its
    /// initial state.
    pub fn rng(&self) -> ChaCha8Rng {
        generator(key(Purpose::Order, self.seed, self.number), 0)
    }
}

/// Purpose of a generator. Generators with different purposes draw different numbers.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Purpose {
    /// The order of an epoch.
    Order = 1,
    /// A sample of a map-style dataset.
    Sample = 2,
    /// The base seed of the workers.
    Worker = 3,
    /// A random split.
    Split = 4,
    /// A shard of an iterable dataset.
    Shard = 5,
    /// A shuffle buffer.
    Buffer = 6,
    /// The choice of a replacement for a bad sample.
    Replacement = 7,
    /// What all shards of an epoch have in common.
    Epoch = 8,
    /// The order of mixed datasets.
    Mix = 9,
}

/// Returns the key of the generators with one purpose in one epoch.
pub(crate) fn key(purpose: Purpose, seed: u64, epoch: u64) -> [u8; 32] {
    shard_key(purpose, seed, epoch, 0)
}

/// Returns the key of the generators with one purpose in one epoch and one shard of an iterable dataset.
pub(crate) fn shard_key(purpose: Purpose, seed: u64, epoch: u64, shard: u64) -> [u8; 32] {
    let mut key = [0; 32];
    key[..6].copy_from_slice(b"loader");
    key[7] = purpose as u8;
    key[8..16].copy_from_slice(&seed.to_le_bytes());
    key[16..24].copy_from_slice(&epoch.to_le_bytes());
    key[24..32].copy_from_slice(&shard.to_le_bytes());
    key
}

/// Returns `key` with a different purpose.
pub(crate) fn purpose_key(mut key: [u8; 32], purpose: Purpose) -> [u8; 32] {
    key[7] = purpose as u8;
    key
}

/// Returns the key of one layer of a dataset that is made of other datasets, so that no two layers draw the
/// same numbers. The key of layer 0 is `key` itself.
pub(crate) fn layer_key(mut key: [u8; 32], layer: u8) -> [u8; 32] {
    key[6] = layer;
    key
}

/// Creates the generator with the given key and stream. The stream is the index of a sample, or 0.
pub(crate) fn generator(key: [u8; 32], stream: u64) -> ChaCha8Rng {
    let mut generator = ChaCha8Rng::from_seed(key);
    generator.set_stream(stream);
    generator
}

/// Draws a uniform number below `bound`, which must not be 0, with Lemire's unbiased method.
pub fn below(generator: &mut impl Rng, bound: u64) -> u64 {
    let mut wide = u128::from(generator.next_u64()) * u128::from(bound);
    if (wide as u64) < bound {
        let threshold = bound.wrapping_neg() % bound;
        while (wide as u64) < threshold {
            wide = u128::from(generator.next_u64()) * u128::from(bound);
        }
    }
    (wide >> 64) as u64
}

/// Draws a uniform number in [0, 1), a multiple of 2^-53.
pub(crate) fn uniform(generator: &mut impl Rng) -> f64 {
    const BITS: u32 = f64::MANTISSA_DIGITS;
    (generator.next_u64() >> (u64::BITS - BITS)) as f64 / (1u64 << BITS) as f64
}

/// Shuffles in place with Fisher-Yates, from the front: item `i` is final after step `i`.
pub fn shuffle<T>(generator: &mut impl Rng, items: &mut [T]) {
    let len = items.len();
    for position in 0..len.saturating_sub(1) {
        let other = position + below(generator, (len - position) as u64) as usize;
        items.swap(position, other);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_of_an_epoch_never_changes_between_releases() {
        let mut items: Vec<u32> = (0..10).collect();
        shuffle(&mut generator(key(Purpose::Order, 7, 0), 0), &mut items);
        assert_eq!(items, GOLDEN_SEED_7);
        assert_eq!(generator(key(Purpose::Sample, 7, 0), 3).next_u64(), GOLDEN_SAMPLE_7_0_3);
    }

    const GOLDEN_SEED_7: [u32; 10] = [9, 3, 8, 1, 0, 6, 4, 5, 7, 2];
    const GOLDEN_SAMPLE_7_0_3: u64 = 10_443_036_692_300_352_235;

    #[test]
    fn below_draws_all_numbers_below_the_bound_equally_often() {
        let mut generator = generator(key(Purpose::Order, 0, 0), 0);
        let mut seen = [0; 6];
        for _ in 0..6000 {
            seen[below(&mut generator, 6) as usize] += 1;
        }
        assert!(seen.iter().all(|&count| (800..1200).contains(&count)), "{seen:?}");
    }
}
