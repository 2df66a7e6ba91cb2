//! The items of a shard of a stream of files.

use anyhow::anyhow;
use loader_core::{EndsShard, SnapshotIterator};

use crate::error::DataError;
use crate::error::DataProblem;

/// Number of marked errors after the one that has ended the shard. A loader that does not see the mark gives up sooner,
/// with the default of `max_bad_samples`.
const MAX_REPEATED_ERRORS: u32 = 100;

/// Why a sample of a shard cannot be read.
#[derive(Debug)]
pub(crate) enum ItemError {
    /// Only this sample is lost.
    Sample(DataError),
    /// The rest of a file or of a block is lost. The loader cannot know how many samples it has.
    Rest(DataError),
}

impl From<DataError> for ItemError {
    fn from(error: DataError) -> Self {
        Self::Sample(error)
    }
}

impl ItemError {
    pub(crate) fn into_error(self) -> DataError {
        match self {
            Self::Sample(error) => error,
            Self::Rest(error) => error,
        }
    }
}

/// The items of a shard, which ends at an [`Outage`](loader_core::Outage), and at an error that costs an unknown
/// number of samples.
///
/// After an outage, only errors follow. After another error, the next file or block follows, for code that reads on
/// without the lost samples, as `loader inspect` does.
///
/// Alternative considered: count the rest of a damaged file as one bad sample and go on. Rejected because a loader
/// that skips bad samples would then lose more samples than `max_bad_samples`, and the state after the epoch would
/// have all of them as loaded. A file that is damaged for ever now ends its shard in each epoch, until the user
/// repairs the file or opens the dataset without it.
pub(crate) struct ShardItems<I> {
    items: I,
    /// The text of the outage that has ended the shard.
    ended: Option<String>,
    /// Number of errors returned after that one.
    repeated: u32,
}

/// Returns the error of a shard of which `position` samples were read before, and that has only `found` samples now. It is
/// an error because such a shard would end without one. The file that has changed is not known.
pub(crate) fn too_short(position: u64, found: u64) -> DataError {
    DataError::new("the files", DataProblem::ShardTooShort { position, found })
}

impl<I> ShardItems<I> {
    pub(crate) fn new(items: I) -> Self {
        Self { items, ended: None, repeated: 0 }
    }
}

impl<T, E: Into<ItemError>, I: Iterator<Item = Result<T, E>>> Iterator for ShardItems<I> {
    type Item = anyhow::Result<T>;

    fn next(&mut self) -> Option<anyhow::Result<T>> {
        // The loader asks for no item after the error. Code between them that loses the mark does, and would take
        // `None` for the end of the data. The errors have an end, because a loop may only print them.
        if let Some(text) = &self.ended {
            self.repeated += 1;
            return (self.repeated <= MAX_REPEATED_ERRORS).then(|| Err(anyhow!("{text}").context(EndsShard)));
        }
        Some(self.items.next()?.map_err(|error| {
            let error = error.into();
            let is_of_one_sample = matches!(error, ItemError::Sample(_));
            let error = error.into_error();
            let is_outage = error.problem.is_outage();
            self.ended = is_outage.then(|| error.to_string());
            let error = anyhow::Error::from(error);
            if is_of_one_sample && !is_outage { error } else { error.context(EndsShard) }
        }))
    }
}

/// The loader takes no snapshot after an error that ends the shard.
impl<T, E: Into<ItemError>, I: SnapshotIterator<Item = Result<T, E>>> SnapshotIterator for ShardItems<I> {
    type Snapshot = I::Snapshot;

    fn snapshot(&self) -> anyhow::Result<I::Snapshot> {
        self.items.snapshot()
    }
}

impl DataProblem {
    /// True if the file cannot be reached or is another one. False if it was read, and its content or an
    /// option is wrong.
    pub(crate) fn is_access_error(&self) -> bool {
        self.is_outage()
            || matches!(
                self,
                Self::NotFound
                    | Self::NoSuchBucket
                    | Self::NotAFile { .. }
                    | Self::Unreadable(_)
                    | Self::PermissionDenied { .. }
                    | Self::Server { .. }
                    | Self::Changed { .. }
            )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::DataProblem;

    /// Returns for each of the first `count` items whether it is a marked error; `None` for a sample.
    fn marks(items: &mut impl Iterator<Item = anyhow::Result<u8>>, count: usize) -> Vec<Option<bool>> {
        items.take(count).map(|item| item.err().map(|error| error.is::<EndsShard>())).collect()
    }

    #[test]
    fn each_item_after_an_outage_is_a_marked_error() {
        let error = |problem| Err(DataError::new("a", problem));
        let items =
            [Ok(0), error(DataProblem::NotFound), Ok(1), error(DataProblem::Server { status: 503 }), Ok(2)];
        let mut items = ShardItems::new(items.into_iter());
        assert_eq!(marks(&mut items, 6), [None, Some(false), None, Some(true), Some(true), Some(true)]);
        assert_eq!(items.count(), 98, "100 errors after the first one");
    }

    #[test]
    fn an_error_that_costs_an_unknown_number_of_samples_is_marked_and_the_next_file_follows() {
        let damaged = || DataError::new("a", DataProblem::Truncated);
        let items = [Err(ItemError::Sample(damaged())), Ok(0), Err(ItemError::Rest(damaged())), Ok(1)];
        let mut items = ShardItems::new(items.into_iter());
        assert_eq!(marks(&mut items, 9), [Some(false), None, Some(true), None]);
    }
}
