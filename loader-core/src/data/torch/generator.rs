//! MT19937 and PyTorch's distributions on top of it. This module implements the generator itself because of
//! [`Generator::skip`]: existing crates compute each word that they skip.

use std::fmt;

/// Number of words of the state (`n` of MT19937).
const LEN: usize = 624;
/// Distance to the word that is mixed in (`m` of MT19937).
const FAR: usize = 397;

/// Minimum length from which a permutation takes 64-bit numbers and runs in the opposite direction.
const LARGE_PERMUTATION: usize = u32::MAX as usize / 20;
/// Minimum bound from which an integer takes a 64-bit number.
const LARGE_BOUND: u64 = 1 << 28;

/// `torch.Generator` on the CPU. A draw has 32 bits.
#[derive(Clone)]
pub(crate) struct Generator {
    state: [u32; LEN],
    /// Number of words of `state` that have been drawn.
    used: usize,
}

impl Generator {
    /// `torch.Generator().manual_seed(seed)`, which uses only the low 32 bits.
    pub(crate) fn new(seed: u64) -> Self {
        let mut state = [seed as u32; LEN];
        for word in 1..LEN {
            let before = state[word - 1];
            state[word] = 1_812_433_253u32.wrapping_mul(before ^ (before >> 30)).wrapping_add(word as u32);
        }
        Self { state, used: LEN }
    }

    /// Draws 32 bits: one draw.
    pub(crate) fn random(&mut self) -> u32 {
        if self.used == LEN {
            self.twist();
        }
        let mut word = self.state[self.used];
        self.used += 1;
        word ^= word >> 11;
        word ^= (word << 7) & 0x9d2c_5680;
        word ^= (word << 15) & 0xefc6_0000;
        word ^ (word >> 18)
    }

    /// Draws 64 bits: two draws, the high half first.
    pub(crate) fn random64(&mut self) -> u64 {
        let high = self.random();
        u64::from(high) << 32 | u64::from(self.random())
    }

    /// `torch.empty((), dtype=torch.int64).random_()`, from which a loader seeds its workers: 63 bits,
    /// [`BASE_SEED_DRAWS`](super::BASE_SEED_DRAWS) draws.
    pub(crate) fn base_seed(&mut self) -> u64 {
        self.random64() & i64::MAX as u64
    }

    /// Draws a number in [0, 1), as `torch.rand` does for doubles: two draws.
    pub(crate) fn uniform(&mut self) -> f64 {
        const BITS: u32 = f64::MANTISSA_DIGITS;
        (self.random64() & ((1 << BITS) - 1)) as f64 / (1u64 << BITS) as f64
    }

    /// `torch.randint` below `bound`, which must not be 0. Takes [`integer_draws`] draws.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        if bound >= LARGE_BOUND { self.random64() % bound } else { u64::from(self.random()) % bound }
    }

    /// Puts `items` into the order of `torch.randperm`. Takes [`permutation_draws`] draws.
    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        let len = items.len();
        if len < LARGE_PERMUTATION {
            for position in 0..len.saturating_sub(1) {
                let other = self.random() % (len - position) as u32;
                items.swap(position, position + other as usize);
            }
        } else {
            self.shuffle_many(items);
        }
    }

    /// [`shuffle`](Self::shuffle) for at least [`LARGE_PERMUTATION`] items.
    fn shuffle_many<T>(&mut self, items: &mut [T]) {
        for position in 0..items.len() {
            let other = self.random64() % (position as u64 + 1);
            items.swap(position, other as usize);
        }
    }

    /// Skips `count` draws. Takes about a third of a nanosecond per draw.
    pub(crate) fn skip(&mut self, count: u128) {
        let mut left = self.used as u128 + count;
        while left > LEN as u128 {
            self.twist();
            left -= LEN as u128;
        }
        self.used = left as usize;
    }

    /// Computes the next [`LEN`] words.
    fn twist(&mut self) {
        let state = &mut self.state;
        for position in 0..LEN - FAR {
            state[position] = state[position + FAR] ^ mix(state[position], state[position + 1]);
        }
        for position in LEN - FAR..LEN - 1 {
            state[position] = state[position + FAR - LEN] ^ mix(state[position], state[position + 1]);
        }
        state[LEN - 1] = state[FAR - 1] ^ mix(state[LEN - 1], state[0]);
        self.used = 0;
    }
}

