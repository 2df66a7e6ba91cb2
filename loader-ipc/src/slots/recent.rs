//! The sizes of recent batches, which decide how large new slots are.

/// Number of sizes that are remembered. A batch that is far larger than the others, or a worker that asks for
/// far more than it needs, makes new slots that large only until this many further batches have come.
///
/// Alternative considered: an average, or a quantile. Rejected because every batch above it would have to ask
/// for a larger slot, which costs its worker a wait and a second copy.
pub(super) const RECENT: usize = 32;

/// Sizes of the last [`RECENT`] batches and granted requests, in bytes; unused entries are 0.
#[derive(Debug, Default)]
pub(super) struct RecentSizes {
    sizes: [usize; RECENT],
    next: usize,
    /// The largest of `sizes`.
    largest: usize,
}

impl RecentSizes {
    pub(super) fn note(&mut self, size: usize) {
        let forgotten = std::mem::replace(&mut self.sizes[self.next], size);
        self.next = (self.next + 1) % RECENT;
        // The others are compared only if the forgotten size was the largest and the new one is smaller.
        self.largest = if size >= self.largest || forgotten < self.largest {
            self.largest.max(size)
        } else {
            self.sizes.into_iter().max().unwrap_or(0)
        };
    }

    pub(super) fn largest(&self) -> usize {
        self.largest
    }
}
