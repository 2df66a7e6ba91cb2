//! An order that is given by a function of the position.

use std::ops::Range;

/// Iterator over `at(0)`, `at(1)`, ... Its `nth` does not call `at` for the positions that it skips.
pub(super) struct ByPosition<F> {
    positions: Range<usize>,
    at: F,
}

impl<F: FnMut(usize) -> usize> ByPosition<F> {
    /// Creates an iterator over the positions below `len`. It calls `at` with increasing positions, at most
    /// once each.
    pub(super) fn new(len: usize, at: F) -> Self {
        Self { positions: 0..len, at }
    }
}

impl<F: FnMut(usize) -> usize> Iterator for ByPosition<F> {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        self.positions.next().map(&mut self.at)
    }

    fn nth(&mut self, skipped: usize) -> Option<usize> {
        self.positions.nth(skipped).map(&mut self.at)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.positions.size_hint()
    }
}
