//! The mark of an error that ends its shard.

use std::fmt;

/// Error context that marks an item as an error after which the shard cannot be read on, although its data
/// may be whole: a server does not answer, or a disk fails.
///
/// The loader then reports the error in place of the batch, whatever
/// [`on_bad_sample`](crate::Builder::on_bad_sample) says, and ends the shard for this epoch. The shard keeps
/// the position at which the batch began, so a run that resumes from the state reads all samples from there
/// on. If an epoch ends with such a shard, the state stays in the epoch. The iterator of the shard is not asked for another item.
///
/// Alternatives considered: count the error as a bad sample and go on behind the part that cannot be read.
/// Rejected because that part may be a whole file, of which then one sample counts as bad. Or try the item
/// again at the next batch. Rejected because each try would count as an item, so that all later samples would
/// have other positions, and because a dataset that fails for ever would never end.
///
/// # Examples
/// ```
/// use loader_core::{EndsShard, OnBadSample, prelude::*};
/// use serde::{Deserialize, Serialize};
///
/// /// Numbers from a server, which stops to answer.
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

impl fmt::Display for EndsShard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "the shard cannot be read on and ends for this epoch; a run that resumes from the state tries again",
        )
    }
}
