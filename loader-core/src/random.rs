//! Where randomness comes from. Every number is a function of the seed, the epoch and what it is for; none depends on the
//! number of workers, on time, or on the order of loading.
//!
//! ChaCha8 keyed by `(purpose, seed, epoch)`; for a sample, its index selects the stream. The permutation is our own, since an
//! epoch's order is part of what a checkpoint means and `rand` may change its shuffle between minor releases.

use rand::{Rng, SeedableRng, rngs::ChaCha8Rng};

/// What a generator is for; keeps the streams of different uses apart.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Purpose {
    Order = 1,
    Sample = 2,
    /// What an iterable dataset draws in one shard.
    Shard = 3,
    /// The buffer that mixes a shard's samples.
    Buffer = 4,
}

/// What keys the generators of one use in one epoch.
pub(crate) fn key(purpose: Purpose, seed: u64, epoch: u64) -> [u8; 32] {
    shard_key(purpose, seed, epoch, 0)
}

/// The same for one shard of an iterable dataset.
pub(crate) fn shard_key(purpose: Purpose, seed: u64, epoch: u64, shard: u64) -> [u8; 32] {
    let mut key = [0; 32];
    key[..6].copy_from_slice(b"loader");
    key[7] = purpose as u8;
    key[8..16].copy_from_slice(&seed.to_le_bytes());
    key[16..24].copy_from_slice(&epoch.to_le_bytes());
    key[24..32].copy_from_slice(&shard.to_le_bytes());
    key
}

/// Stream `stream` under `key`: a sample's index, or 0.
pub(crate) fn generator(key: [u8; 32], stream: u64) -> ChaCha8Rng {
    let mut generator = ChaCha8Rng::from_seed(key);
    generator.set_stream(stream);
    generator
}

/// A uniform number below `bound` (which must not be 0): Lemire's method, unbiased.
pub(crate) fn below(generator: &mut impl Rng, bound: u64) -> u64 {
    let mut wide = u128::from(generator.next_u64()) * u128::from(bound);
    if (wide as u64) < bound {
        let threshold = bound.wrapping_neg() % bound;
        while (wide as u64) < threshold {
            wide = u128::from(generator.next_u64()) * u128::from(bound);
        }
    }
    (wide >> 64) as u64
}

/// Shuffles in place: Fisher-Yates from the front, so that a prefix is final early.
pub(crate) fn shuffle<T>(generator: &mut impl Rng, items: &mut [T]) {
    let len = items.len();
    for place in 0..len.saturating_sub(1) {
        let other = place + below(generator, (len - place) as u64) as usize;
        items.swap(place, other);
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
    fn below_stays_below_and_reaches_all() {
        let mut generator = generator(key(Purpose::Order, 0, 0), 0);
        let mut seen = [0; 6];
        for _ in 0..6000 {
            seen[below(&mut generator, 6) as usize] += 1;
        }
        assert!(seen.iter().all(|&count| (800..1200).contains(&count)), "{seen:?}");
    }
}
