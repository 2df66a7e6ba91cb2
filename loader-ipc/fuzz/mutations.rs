//! Deterministic mutations of inputs, with which `tests/corpus.rs` of each fuzzed crate replays its corpus.

/// A deterministic random number generator (SplitMix64) that changes inputs.
pub(crate) struct Mutations(u64);

impl Mutations {
    pub(crate) fn new() -> Self {
        Self(0)
    }

    /// Returns the input with one to four changes.
    pub(crate) fn mutate(&mut self, input: &[u8]) -> Vec<u8> {
        let mut bytes = input.to_vec();
        for _ in 0..=self.below(4) {
            let offset = self.below(bytes.len());
            match self.below(6) {
                0 => bytes.truncate(offset),
                1 => bytes.extend((0..self.below(40)).map(|byte| byte as u8)),
                2 => bytes.iter_mut().skip(offset).take(1).for_each(|byte| *byte ^= 1 << (offset % 8)),
                // Writes a number at which lengths and offsets are likely to overflow or to leave a range.
                kind => {
                    let edges = [0, 1, 63, 64, 4095, 4096, 4097, 1 << 32, 1 << 60, u64::MAX - 63, u64::MAX];
                    let number = edges[self.below(edges.len())].to_le_bytes();
                    let offset = if kind == 3 { offset } else { offset / 8 * 8 };
                    bytes.iter_mut().skip(offset).zip(number).for_each(|(byte, new)| *byte = new);
                }
            }
        }
        bytes
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }
}
