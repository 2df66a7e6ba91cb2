//! The marks of errors that end a shard.

use std::{error::Error, fmt};

/// Error context that ends the shard: an unknown number of its samples cannot be read, for now or at all.
///
/// The loader then reports the error in place of the batch, whatever
/// [`on_bad_sample`](crate::Builder::on_bad_sample) says, and ends the shard for this epoch. The loader then
/// does not ask the shard's iterator for another item. The shard keeps the position at which the batch began,
/// so a run that resumes from the state reads all samples from there on. If an epoch ends with such a shard,
/// the state stays in the epoch.
///
/// Code between the iterator and the loader must keep the mark: it adds text with `context` and makes no new
/// error from the text. After the first marked error, the iterator should return marked errors for all
/// further items. If it returned `None` instead, code that loses the mark would make a shard that ended early
/// look whole.
///
/// Mark an error that costs an unknown number of samples, such as the rest of a compressed file that is damaged. If
/// the number is known, return one error without the mark for each of these samples instead, so that
/// [`on_bad_sample`](crate::Builder::on_bad_sample) can skip them. A marked error that no later try gets past ends
/// the shard in every epoch. A dataset with random access marks with [`Outage`] instead.
///
/// Alternatives considered: count the error as a bad sample and continue after the part that cannot be read.
/// Rejected because that part may be a whole file, of which then one sample counts as bad. Or try the item
/// again at the next batch. Rejected because each try would count as an item, so that all later samples would
/// have other positions, and because a dataset that fails for ever would never end.
///
/// # Examples
/// ```
/// use loader_core::{EndsShard, OnBadSample, prelude::*};
/// use serde::{Deserialize, Serialize};
///
/// /// Numbers from a server that stops answering.
/// #[derive(Serialize, Deserialize)]
/// struct Numbers;
///
/// impl IterableDataset for Numbers {
///     type Sample = u64;
///
///     fn iter(
///         &self,
///         _shard: Shard,
///         _cx: &mut SampleContext,
///     ) -> anyhow::Result<impl Iterator<Item = anyhow::Result<u64>>> {
///         let timeout = || anyhow::anyhow!("no answer").context(EndsShard);
///         Ok((0..).map(move |number| if number < 6 { Ok(number) } else { Err(timeout()) }))
///     }
/// }
///
/// let loader = DataLoader::stream(Numbers).on_bad_sample(OnBadSample::Skip).shards(1).batch_size(4).build()?;
/// let mut batches = loader.iter()?;
/// assert_eq!(batches.next().unwrap()?.as_slice(), [0, 1, 2, 3]);
/// assert!(batches.next().unwrap().is_err());
/// assert!(batches.next().is_none());
/// assert_eq!(batches.state().epoch(), 0);
/// # anyhow::Ok(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EndsShard;

impl EndsShard {
    /// Marks `error` if it has [`Outage`] among its causes or contexts, and returns it as it is otherwise.
    pub fn on_outage(error: anyhow::Error) -> anyhow::Error {
        let is_outage = error.is::<Outage>() || error.chain().any(<dyn Error>::is::<Outage>);
        if is_outage && !error.is::<Self>() { error.context(Self) } else { error }
    }
}

impl fmt::Display for EndsShard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "the shard cannot be read further, so it ends for this epoch; a run that resumes from the state reads \
             the rest",
        )
    }
}

/// Cause or context of an error that says that data cannot be reached for now, whichever sample is asked for: a
/// server does not answer, or there are no credentials.
///
/// In a loader of a map-style dataset it changes nothing. Where the dataset is read
/// [as a stream](crate::Dataset::into_stream), the error ends the shard, see [`EndsShard`].
///
/// # Examples
/// ```
/// use loader_core::{EndsShard, Outage};
///
/// let error = anyhow::anyhow!("no answer from the server").context(Outage).context("sample 7");
/// assert!(EndsShard::on_outage(error).is::<EndsShard>());
/// let error = anyhow::anyhow!("the file is damaged");
/// assert!(!EndsShard::on_outage(error).is::<EndsShard>());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outage;

impl fmt::Display for Outage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the data cannot be reached for now")
    }
}

impl Error for Outage {}
