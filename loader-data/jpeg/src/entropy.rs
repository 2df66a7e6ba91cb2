//! Reads the bits of a scan: the coded pixels.

use crate::{
    blocks::Block,
    huffman::{Entry, Table},
};

/// The bytes of a scan, without stuffing and markers.
#[derive(Debug, Default)]
pub(crate) struct Entropy {
    bytes: Vec<u8>,
    /// Ends of the restart intervals in `bytes`. The last one is the end of the scan.
    ends: Vec<usize>,
}

/// Number of zero bytes after the scan, so that a window can be read at its last byte.
const PADDING: usize = 8;

impl Entropy {
    /// Returns the capacity of the buffer in bytes.
    pub(crate) fn capacity(&self) -> usize {
        self.bytes.capacity()
    }

    /// Reads the scan at the start of `file`. Returns the marker that ends the scan and the number of bytes
    /// before that marker, or `None` if the file ends first.
    pub(crate) fn read(&mut self, file: &[u8]) -> Option<(u8, usize)> {
        self.bytes.clear();
        self.ends.clear();
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
                    self.ends.push(self.bytes.len());
                    rest = &rest[2..];
                }
                marker => {
                    self.ends.push(self.bytes.len());
                    self.bytes.extend_from_slice(&[0; PADDING]);
                    return Some((marker, file.len() - rest.len()));
                }
            }
        }
    }
}

/// Reads bits from a scan.
#[derive(Debug)]
pub(crate) struct Bits<'a> {
    bytes: &'a [u8],
    /// Number of bits of `bytes` that were read.
    read: usize,
    /// Ends of the restart intervals in bytes, from the current one on.
    ends: &'a [usize],
}

/// Maximum number of bits used of a window when the next code is read from it: a window has at least 57 bits,
/// and a code and its value have at most 26.
const MAX_USED: usize = 57 - 26;

/// Index in a [`Block`] of each value, in the order of the file.
const ZIGZAG: [u8; 64] = [
    0, 1, 8, 16, 9, 2, 3, 10, 17, 24, 32, 25, 18, 11, 4, 5, 12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13, 6, 7,
    14, 21, 28, 35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39,
    46, 53, 60, 61, 54, 47, 55, 62, 63,
];

impl<'a> Bits<'a> {
    pub(crate) fn new(entropy: &'a Entropy) -> Self {
        Self { bytes: &entropy.bytes, read: 0, ends: &entropy.ends }
    }

    /// Returns the next bits, the first of which is the most significant one. At least 57 bits are valid.
    /// Returns `None` after the end of the scan.
    #[inline(always)]
    fn window(&self) -> Option<u64> {
        let bytes = self.bytes.get(self.read >> 3..)?.first_chunk()?;
        Some(u64::from_be_bytes(*bytes) << (self.read & 7))
    }

    /// Reads a block. If `kept` is set, multiplies each value by its quantiser and stores it in the given
    /// block, which must be all 0. `before` is the DC value of the component's previous block, and afterwards
    /// that of this block. Returns a position, in zigzag order, after which all values are 0, or `None` if a
    /// code is invalid or missing.
    #[inline(always)]
    pub(crate) fn block(
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
        self.read += entry.total() as usize;

        let (mut position, mut last) = (1, 0);
        while position < 64 {
            let mut window = self.window()?;
            let end = self.read + MAX_USED;
            while self.read <= end {
                let entry = ac.look_up(window);
                self.read += entry.total() as usize;
                position += entry.run();
                if position > 63 {
                    return entry.is_end().then_some(last);
                }
                if let Some((quantisers, block)) = &mut kept {
                    block[usize::from(ZIGZAG[position])] = entry.value(window) * quantisers[position];
                }
                last = position;
                position += 1;
                if position == 64 {
                    break;
                }
                window <<= entry.total();
            }
        }
        Some(last)
    }

    /// Reads the next code with `table`. Returns its entry and the window that starts with the code, or
    /// `None` if the code is invalid.
    pub(crate) fn symbol(&mut self, table: &Table) -> Option<(Entry, u64)> {
        let window = self.window()?;
        let entry = table.look_up(window);
        self.read += entry.total() as usize;
        entry.is_valid().then_some((entry, window))
    }

    /// Skips `count` bits.
    pub(crate) fn skip(&mut self, count: usize) {
        self.read += count;
    }

    /// Skips the rest of this restart interval and moves to the next one. Returns `None` if this interval is
    /// the last, or if more bits were read than it has.
    pub(crate) fn skip_to_restart(&mut self) -> Option<()> {
        self.check()?;
        let (&end, ends) = self.ends.split_first().filter(|(_, ends)| !ends.is_empty())?;
        (self.read, self.ends) = (end * 8, ends);
        Some(())
    }

    /// Moves to the next restart interval. Returns `None` if this one is the last, or is not read to its end.
    pub(crate) fn restart(&mut self) -> Option<()> {
        let (&end, ends) = self.ends.split_first()?;
        if self.read.div_ceil(8) != end || ends.is_empty() {
            return None;
        }
        (self.read, self.ends) = (end * 8, ends);
        Some(())
    }

    /// True if fewer than 16 bits are left in the interval. The longest code has 16 bits, and the padding at
    /// the end of an interval need not be a valid code.
    pub(crate) fn is_at_end(&self) -> bool {
        self.ends.first().is_none_or(|&end| self.read + 16 > end * 8)
    }

    /// Returns `None` if more bits were read than the interval has.
    pub(crate) fn check(&self) -> Option<()> {
        self.ends.first().filter(|&&end| self.read <= end * 8).map(|_| ())
    }
}
