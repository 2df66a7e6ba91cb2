//! Samplers: which samples an epoch has, and in which order. The order of an epoch depends only on the seed,
//! the epoch and the sampler, not on the number of workers.
//!
//! | PyTorch | here |
//! |---|---|
//! | `SequentialSampler(data)` | [`SequentialSampler::new(len)`](SequentialSampler::new) |
//! | `RandomSampler(data, replacement, num_samples)` | [`RandomSampler::new(len)`](RandomSampler::new)`.replacement(..).num_samples(..)?` |
//! | `SubsetRandomSampler(indices)` | [`SubsetRandomSampler::new(indices)`](SubsetRandomSampler::new) |
//! | `WeightedRandomSampler(weights, num_samples, replacement)` | [`WeightedRandomSampler::new(weights, num_samples, replacement)?`](WeightedRandomSampler::new) |
//! | `DistributedSampler(data, num_replicas, rank, shuffle, drop_last=..)` | [`DistributedSampler::new(len, world_size, rank)?`](DistributedSampler::new)`.shuffle(..).drop_last(..)` |
//! | `BatchSampler(sampler, batch_size, drop_last)` | [`FixedBatches::new(sampler, batch_size, drop_last)`](FixedBatches::new) |
//! | a list of indices or of batches | `Vec<usize>`, `Vec<Vec<usize>>` |
//! | fairseq's `max_tokens`, tf.data's `bucket_by_sequence_length` | [`LengthBatches::new(lens, max_tokens)?`](LengthBatches::new) |
//! | Megatron's blends, `interleave_datasets` of Hugging Face | [`MixSampler::new(lens, mix)?`](MixSampler::new) |
//! | `random_split(data, lengths)` | [`random_split_by_counts`], [`random_split_by_fractions`]; for datasets [`Dataset::random_split_by_counts`](crate::Dataset::random_split_by_counts) |
//! | any iterable | a [`Sampler`] or [`BatchSampler`] of your own |
//!
//! # PyTorch's order
//! With [`Order::Torch`](crate::Order::Torch), the order of these samplers in epoch `k` equals that of PyTorch 2.15 on
//! the CPU when a sampler with `generator=torch.Generator().manual_seed(seed)` is iterated for the `k`-th time (counted
//! from 0, each time to the end). `seed` is the loader's seed. For `DistributedSampler`, it equals the order with
//! `seed=seed` after `set_epoch(k)`. A loader with `shuffle` equals PyTorch's with `shuffle=True,
//! generator=torch.Generator().manual_seed(seed)`. In PyTorch, such a loader draws the seed of its workers from the
//! sampler's generator, so the order differs from that of a [`RandomSampler`] with its own generator.
//!
//! There is no counterpart to a PyTorch loader or sampler without a generator. It uses PyTorch's global
//! generator, whose state depends on the rest of the program.
//!
//! [`WeightedRandomSampler`] orders indices by a value that is computed with a logarithm (`log1p`) if it
//! draws without replacement or draws a single index. Two indices whose values differ only in the last bit
//! may be swapped compared with PyTorch if the mathematical libraries round differently. Two indices with
//! equal values may be swapped too.

mod batch;
mod budget;
mod by_position;
mod distributed;
mod error;
mod length;
mod list;
mod mix;
mod permutation;
mod random;
mod remaining;
mod sequential;
mod source;
mod split;
mod subset;
mod weighted;

use std::fmt;

pub use crate::data::random::Epoch;
use batch::cut_into_batches;
pub use batch::{BatchSampler, FixedBatches};
pub use budget::TokenBudget;
pub use distributed::DistributedSampler;
pub use error::SamplerError;
pub use length::{LengthBatches, LengthError};
pub use mix::MixSampler;
pub(crate) use permutation::Permutations;
pub use random::RandomSampler;
pub(crate) use remaining::{EpochOrder, Remaining, Sharing, Taken, share};
pub use sequential::SequentialSampler;
pub(crate) use source::base_seed;
pub use split::{SplitError, random_split_by_counts, random_split_by_fractions};
pub use subset::SubsetRandomSampler;
pub use weighted::WeightedRandomSampler;

