//! Random permutations.
//!
//! A long permutation in the native order is computed position by position, with a Feistel network over the
//! numbers from 0 to slightly more than the length, keyed by seed and epoch. The network is applied again
//! while it returns a number that is not below the length (cycle walking). This needs neither memory nor time
//! before the first index, so an epoch over any number of samples starts and resumes without delay.
//!
//! The network has two halves: `low` with `2^k` values and `high` with `ceil(len / 2^k)` values, where `2^k`
//! is near the square root of the length. It covers fewer than `len + 2^k` numbers, so an index needs 1.004
//! applications on average at a length of 65,536, and fewer at larger lengths.
//!
//! The network has six rounds. With four rounds, the composition of batches and the counts of positions by
//! values differ from those of a shuffle within a few hundred epochs over 65,536 samples; with six rounds the
//! tests below find no difference. A round function consists of two multiplications with shifts between them;
//! with one multiplication, eight rounds were needed.
//!
//! Alternative considered: the same for short permutations. Rejected because a round function of 8 bits or
//! fewer takes too few distinct values, and shuffling fewer than 65,536 indices takes less than half a
//! millisecond.

use rand::Rng;

use super::{Epoch, source::Source};
use crate::{
    data::random::{Purpose, generator, key},
    options::Order,
};

/// Minimum length of a native permutation that is computed position by position.
const MIN_KEYED_LEN: usize = 1 << 16;

/// The permutations of an epoch, one after the other. All have the same length.
#[derive(Debug)]
pub(crate) enum Permutations {
    /// Permutations that are shuffled in memory: those shorter than [`MIN_KEYED_LEN`], and those in PyTorch's
    /// order.
    Table(Table),
    /// Permutations that are computed position by position. `start` is the position at which the current one
    /// begins.
    Keyed { epoch: Epoch, start: usize, permutation: Feistel },
}

impl Permutations {
    /// Creates permutations of the numbers below `len`. A table is shuffled with the generator that `source`
    /// returns.
    pub(super) fn new(len: usize, epoch: Epoch, source: impl FnOnce() -> Source) -> Self {
        match epoch.order {
            Order::Native if len >= MIN_KEYED_LEN => {
                Self::Keyed { epoch, start: 0, permutation: Feistel::of_epoch(len, epoch, 0) }
            }
            order => Self::Table(Table {
                indices: (0..len).collect(),
                start: 0,
                end: 0,
                source: source(),
                starts_sorted: order.is_torch(),
            }),
        }
    }

    /// Creates permutations of the numbers below `len` in the native order, keyed by `seed`.
    pub(crate) fn keyed(len: usize, seed: u64) -> Self {
        let epoch = Epoch::new(seed, 0);
        Self::new(len, epoch, || Source::of_epoch(epoch))
    }

    /// Returns the number at `position`, counted over all permutations. `position` must not be in an
    /// earlier permutation than in the last call.
    #[inline]
    pub(crate) fn at(&mut self, position: usize) -> usize {
        match self {
            Self::Table(table) => table.at(position),
            Self::Keyed { epoch, start, permutation } => {
                let len = permutation.len as usize;
                if position - *start >= len {
                    let number = position / len;
                    *start = number * len;
                    *permutation = Feistel::of_epoch(len, *epoch, number as u64);
                }
                permutation.at((position - *start) as u64) as usize
            }
        }
    }
}

/// Permutations that are shuffled in memory.
#[derive(Debug)]
pub(crate) struct Table {
    indices: Vec<usize>,
    /// Position at which the current permutation begins, counted over all permutations.
    start: usize,
    /// Position after the end of the current permutation.
    end: usize,
    source: Source,
    /// True if each permutation is a shuffle of the sorted numbers, as in PyTorch; false if it is a shuffle
    /// of the previous permutation.
    starts_sorted: bool,
}

