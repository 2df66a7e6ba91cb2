//! The items of a shard of a stream of files.

use loader_core::{EndsShard, SnapshotIterator};

use crate::error::{DataProblem, Result};

/// The items of a shard, of which the first that a file cannot be reached for ends the shard.
///
/// Only damaged content is an error of one sample, because only it stays as it is. See [`EndsShard`] for the
/// alternatives.
pub(crate) struct ShardItems<I> {
    items: I,
    has_ended: bool,
}

impl<I> ShardItems<I> {
    pub(crate) fn new(items: I) -> Self {
        Self { items, has_ended: false }
    }
}

impl<T, I: Iterator<Item = Result<T>>> Iterator for ShardItems<I> {
    type Item = anyhow::Result<T>;

    fn next(&mut self) -> Option<anyhow::Result<T>> {
        if self.has_ended {
            return None;
        }
        Some(self.items.next()?.map_err(|error| {
            self.has_ended = error.problem.is_of_access();
            let error = anyhow::Error::from(error);
            if self.has_ended { error.context(EndsShard) } else { error }
        }))
    }
}

/// The loader takes no snapshot after an error that ends the shard.
impl<T, I: SnapshotIterator<Item = Result<T>>> SnapshotIterator for ShardItems<I> {
    type Snapshot = I::Snapshot;

    fn snapshot(&self) -> anyhow::Result<I::Snapshot> {
        self.items.snapshot()
    }
}

impl DataProblem {
    /// True if the file cannot be reached or is another one. False if it was read, and its content or an
    /// option is wrong.
    pub(crate) fn is_of_access(&self) -> bool {
        matches!(
            self,
            Self::NotFound
                | Self::NotAFile { .. }
                | Self::Unreadable(_)
                | Self::PermissionDenied
                | Self::NoCredentials
                | Self::Timeout { .. }
                | Self::Server { .. }
                | Self::Store(_)
                | Self::Changed { .. }
        )
    }
}
