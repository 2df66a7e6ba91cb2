//! The coded pixels, as bits.

use super::{
    blocks::Block,
    huffman::{Entry, Table},
};

/// The bytes of a scan without what is stuffed between them, and where its restart intervals start.
#[derive(Debug, Default)]
pub(super) struct Entropy {
    bytes: Vec<u8>,
    intervals: Vec<usize>,
}

/// Zeros behind the last byte, so that a window can be read there.
const PADDING: usize = 8;

impl Entropy {
    /// Size of the buffer in bytes.
    pub(super) fn room(&self) -> usize {
        self.bytes.capacity()
    }

    /// Takes the scan that `file` starts with. Returns the marker that ends it and how many bytes lie before that marker; `None` when
    /// the file ends first.
    pub(super) fn read(&mut self, file: &[u8]) -> Option<(u8, usize)> {
        self.bytes.clear();
        self.intervals.clear();
        let mut rest = file;
        loop {
            let marker = memchr::memchr(0xFF, rest)?;
            self.bytes.extend_from_slice(&rest[..marker]);
            rest = &rest[marker..];
            match *rest.get(1)? {
                0x00 => {
                    self.bytes.push(0xFF);
                    rest = &rest[2..];
                }
                0xFF => rest = &rest[1..], // padding
                0xD0..=0xD7 => {
                    self.intervals.push(self.bytes.len());
                    rest = &rest[2..];
                }
                marker => {
                    self.intervals.push(self.bytes.len());
                    self.bytes.extend_from_slice(&[0; PADDING]);
                    return Some((marker, file.len() - rest.len()));
                }
            }
        }
    }
}

/// Reads bits from the scan.
#[derive(Debug)]
pub(super) struct Bits<'a> {
    bytes: &'a [u8],
    /// Place of the next bit.
    place: usize,
    /// Ends of the restart intervals, from the one that is being read on.
    ends: &'a [usize],
}

/// Bits of a window of which a code and its value may start behind, since they have at most 26 of its 57.
const ROOM: usize = 57 - 26;

/// Where each value of the file goes in a block: its rows, one after the other.
const ZIGZAG: [u8; 64] = [
    0, 1, 8, 16, 9, 2, 3, 10, 17, 24, 32, 25, 18, 11, 4, 5, 12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13, 6, 7,
    14, 21, 28, 35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39,
    46, 53, 60, 61, 54, 47, 55, 62, 63,
];

impl<'a> Bits<'a> {
    pub(super) fn new(entropy: &'a Entropy) -> Self {
        Self { bytes: &entropy.bytes, place: 0, ends: &entropy.intervals }
    }

    /// At least 57 of the next bits, from the left.
    #[inline(always)]
    fn window(&self) -> Option<u64> {
        let bytes = self.bytes.get(self.place >> 3..)?.first_chunk()?;
        Some(u64::from_be_bytes(*bytes) << (self.place & 7))
    }

    /// Reads a block: into `kept`, a block that must be all 0, with the quantisers of its values; without it, it is read over. Returns
    /// the place of its last value that may not be 0.
    #[inline(always)]
    pub(super) fn block(
        &mut self,
        dc: &Table,
        ac: &Table,
        before: &mut i32,
        mut kept: Option<(&[i32; 64], &mut Block)>,
    ) -> Option<usize> {
        let window = self.window()?;
        let entry = dc.look_up(window);
        if !entry.is_valid() {
            return None;
        }
        *before = before.wrapping_add(entry.value(window));
        if let Some((quantisers, block)) = &mut kept {
            block[0] = before.wrapping_mul(quantisers[0]);
        }
        self.place += entry.total() as usize;

        let (mut place, mut last) = (1, 0);
        while place < 64 {
            let mut window = self.window()?;
            let end = self.place + ROOM;
            while self.place <= end {
                let entry = ac.look_up(window);
                self.place += entry.total() as usize;
                place += entry.run();
                if place > 63 {
                    return entry.is_end().then_some(last);
                }
                if let Some((quantisers, block)) = &mut kept {
                    block[usize::from(ZIGZAG[place])] = entry.value(window) * quantisers[place];
                }
                last = place;
                place += 1;
                if place == 64 {
                    break;
                }
                window <<= entry.total();
            }
        }
        Some(last)
    }

    /// Reads the next code of `table`: its entry, and the window that it starts. `None` when the code is invalid.
    pub(super) fn symbol(&mut self, table: &Table) -> Option<(Entry, u64)> {
        let window = self.window()?;
        let entry = table.look_up(window);
        self.place += entry.total() as usize;
        entry.is_valid().then_some((entry, window))
    }

    /// Reads over `count` bits.
    pub(super) fn skip(&mut self, count: usize) {
        self.place += count;
    }

    /// Goes on with the next restart interval, and drops the rest of this one; `None` when more bits were
    /// read than the interval has.
    pub(super) fn skip_to_restart(&mut self) -> Option<()> {
        self.check()?;
        let (&end, ends) = self.ends.split_first().filter(|(_, ends)| !ends.is_empty())?;
        (self.place, self.ends) = (end * 8, ends);
        Some(())
    }

    /// Goes on with the next restart interval; `None` when this one has not been read to its end.
    pub(super) fn restart(&mut self) -> Option<()> {
        let (&end, ends) = self.ends.split_first()?;
        if self.place.div_ceil(8) != end || ends.is_empty() {
            return None;
        }
        (self.place, self.ends) = (end * 8, ends);
        Some(())
    }

    /// True when the interval has no room for another code of 16 bits, the longest. The padding at its end
    /// need not be a code.
    pub(super) fn is_at_end(&self) -> bool {
        self.ends.first().is_none_or(|&end| self.place + 16 > end * 8)
    }

    /// `None` when more has been read than there is.
    pub(super) fn check(&self) -> Option<()> {
        self.ends.first().filter(|&&end| self.place <= end * 8).map(|_| ())
    }
}