impl Table {
    fn at(&mut self, position: usize) -> usize {
        while position >= self.end {
            if self.starts_sorted && self.end > 0 {
                (0..).zip(&mut self.indices).for_each(|(index, item)| *item = index);
            }
            self.source.shuffle(&mut self.indices);
            self.start = self.end;
            self.end = self.end.saturating_add(self.indices.len());
        }
        self.indices[position - self.start]
    }
}

/// A permutation of the numbers below `len`, computed by a Feistel network.
#[derive(Debug)]
pub(crate) struct Feistel<const ROUNDS: usize = 6> {
    len: u64,
    /// Number of bits of the low half, at least 1.
    low_bits: u32,
    /// Number of values of the high half.
    high_values: u64,
    keys: [[u64; 2]; ROUNDS],
}

impl Feistel {
    /// Creates permutation `number` of an epoch.
    fn of_epoch(len: usize, epoch: Epoch, number: u64) -> Self {
        Self::new(len as u64, &mut generator(key(Purpose::Order, epoch.seed, epoch.number), number))
    }
}

impl<const ROUNDS: usize> Feistel<ROUNDS> {
    /// Creates a permutation with keys from `rng`. `len` must be at least 4.
    fn new(len: u64, rng: &mut impl Rng) -> Self {
        let low_bits = (u64::BITS - (len - 1).leading_zeros()) / 2;
        let high_values = len.div_ceil(1 << low_bits);
        Self { len, low_bits, high_values, keys: std::array::from_fn(|_| [rng.next_u64(), rng.next_u64()]) }
    }

    /// Returns the number at `position`, which must be below `len`.
    #[inline]
    fn at(&self, position: u64) -> u64 {
        let mut number = position;
        loop {
            number = self.apply(number);
            // The loop ends: it follows the cycle that contains `position`, which is below `len`.
            if number < self.len {
                return number;
            }
        }
    }

    /// Applies the network once.
    #[inline]
    fn apply(&self, number: u64) -> u64 {
        let low_mask = (1 << self.low_bits) - 1;
        let (mut low, mut high) = (number & low_mask, number >> self.low_bits);
        for keys in self.keys.chunks_exact(2) {
            low = low.wrapping_add(mix(high, keys[0])) & low_mask;
            let wide = u128::from(mix(low, keys[1])) * u128::from(self.high_values);
            high += (wide >> u64::BITS) as u64;
            if high >= self.high_values {
                high -= self.high_values;
            }
        }
        high << self.low_bits | low
    }
}

