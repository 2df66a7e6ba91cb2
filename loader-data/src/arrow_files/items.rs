//! The items of the lists that are gathered.

use std::ops::Range;

use arrow_buffer::Buffer;

/// The items of lists, and the offsets of the lists in an array that has only these items.
pub(super) struct Items {
    /// The offsets.
    pub(super) ends: Vec<i32>,
    ranges: Vec<Range<u64>>,
}

impl Default for Items {
    fn default() -> Self {
        Self { ends: vec![0], ranges: Vec::new() }
    }
}

impl Items {
    /// Adds a list; `None` if it has a negative length, or an array cannot have so many items.
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

    pub(super) fn finish(self) -> (Buffer, Vec<Range<u64>>) {
        (Buffer::from_vec(self.ends), self.ranges)
    }
}

/// Number of rows, or of items.
pub(super) fn total(rows: &[Range<u64>]) -> u64 {
    rows.iter().map(|range| range.end - range.start).fold(0, u64::saturating_add)
}
