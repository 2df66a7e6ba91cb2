//! Tables to look Huffman codes up in.

use super::header::{Component, Header};

/// A Huffman code as the file has it: the number of codes of each length from 1 to 16, and their symbols.
#[derive(Debug, Clone, Copy)]
pub(super) struct Code<'a> {
    counts: &'a [u8; 16],
    symbols: &'a [u8],
}

impl Code<'_> {
    /// False when there are more codes than fit. A code of only ones is not allowed.
    fn fits(&self) -> bool {
        let used = (1..=16).zip(self.counts).map(|(length, &count)| u32::from(count) << (16 - length));
        self.symbols.len() <= 256 && used.sum::<u32>() < 1 << 16
    }
}

/// The Huffman codes of a file: four for DC and four for AC. Each is `None` until the file has defined it.
#[derive(Debug, Default)]
pub(super) struct Codes<'a> {
    pub(super) dc: [Option<Code<'a>>; 4],
    pub(super) ac: [Option<Code<'a>>; 4],
}

impl<'a> Codes<'a> {
    /// Takes the codes that a DHT segment defines; `None` when zune-jpeg would refuse them.
    pub(super) fn read(&mut self, mut segment: &'a [u8]) -> Option<()> {
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

/// Bits that one look-up sees. Longer codes are rare.
const SEEN: u32 = 11;

/// What a code stands for. In a JPEG it is followed by `size` bits that hold a value.
#[derive(Debug, Clone, Copy)]
pub(super) struct Entry(u32);

impl Entry {
    /// Runs beyond the 63 values of a block: its end, and what must not occur.
    const END: u32 = 64;
    const INVALID: Self = Self(128 << 24 | 1);

    fn new(length: u32, size: u32, run: u32) -> Self {
        Self(run << 24 | size << 16 | length << 8 | (length + size))
    }

    /// Bits of the value alone.
    #[inline(always)]
    pub(super) fn size(self) -> u32 {
        self.0 >> 16 & 0xFF
    }

    /// The bits of the value as an unsigned number, of a window whose first bits are the code and the value.
    pub(super) fn bits(self, window: u64) -> u64 {
        // In two steps, because a size may be 0.
        window << (self.0 >> 8 & 0xFF) >> 1 >> (63 - self.size())
    }

    /// Bits of code and value together. Never 0.
    #[inline(always)]
    pub(super) fn total(self) -> u32 {
        self.0 & 0xFF
    }

    /// Values that are 0 before this one.
    #[inline(always)]
    pub(super) fn run(self) -> usize {
        (self.0 >> 24) as usize
    }

    #[inline(always)]
    pub(super) fn is_end(self) -> bool {
        self.0 >> 24 == Self::END
    }

    #[inline(always)]
    pub(super) fn is_valid(self) -> bool {
        self.0 >> 24 <= Self::END
    }

    /// The value, of a window whose first bits are the code and the value.
    #[inline(always)]
    pub(super) fn value(self, window: u64) -> i32 {
        let (length, size) = (self.0 >> 8 & 0xFF, self.size());
        let window = window << length;
        // In two steps, because a size may be 0.
        let value = (window >> 1 >> (63 - size)) as i32;
        // Values whose first bit is 0 are negative.
        let negative = !((window as i64) >> 63) as i32;
        value - (negative & ((1 << size) - 1))
    }
}

/// One Huffman code.
#[derive(Debug)]
pub(super) struct Table {
    /// What each sequence of `SEEN` bits starts with; 0 for codes that are longer.
    seen: [u32; 1 << SEEN],
    /// The first code that is larger than all of its length (16 bits, from the left), and where the symbols of a length start.
    ends: [u32; 17],
    starts: [i32; 17],
    entries: [u32; 256],
}

impl Default for Table {
    fn default() -> Self {
        Self { seen: [0; 1 << SEEN], ends: [0; 17], starts: [0; 17], entries: [0; 256] }
    }
}

impl Table {
    /// What the window starts with.
    #[inline(always)]
    pub(super) fn look_up(&self, window: u64) -> Entry {
        match self.seen[(window >> (64 - SEEN)) as usize] {
            0 => self.look_up_long(window),
            entry => Entry(entry),
        }
    }

    #[cold]
    #[inline(never)]
    fn look_up_long(&self, window: u64) -> Entry {
        let code = (window >> 48) as u32;
        for length in SEEN as usize + 1..=16 {
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

    /// Takes a code for DC.
    pub(super) fn build_dc(&mut self, code: Code<'_>) -> Option<()> {
        // 11 bits hold any difference of values of 8 bits.
        self.build(code, |length, size| match size {
            0..=11 => Entry::new(length, size.into(), 0),
            _ => Entry::INVALID,
        })
    }

    /// Takes a code for AC of a sequential frame.
    pub(super) fn build_ac(&mut self, code: Code<'_>) -> Option<()> {
        self.build(code, |length, symbol| match (u32::from(symbol >> 4), u32::from(symbol & 15)) {
            (0, 0) => Entry::new(length, 0, Entry::END),
            (15, 0) => Entry::new(length, 0, 15),
            (run, size @ 1..=10) => Entry::new(length, size, run),
            _ => Entry::INVALID,
        })
    }

    /// Takes a code for AC of a progressive frame: the end of a block has a value too, which says how many blocks end.
    pub(super) fn build_progressive_ac(&mut self, code: Code<'_>) -> Option<()> {
        self.build(code, |length, symbol| match (u32::from(symbol >> 4), u32::from(symbol & 15)) {
            (15, 0) => Entry::new(length, 0, 15),
            (size, 0) => Entry::new(length, size, Entry::END),
            (run, size @ 1..=10) => Entry::new(length, size, run),
            _ => Entry::INVALID,
        })
    }

    /// `None` when there are more codes than fit. `entry` makes an entry of a code's length and its symbol.
    fn build(&mut self, code: Code<'_>, entry: impl Fn(u32, u8) -> Entry) -> Option<()> {
        self.seen.fill(0);
        self.entries.fill(Entry::INVALID.0);
        let mut symbols = code.symbols.iter().enumerate();
        // The next code, 16 bits from the left.
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
                if length <= SEEN {
                    let place = (next >> (16 - SEEN)) as usize;
                    self.seen[place..place + (1 << (SEEN - length))].fill(entry);
                }
                next += step;
            }
            self.ends[length as usize] = next;
        }
        // What is no code at all must not be taken for a long one.
        if next < 1 << 16 {
            let unused = next.div_ceil(1 << (16 - SEEN)) as usize;
            self.seen[unused..].fill(Entry::INVALID.0);
        }
        Some(())
    }
}

/// The tables of a file.
#[derive(Debug, Default)]
pub(super) struct Tables {
    dc: Box<[Table; 4]>,
    ac: Box<[Table; 4]>,
}

impl Tables {
    /// `None` when a table is missing or wrong.
    pub(super) fn build(&mut self, header: &Header<'_>) -> Option<()> {
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

    #[inline(always)]
    pub(super) fn of(&self, component: &Component) -> (&Table, &Table) {
        (&self.dc[component.dc & 3], &self.ac[component.ac & 3])
    }
}
