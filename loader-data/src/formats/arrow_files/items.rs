//! The items of gathered lists.

use std::ops::Range;

use arrow_buffer::Buffer;

/// The items of lists, and the offsets of the lists in an array that has only these items.
pub(super) struct Items {
    /// The offsets, which begin with 0.
    pub(super) ends: Vec<i32>,
    ranges: Vec<Range<u64>>,
}

impl Default for Items {
    fn default() -> Self {
        Self { ends: vec![0], ranges: Vec::new() }
    }
}

impl Items {
    /// Adds a list. Returns `None` if its length is negative, or if one array cannot hold all items.
    pub(super) fn push(&mut self, items: Range<u64>) -> Option<()> {
        let len = i32::try_from(items.end.checked_sub(items.start)?).ok()?;
        self.ends.push(self.ends.last()?.checked_add(len)?);
        match self.ranges.last_mut() {
            Some(last) if last.end == items.start => last.end = items.end,
            _ if len == 0 => {}
            _ => self.ranges.push(items),
        }
        Some(())
    }

    /// Returns the offsets, and the ranges of the items.
    pub(super) fn finish(self) -> (Buffer, Vec<Range<u64>>) {
        (Buffer::from_vec(self.ends), self.ranges)
    }
}

/// Returns the number of rows or items in these ranges.
pub(super) fn total(rows: &[Range<u64>]) -> u64 {
    rows.iter().map(|range| range.end - range.start).fold(0, u64::saturating_add)
}