/// An order of sample indices: PyTorch's `Sampler`.
///
/// # Examples
/// ```
/// use loader_core::sampler::{Epoch, Sampler};
///
/// /// The last sample first.
/// #[derive(Debug)]
/// struct Backwards(usize);
///
/// impl Sampler for Backwards {
///     fn len(&self) -> usize {
///         self.0
///     }
///
///     fn indices(&self, _epoch: Epoch) -> Box<dyn Iterator<Item = usize> + Send> {
///         Box::new((0..self.0).rev())
///     }
/// }
/// ```
pub trait Sampler: fmt::Debug + Send + Sync + 'static {
    /// Number of indices in an epoch.
    fn len(&self) -> usize;

    /// Number of indices in `epoch`, for a sampler whose epochs differ in length; [`len`](Self::len) by
    /// default.
    fn len_of(&self, epoch: Epoch) -> usize {
        let _ = epoch;
        self.len()
    }

    /// True if an epoch has no indices.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the indices of `epoch`, in order. Two calls for the same epoch must return the same indices.
    /// The loader resumes an epoch with the iterator's `nth`, so a fast `nth` makes resuming fast.
    fn indices(&self, epoch: Epoch) -> Box<dyn Iterator<Item = usize> + Send>;

    /// Returns the indices of `epoch` in batches of `size`, which is at least 1; the last batch may be
    /// shorter. An override can avoid the dynamic call per index that the default makes.
    fn batches(&self, epoch: Epoch, size: usize) -> Box<dyn Iterator<Item = Vec<usize>> + Send> {
        cut_into_batches(self.indices(epoch), size)
    }

    /// Returns a text that identifies what determines the order apart from seed, epoch and number of indices.
    /// `"sampler"` by default. The rules of [`Dataset::fingerprint`](crate::Dataset::fingerprint) hold.
    fn fingerprint(&self) -> String {
        "sampler".to_owned()
    }

    /// Maximum index of all epochs, or `None` (the default) if it is not known in advance. `build()` refuses
    /// a sampler whose max index is not below the length of the dataset. With `None`, an index out of range
    /// fails its batch.
    fn max_index(&self) -> Option<usize> {
        None
    }

    /// Number of indices at the end of `epoch` that repeat those of other ranks, so that all ranks have
    /// equally many; 0 by default. Must not exceed the length of the last batch. The
    /// [`digest`](crate::Builder::digest) of the epoch leaves these samples out.
    fn repeated(&self, epoch: Epoch) -> usize {
        let _ = epoch;
        0
    }

    /// Number of 32-bit draws that an epoch takes from the loader's generator in PyTorch's order.
    #[doc(hidden)]
    fn torch_draws(&self) -> u64 {
        0
    }
}

impl<S: Sampler + ?Sized> Sampler for Box<S> {
    fn len(&self) -> usize {
        (**self).len()
    }

    fn len_of(&self, epoch: Epoch) -> usize {
        (**self).len_of(epoch)
    }

    fn indices(&self, epoch: Epoch) -> Box<dyn Iterator<Item = usize> + Send> {
        (**self).indices(epoch)
    }

    fn batches(&self, epoch: Epoch, size: usize) -> Box<dyn Iterator<Item = Vec<usize>> + Send> {
        (**self).batches(epoch, size)
    }

    fn fingerprint(&self) -> String {
        (**self).fingerprint()
    }

    fn max_index(&self) -> Option<usize> {
        (**self).max_index()
    }

    fn repeated(&self, epoch: Epoch) -> usize {
        (**self).repeated(epoch)
    }

    fn torch_draws(&self) -> u64 {
        (**self).torch_draws()
    }
}