/// Mixes `half` with the key of a round into 64 pseudorandom bits: the steps of MurmurHash3's finaliser, with
/// the constants of SplitMix64.
#[inline]
fn mix(half: u64, key: [u64; 2]) -> u64 {
    let mut bits = half.wrapping_add(key[0]).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    bits ^= bits >> 32;
    bits = (bits ^ key[1]).wrapping_mul(0x94D0_49BB_1331_11EB);
    bits ^ (bits >> 32)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rand::{SeedableRng, rngs::ChaCha8Rng};

    use super::*;
    use crate::data::random::shuffle;

    #[test]
    fn a_long_permutation_never_changes_between_releases() {
        let mut order = Permutations::new(100_000, Epoch::new(7, 0), || unreachable!("no table is needed"));
        let first: Vec<usize> = (0..6).map(|position| order.at(position)).collect();
        assert_eq!(
            (first, order.at(99_999), order.at(100_000)),
            (GOLDEN_FIRST.to_vec(), GOLDEN_LAST, GOLDEN_NEXT)
        );
    }

    const GOLDEN_FIRST: [usize; 6] = [55_740, 97_524, 42_151, 76_624, 6_013, 23_587];
    const GOLDEN_LAST: usize = 42_467;
    const GOLDEN_NEXT: usize = 86_296;

    #[test]
    fn the_permutations_of_an_epoch_differ() {
        const LEN: usize = 70_000;
        let mut order = Permutations::new(LEN, Epoch::new(3, 1), || unreachable!("no table is needed"));
        let all: Vec<usize> = (0..3 * LEN).map(|position| order.at(position)).collect();
        for permutation in all.chunks(LEN) {
            let mut sorted = permutation.to_vec();
            sorted.sort_unstable();
            assert!(sorted.into_iter().eq(0..LEN));
        }
        assert_ne!(all[..LEN], all[LEN..2 * LEN]);
    }

    proptest! {
        #[test]
        fn a_network_is_a_permutation_for_any_length(len in 4u64..5_000, seed: u64) {
            let permutation = Feistel::<6>::new(len, &mut ChaCha8Rng::seed_from_u64(seed));
            let mut all: Vec<u64> = (0..len).map(|position| permutation.at(position)).collect();
            all.sort_unstable();
            prop_assert!(all.into_iter().eq(0..len));
        }

        #[test]
        fn numbers_of_very_long_permutations_are_in_range(len in (1u64 << 40)..=u64::MAX, position: u64, seed: u64) {
            let permutation = Feistel::<6>::new(len, &mut ChaCha8Rng::seed_from_u64(seed));
            prop_assert!(permutation.at(position % len) < len);
        }
    }

    /// Lengths of the tested permutations: the minimum length, which has the smallest halves, and one for which
    /// the network covers more numbers than the length, so that `at` applies it again.
    const LENGTHS: [usize; 2] = [MIN_KEYED_LEN, MIN_KEYED_LEN + 257];
    /// Number of permutations that a test examines.
    const EPOCHS: u64 = 24;

    /// Returns by how many standard deviations of a true shuffle the statistics of the permutations of
    /// `epochs` seeds differ from their expectations.
    fn deviations(epochs: u64, permutation: impl Fn(u64) -> Vec<usize>) -> Vec<(&'static str, f64)> {
        let mut sums: Vec<(&'static str, f64)> = Vec::new();
        let mut add = |name, deviation: f64| match sums.iter_mut().find(|(other, _)| *other == name) {
            Some((_, sum)) => *sum += deviation,
            None => sums.push((name, deviation)),
        };
        for seed in 0..epochs {
            let order = permutation(seed);
            let len = order.len();
            add("positions by values", positions_by_values(&order));
            for (name, stride) in [("neighbours", 1), ("256 apart", 256), ("1,000 apart", 1000)] {
                add(name, differences(&order, stride));
            }
            let fixed = order.iter().enumerate().filter(|(position, value)| position == *value).count();
            // The number of fixed points of a shuffle has mean 1 and variance 1.
            add("fixed points", fixed as f64 - 1.0);
            add("cycles", cycles(&order));
            add("batches by contiguous class", batches_by_class(&order, |value| value * 10 / len));
            add("batches by class modulo 10", batches_by_class(&order, |value| value % 10));
        }
        sums.iter_mut().for_each(|(_, sum)| *sum /= (epochs as f64).sqrt());
        sums
    }

    /// Chi-square of counts that are expected to be equal, with `freedom` degrees of freedom, as a number of
    /// standard deviations from its mean.
    fn chi_square(counts: &[u32], freedom: f64) -> f64 {
        let expected = f64::from(counts.iter().sum::<u32>()) / counts.len() as f64;
        let sum: f64 = counts.iter().map(|&count| (f64::from(count) - expected).powi(2) / expected).sum();
        (sum - freedom) / (2.0 * freedom).sqrt()
    }

    /// Counts the values in each 64th of the value range for each 64th of the positions.
    fn positions_by_values(order: &[usize]) -> f64 {
        let len = order.len();
        let mut counts = vec![0; 64 * 64];
        order
            .iter()
            .enumerate()
            .for_each(|(position, value)| counts[position * 64 / len * 64 + value * 64 / len] += 1);
        chi_square(&counts, 63.0 * 63.0)
    }

    /// Counts the differences of values that are `stride` positions apart.
    fn differences(order: &[usize], stride: usize) -> f64 {
        let len = order.len();
        let mut counts = vec![0; 64];
        let pairs = order.iter().zip(&order[stride..]);
        pairs.for_each(|(one, other)| counts[(other + len - one) % len * 64 / len] += 1);
        chi_square(&counts, 63.0)
    }

    /// Number of cycles. In a shuffle, its mean is the harmonic number of the length.
    fn cycles(order: &[usize]) -> f64 {
        let len = order.len();
        let mut seen = vec![false; len];
        let mut cycles = 0;
        for start in 0..len {
            let mut position = start;
            cycles += usize::from(!seen[position]);
            while !std::mem::replace(&mut seen[position], true) {
                position = order[position];
            }
        }
        let (mean, variance) = ((len as f64).ln() + 0.5772, (len as f64).ln() - 1.0677);
        (cycles as f64 - mean) / variance.sqrt()
    }

    /// Variance of the number of samples of each of 10 classes in a batch of 64. In a shuffle, the number has
    /// a hypergeometric distribution.
    fn batches_by_class(order: &[usize], class: impl Fn(usize) -> usize) -> f64 {
        const BATCH: f64 = 64.0;
        let len = order.len() as f64;
        let mut squares = 0.0;
        for batch in order.chunks_exact(64) {
            let mut counts = [0.0; 10];
            batch.iter().for_each(|&value| counts[class(value)] += 1.0);
            squares += counts.iter().map(|count: &f64| (count - BATCH / 10.0).powi(2)).sum::<f64>();
        }
        let classes_of_batches = (len / BATCH).floor() * 10.0;
        let expected = BATCH * 0.1 * 0.9 * (len - BATCH) / (len - 1.0);
        // A batch has nine degrees of freedom. The mean of the squares of `n` normal variables has the
        // variance 2 / n.
        (squares / classes_of_batches / expected - 1.0) * (classes_of_batches * 0.9 / 2.0).sqrt()
    }

    fn keyed<const ROUNDS: usize>(len: usize) -> impl Fn(u64) -> Vec<usize> {
        move |seed| {
            let permutation = Feistel::<ROUNDS>::new(len as u64, &mut ChaCha8Rng::seed_from_u64(seed));
            (0..len as u64).map(|position| permutation.at(position) as usize).collect()
        }
    }

    fn shuffled(len: usize) -> impl Fn(u64) -> Vec<usize> {
        move |seed| {
            let mut order: Vec<usize> = (0..len).collect();
            shuffle(&mut ChaCha8Rng::seed_from_u64(seed), &mut order);
            order
        }
    }

    /// A true shuffle exceeds this bound in fewer than one of ten thousand runs of these tests.
    const MAX_DEVIATION: f64 = 4.5;

    /// Returns the statistics that differ from those of a shuffle.
    fn poor(found: &[(&'static str, f64)]) -> Vec<(&'static str, f64)> {
        found.iter().copied().filter(|(_, deviation)| deviation.abs() > MAX_DEVIATION).collect()
    }

    #[test]
    fn the_statistics_equal_those_of_a_shuffle() {
        for len in LENGTHS {
            assert_eq!(poor(&deviations(EPOCHS, shuffled(len))), [], "shuffle of {len}");
            assert_eq!(poor(&deviations(EPOCHS, keyed::<6>(len))), [], "permutation of {len}");
        }
    }

    #[test]
    fn the_statistics_detect_a_network_of_two_rounds() {
        let found = deviations(EPOCHS, keyed::<2>(MIN_KEYED_LEN));
        assert!(poor(&found).len() >= 4, "{found:?}");
    }

    #[test]
    #[ignore = "examines 600 permutations; `.ci/long ignored` runs it"]
    fn six_rounds_are_needed() {
        const MANY_EPOCHS: u64 = 600;
        let four = deviations(MANY_EPOCHS, keyed::<4>(MIN_KEYED_LEN));
        assert!(!poor(&four).is_empty(), "{four:?}");
        assert_eq!(poor(&deviations(MANY_EPOCHS, keyed::<6>(MIN_KEYED_LEN))), []);
        assert_eq!(poor(&deviations(MANY_EPOCHS, shuffled(MIN_KEYED_LEN))), []);
    }
}
