//! An order that is known by its places.

use std::ops::Range;

/// What `at` says for each place, in order. A place that is skipped costs nothing.
pub(super) struct Places<F> {
    places: Range<usize>,
    at: F,
}

impl<F: FnMut(usize) -> usize> Places<F> {
    /// For the places below `len`. They are asked for from the front, each at most once.
    pub(super) fn new(len: usize, at: F) -> Self {
        Self { places: 0..len, at }
    }
}

impl<F: FnMut(usize) -> usize> Iterator for Places<F> {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        self.places.next().map(&mut self.at)
    }

    fn nth(&mut self, skipped: usize) -> Option<usize> {
        self.places.nth(skipped).map(&mut self.at)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.places.size_hint()
    }
}
