//! Tables that decode Huffman codes.

use crate::header::{Component, Header};

/// A Huffman code as in the file: the number of codes of each length from 1 to 16, and their symbols.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Code<'a> {
    counts: &'a [u8; 16],
    symbols: &'a [u8],
}

impl Code<'_> {
    /// True if there are no more codes than 16 bits allow. A code of ones only is not allowed.
    fn fits(&self) -> bool {
        let used = (1..=16).zip(self.counts).map(|(length, &count)| u32::from(count) << (16 - length));
        self.symbols.len() <= 256 && used.sum::<u32>() < 1 << 16
    }
}

/// The Huffman codes of a file: four for DC and four for AC. Each is `None` until the file has defined it.
#[derive(Debug, Default)]
pub(crate) struct Codes<'a> {
    pub(crate) dc: [Option<Code<'a>>; 4],
    pub(crate) ac: [Option<Code<'a>>; 4],
}

impl<'a> Codes<'a> {
    /// Stores the codes that a DHT segment defines. Returns `None` if zune-jpeg would refuse them.
    pub(crate) fn read(&mut self, mut segment: &'a [u8]) -> Option<()> {
        while let Some((&kind, rest)) = segment.split_first() {
            let (counts, rest) = rest.split_first_chunk::<16>()?;
            let all = counts.iter().map(|&count| usize::from(count)).sum();
            let (symbols, rest) = rest.split_at_checked(all)?;
            let code = Code { counts, symbols };
            let codes = match kind >> 4 {
                0 if symbols.iter().all(|&symbol| symbol < 16) => &mut self.dc,
                1 => &mut self.ac,
                _ => return None,
            };
            *codes.get_mut(usize::from(kind & 15))? = Some(code.fits().then_some(code)?);
            segment = rest;
        }
        Some(())
    }
}

/// Maximum length of the codes that one look-up decodes. Longer codes are rare.
const SHORT: u32 = 11;

/// The meaning of a code: a number of zeros (`run`), then a value, whose `size` bits follow the code.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Entry(u32);

impl Entry {
    /// The `run` of the code that ends a block. A block has 63 AC values, so no real run is as long.
    const END: u32 = 64;
    /// The entry of bits that are not a code, or of a code that is not allowed. Its `run` is above `END`.
    const INVALID: Self = Self(128 << 24 | 1);

    fn new(length: u32, size: u32, run: u32) -> Self {
        Self(run << 24 | size << 16 | length << 8 | (length + size))
    }

    /// Number of bits of the value.
    #[inline(always)]
    pub(crate) fn size(self) -> u32 {
        self.0 >> 16 & 0xFF
    }

    /// Returns the value as an unsigned number. `window` starts with the code.
    pub(crate) fn bits(self, window: u64) -> u64 {
        // Two shifts, because `size` may be 0 and a shift by 64 overflows.
        window << (self.0 >> 8 & 0xFF) >> 1 >> (63 - self.size())
    }

    /// Number of bits of code and value together. Never 0.
    #[inline(always)]
    pub(crate) fn total(self) -> u32 {
        self.0 & 0xFF
    }

    /// Number of values before this one that are 0.
    #[inline(always)]
    pub(crate) fn run(self) -> usize {
        (self.0 >> 24) as usize
    }

    #[inline(always)]
    pub(crate) fn is_end(self) -> bool {
        self.0 >> 24 == Self::END
    }

    #[inline(always)]
    pub(crate) fn is_valid(self) -> bool {
        self.0 >> 24 <= Self::END
    }

    /// Returns the value. `window` starts with the code.
    #[inline(always)]
    pub(crate) fn value(self, window: u64) -> i32 {
        let (length, size) = (self.0 >> 8 & 0xFF, self.size());
        let window = window << length;
        // Two shifts, because `size` may be 0 and a shift by 64 overflows.
        let value = (window >> 1 >> (63 - size)) as i32;
        // Values whose first bit is 0 are negative.
        let negative = !((window as i64) >> 63) as i32;
        value - (negative & ((1 << size) - 1))
    }
}

/// A table that decodes one Huffman code.
#[derive(Debug)]
pub(crate) struct Table {
    /// The entry of the code that each sequence of `SHORT` bits starts with; 0 if that code is longer.
    short: [u32; 1 << SHORT],
    /// For each length, the first 16-bit number after those that start with a code of this length.
    ends: [u32; 17],
    /// For each length, the index in `entries` of its first code, minus that code.
    starts: [i32; 17],
    /// The entries of all codes, in the order of the file.
    entries: [u32; 256],
}

impl Default for Table {
    fn default() -> Self {
        Self { short: [0; 1 << SHORT], ends: [0; 17], starts: [0; 17], entries: [0; 256] }
    }
}

impl Table {
    /// Returns the entry of the code that `window` starts with.
    #[inline(always)]
    pub(crate) fn look_up(&self, window: u64) -> Entry {
        match self.short[(window >> (64 - SHORT)) as usize] {
            0 => self.look_up_long(window),
            entry => Entry(entry),
        }
    }

    #[cold]
    #[inline(never)]
    fn look_up_long(&self, window: u64) -> Entry {
        let code = (window >> 48) as u32;
        for length in SHORT as usize + 1..=16 {
            if code < self.ends[length] {
                let symbol = (code >> (16 - length)) as i32 + self.starts[length];
                return usize::try_from(symbol)
                    .ok()
                    .and_then(|symbol| self.entries.get(symbol))
                    .map_or(Entry::INVALID, |&entry| Entry(entry));
            }
        }
        Entry::INVALID
    }

    /// Builds the table of a code for DC values.
    pub(crate) fn build_dc(&mut self, code: Code<'_>) -> Option<()> {
        // 11 bits hold any difference of two DC values, where pixels have 8 bits.
        self.build(code, |length, size| match size {
            0..=11 => Entry::new(length, size.into(), 0),
            _ => Entry::INVALID,
        })
    }

    /// Builds the table of a code for AC values of a sequential frame.
    pub(crate) fn build_ac(&mut self, code: Code<'_>) -> Option<()> {
        self.build(code, |length, symbol| match (u32::from(symbol >> 4), u32::from(symbol & 15)) {
            (0, 0) => Entry::new(length, 0, Entry::END),
            (15, 0) => Entry::new(length, 0, 15),
            (run, size @ 1..=10) => Entry::new(length, size, run),
            _ => Entry::INVALID,
        })
    }

    /// Builds the table of a code for AC values of a progressive frame, in which a code that ends a block has
    /// a value too, from which the number of ended blocks is computed.
    pub(crate) fn build_progressive_ac(&mut self, code: Code<'_>) -> Option<()> {
        self.build(code, |length, symbol| match (u32::from(symbol >> 4), u32::from(symbol & 15)) {
            (15, 0) => Entry::new(length, 0, 15),
            (size, 0) => Entry::new(length, size, Entry::END),
            (run, size @ 1..=10) => Entry::new(length, size, run),
            _ => Entry::INVALID,
        })
    }

    /// Builds the table. `entry` returns the entry for the length of a code and its symbol. Returns `None` if
    /// there are more codes than 16 bits allow.
    fn build(&mut self, code: Code<'_>, entry: impl Fn(u32, u8) -> Entry) -> Option<()> {
        self.short.fill(0);
        self.entries.fill(Entry::INVALID.0);
        let mut symbols = code.symbols.iter().enumerate();
        // The next code, shifted left to 16 bits.
        let mut next = 0u32;
        for (length, &count) in (1..=16u32).zip(code.counts) {
            let step = 1 << (16 - length);
            let first = code.symbols.len() - symbols.len();
            self.starts[length as usize] = first as i32 - (next / step) as i32;
            for (number, &symbol) in symbols.by_ref().take(count.into()) {
                if next + step > 1 << 16 {
                    return None;
                }
                let entry = entry(length, symbol).0;
                *self.entries.get_mut(number)? = entry;
                if length <= SHORT {
                    let first = (next >> (16 - SHORT)) as usize;
                    self.short[first..first + (1 << (SHORT - length))].fill(entry);
                }
                next += step;
            }
            self.ends[length as usize] = next;
        }
        // Bits that start no code must not be taken for the start of a long one.
        if next < 1 << 16 {
            let unused = next.div_ceil(1 << (16 - SHORT)) as usize;
            self.short[unused..].fill(Entry::INVALID.0);
        }
        Some(())
    }
}

/// The tables for the codes of a file.
#[derive(Debug, Default)]
pub(crate) struct Tables {
    dc: Box<[Table; 4]>,
    ac: Box<[Table; 4]>,
}

impl Tables {
    /// Builds the tables that the components use. Returns `None` if a code is missing or invalid.
    pub(crate) fn build(&mut self, header: &Header<'_>) -> Option<()> {
        let [mut dc_built, mut ac_built] = [[false; 4]; 2];
        for component in header.components() {
            if !std::mem::replace(&mut dc_built[component.dc], true) {
                self.dc[component.dc].build_dc(header.codes.dc[component.dc]?)?;
            }
            if !std::mem::replace(&mut ac_built[component.ac], true) {
                self.ac[component.ac].build_ac(header.codes.ac[component.ac]?)?;
            }
        }
        Some(())
    }

    /// Returns the tables of `component` for DC and AC.
    #[inline(always)]
    pub(crate) fn of(&self, component: &Component) -> (&Table, &Table) {
        (&self.dc[component.dc & 3], &self.ac[component.ac & 3])
    }
}
