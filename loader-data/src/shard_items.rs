//! The items of a shard of a stream of files.

use anyhow::anyhow;
use loader_core::{EndsShard, SnapshotIterator};

#[cfg(any(feature = "arrow", feature = "csv", feature = "json-lines"))]
use crate::error::DataProblem;
use crate::error::Result;

/// Number of marked errors after the one that has ended the shard. A loader that does not see the mark gives up sooner,
/// with the default of `max_bad_samples`.
const MAX_REPEATED_ERRORS: u32 = 100;

/// The items of a shard, which an [`Outage`](loader_core::Outage) ends.
///
/// Damaged content and the fault of one file are errors of one sample, because they stay as they are. See
/// [`EndsShard`] for the alternatives.
pub(crate) struct ShardItems<I> {
    items: I,
    /// The text of the error that has ended the shard.
    ended: Option<String>,
    /// Number of errors returned after that one.
    repeated: u32,
}

impl<I> ShardItems<I> {
    pub(crate) fn new(items: I) -> Self {
        Self { items, ended: None, repeated: 0 }
    }
}

impl<T, I: Iterator<Item = Result<T>>> Iterator for ShardItems<I> {
    type Item = anyhow::Result<T>;

    fn next(&mut self) -> Option<anyhow::Result<T>> {
        // The loader asks for no item after the error. Code between them that loses the mark does, and would take
        // `None` for the end of the data. The errors have an end, because a loop may only print them.
        if let Some(text) = &self.ended {
            self.repeated += 1;
            return (self.repeated <= MAX_REPEATED_ERRORS).then(|| Err(anyhow!("{text}").context(EndsShard)));
        }
        Some(self.items.next()?.map_err(|error| {
            let text = error.to_string();
            let error = EndsShard::on_outage(error.into());
            self.ended = error.is::<EndsShard>().then_some(text);
            error
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

#[cfg(any(feature = "arrow", feature = "csv", feature = "json-lines"))]
impl DataProblem {
    /// True if the file cannot be reached or is another one. False if it was read, and its content or an
    /// option is wrong.
    pub(crate) fn is_access_error(&self) -> bool {
        self.is_outage()
            || matches!(
                self,
                Self::NotFound
                    | Self::NotAFile { .. }
                    | Self::Unreadable(_)
                    | Self::PermissionDenied
                    | Self::Server { .. }
                    | Self::Changed { .. }
            )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{DataError, DataProblem};

    #[test]
    fn each_item_after_an_outage_is_a_marked_error() {
        let error = |problem| Err(DataError::new("a", problem));
        let items =
            [Ok(0), error(DataProblem::NotFound), Ok(1), error(DataProblem::Server { status: 503 }), Ok(2)];
        let mut items = ShardItems::new(items.into_iter());
        let mut is_marked = || match items.next() {
            Some(Ok(_)) => None,
            Some(Err(error)) => Some(error.is::<EndsShard>()),
            None => panic!("the end of the data"),
        };
        let marks: Vec<_> = (0..6).map(|_| is_marked()).collect();
        assert_eq!(marks, [None, Some(false), None, Some(true), Some(true), Some(true)]);
        assert_eq!(items.count(), 98, "100 errors after the first one");
    }
}
