//! Reads a stream with marks, from which a resumed stream reads a part of it again.

use std::collections::VecDeque;

use anyhow::Context;
use loader_ipc::codec;
use serde::Serialize;

use super::{EndsShard, SnapshotIterator};

/// Reads a stream, and sets marks from which the stream can be read again.
pub(super) struct Reader<I> {
    items: I,
    has_ended: bool,
    /// Number of items read.
    read: u64,
    /// The marks, oldest first. There is at least one.
    marks: VecDeque<Mark>,
    /// Number of items between two marks.
    interval: u64,
    /// The next mark is set when this number of items has been read.
    next_mark: u64,
}

/// A position from which the stream can be read again.
struct Mark {
    /// Number of items read before the mark.
    read: u64,
    /// Snapshot of the stream, encoded; `None` stands for its beginning.
    inner: Option<Vec<u8>>,
}

impl<S, I> Reader<I>
where
    I: SnapshotIterator<Item = anyhow::Result<S>, Snapshot: Serialize>,
{
    /// Creates a reader that sets a mark every `interval` items. `items` is the stream without its first
    /// `read` items, and `inner` is the snapshot from which it was opened.
    pub(super) fn new(items: I, interval: u64, read: u64, inner: Option<Vec<u8>>) -> Self {
        let marks = VecDeque::from([Mark { read, inner }]);
        Self { items, has_ended: false, read, marks, interval, next_mark: read.saturating_add(interval) }
    }

    /// Returns the next item: a sample with its position. `oldest` returns the position of the oldest sample
    /// that is still needed.
    pub(super) fn next(&mut self, oldest: impl FnOnce() -> Option<u64>) -> Option<anyhow::Result<(u64, S)>> {
        if self.has_ended {
            return None;
        }
        if self.read >= self.next_mark
            && let Err(error) = self.mark(oldest())
        {
            return Some(Err(error));
        }
        let Some(item) = self.items.next() else {
            self.has_ended = true;
            return None;
        };
        let position = self.read;
        self.read += 1;
        Some(item.map(|sample| (position, sample)))
    }

    /// Sets a mark at the current position. Drops the marks that are not needed to read item `oldest` again.
    fn mark(&mut self, oldest: Option<u64>) -> anyhow::Result<()> {
        self.next_mark = self.read.saturating_add(self.interval);
        let inner = self.items.snapshot().context("writing a snapshot of the buffer's stream")?;
        let inner = codec::encode(&inner).context("encoding a snapshot of the buffer's stream")?;
        self.marks.push_back(Mark { read: self.read, inner: Some(inner) });
        self.marks.drain(..self.start_for(oldest));
        Ok(())
    }

    /// Returns the index of the last mark from which the item `oldest` can be read.
    fn start_for(&self, oldest: Option<u64>) -> usize {
        let oldest = oldest.unwrap_or(self.read);
        self.marks.partition_point(|mark| mark.read <= oldest).saturating_sub(1)
    }

    /// Returns the number of items read.
    pub(super) fn read(&self) -> u64 {
        self.read
    }

    /// Reads the items up to position `end` again, and passes each to `visit` with its position.
    pub(super) fn repeat(
        &mut self,
        end: u64,
        oldest: Option<u64>,
        mut visit: impl FnMut(u64, anyhow::Result<S>) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        while self.read < end {
            let position = self.read;
            let item = self.next(|| oldest).with_context(|| {
                format!(
                    "the stream ended after {position} items, but had {end} or more when the snapshot was taken; the \
                     data must not change between two runs"
                )
            })?;
            match item.with_context(|| format!("reading item {position} of the stream again")) {
                Err(error) if error.is::<EndsShard>() => return Err(error),
                item => visit(position, item.map(|(_, sample)| sample))?,
            }
        }
        Ok(())
    }

    /// Returns the number of items read, and the mark from which item `oldest` can be read again: the number
    /// of items before it, and its snapshot.
    pub(super) fn snapshot_for(&self, oldest: Option<u64>) -> (u64, u64, Option<&[u8]>) {
        let Mark { read, inner } = &self.marks[self.start_for(oldest)];
        (self.read, *read, inner.as_deref())
    }
}