impl fmt::Debug for Generator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Generator").finish_non_exhaustive()
    }
}

/// Number of draws that [`Generator::shuffle`] takes for `len` items.
pub(crate) fn permutation_draws(len: usize) -> u64 {
    if len < LARGE_PERMUTATION { len.saturating_sub(1) as u64 } else { 2 * len as u64 }
}

/// Number of draws that [`Generator::below`] takes.
pub(crate) fn integer_draws(bound: u64) -> u64 {
    if bound >= LARGE_BOUND { 2 } else { 1 }
}

fn mix(high: u32, low: u32) -> u32 {
    let word = (high & 0x8000_0000) | (low & 0x7fff_ffff);
    (word >> 1) ^ (0x9908_b0df & 0u32.wrapping_sub(low & 1))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_ten_thousandth_word_equals_that_of_the_reference_implementation() {
        // The C++ standard specifies the 10,000th word of MT19937 with the seed 5489.
        let mut generator = Generator::new(5489);
        generator.skip(9999);
        assert_eq!(generator.random(), 4_123_659_995);
    }

    proptest! {
        #[test]
        fn skipping_has_the_effect_of_drawing(seed: u64, before in 0usize..1500, count in 0usize..3000) {
            let (mut skipped, mut drawn) = (Generator::new(seed), Generator::new(seed));
            for generator in [&mut skipped, &mut drawn] {
                (0..before).for_each(|_| { generator.random(); });
            }
            skipped.skip(count as u128);
            (0..count).for_each(|_| { drawn.random(); });
            prop_assert_eq!(skipped.random64(), drawn.random64());
        }
    }

    #[test]
    fn large_permutations_begin_at_pytorch_s_length() {
        assert_eq!(permutation_draws(214_748_363), 214_748_362);
        assert_eq!(permutation_draws(214_748_364), 429_496_728);
    }

    /// PyTorch itself shuffles 20 items with the other algorithm, so the expected order comes from a Python
    /// model of `randperm_cpu`. The 64-bit numbers of the model were checked against those of PyTorch in
    /// `tests/golden/torch-order.json`.
    #[test]
    fn shuffle_many_equals_a_model_of_pytorch() {
        let mut items: Vec<u32> = (0..20).collect();
        Generator::new(7).shuffle_many(&mut items);
        let expected = [19, 8, 7, 13, 4, 5, 9, 6, 14, 12, 17, 11, 16, 3, 2, 10, 15, 0, 1, 18];
        assert_eq!(items, expected);
    }

    /// Compares a permutation just below the limit and one at the limit with PyTorch's. Takes 2 GB of memory
    /// and, with optimisation, ten seconds.
    #[test]
    #[ignore = "needs 2 GB of memory"]
    fn permutations_on_both_sides_of_the_limit_equal_pytorch_s() {
        // First items of torch.randperm(n, generator=torch.Generator().manual_seed(7)), and the sum of
        // position * item modulo 2^64.
        const SMALL: ([u32; 4], u64) =
            ([112_993_252, 117_420_445, 128_500_308, 81_485_129], 300_273_953_342_404_185);
        const LARGE: ([u32; 4], u64) =
            ([93_268_064, 63_068_233, 165_770_247, 155_513_421], 7_178_176_880_412_825_421);
        for (len, (first, sum)) in [(LARGE_PERMUTATION - 1, SMALL), (LARGE_PERMUTATION, LARGE)] {
            let mut items: Vec<u32> = (0..len as u32).collect();
            Generator::new(7).shuffle(&mut items);
            assert_eq!(items[..4], first);
            let products = (0u64..).zip(&items).map(|(position, &item)| position * u64::from(item));
            assert_eq!(products.fold(0, u64::wrapping_add), sum);
        }
    }
}
