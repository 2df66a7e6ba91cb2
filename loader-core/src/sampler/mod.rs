//! Which samples, in which order. The plan of an epoch is a pure function of the seed, the epoch and the sampler; nothing in it
//! knows the number of workers.
//!
//! | PyTorch | here |
//! |---|---|
//! | `SequentialSampler(data)` | [`SequentialSampler::new(len)`](SequentialSampler::new) |
//! | `RandomSampler(data, replacement, num_samples)` | [`RandomSampler::new(len)`](RandomSampler::new)`.replacement(..).num_samples(..)?` |
//! | `SubsetRandomSampler(indices)` | [`SubsetRandomSampler::new(indices)`](SubsetRandomSampler::new) |
//! | `WeightedRandomSampler(weights, num_samples, replacement)` | [`WeightedRandomSampler::new(weights, num_samples, replacement)?`](WeightedRandomSampler::new) |
//! | `DistributedSampler(data, num_replicas, rank, shuffle, drop_last=..)` | [`DistributedSampler::new(len, world_size, rank)?`](DistributedSampler::new)`.shuffle(..).drop_last(..)` |
//! | `BatchSampler(sampler, batch_size, drop_last)` | [`FixedBatches::new(sampler, batch_size, drop_last)`](FixedBatches::new) |
//! | a list of indices, a list of batches | `Vec<usize>`, `Vec<Vec<usize>>` |
//! | `random_split(data, lengths)` | [`random_split_by_counts`], [`random_split_by_fractions`]; for datasets [`Dataset::random_split_by_counts`](crate::Dataset::random_split_by_counts) |
//! | any iterable | a [`Sampler`] or [`BatchSampler`] of your own |
//!
//! # PyTorch's order
//! With [`Order::Torch`] each of these samplers gives, in epoch `k`, what PyTorch 2.15 gives on the CPU when the same sampler is
//! iterated over for the `k`-th time (from 0, to the end each time), made with `generator=torch.Generator().manual_seed(seed)`, where
//! `seed` is the loader's. `DistributedSampler` is made with that seed, and `set_epoch(k)` is called. A loader with `shuffle` is
//! PyTorch's with `shuffle=True, generator=torch.Generator().manual_seed(seed)`: there the loader takes the seed of its workers from
//! the sampler's generator, and so the order is another than that of a [`RandomSampler`] with a generator to itself.
//!
//! What has no counterpart here is a loader or a sampler without a generator: it has PyTorch's global one, whose state depends on
//! everything else in the program. In draws by weight without replacement, and in a single draw, there is a logarithm (`log1p`): two
//! indices whose turns differ in the last bit alone may change places where the system's mathematical library rounds in another way
//! than the one that PyTorch runs on. So may indices whose turns are exactly equal.

mod batch;
mod distributed;
mod error;
mod list;
mod permutation;
mod places;
mod random;
mod sequential;
mod source;
mod split;
mod subset;
mod weighted;

use std::fmt;

use rand::rngs::ChaCha8Rng;

use crate::{
    options::Order,
    random::{Purpose, generator, key},
};

pub use batch::{BatchSampler, FixedBatches, cut};
pub use distributed::DistributedSampler;
pub use error::SamplerError;
pub use random::RandomSampler;
pub use sequential::SequentialSampler;
pub use split::{SplitError, random_split_by_counts, random_split_by_fractions};
pub use subset::SubsetRandomSampler;
pub use weighted::WeightedRandomSampler;

/// The epoch that an order is made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Epoch {
    /// The loader's seed.
    pub seed: u64,
    /// Number of the epoch, from 0.
    pub number: u64,
    /// Whose random numbers say the order.
    pub order: Order,
}

impl Epoch {
    /// Epoch `number` of a loader with this seed, in the native order.
    pub fn new(seed: u64, number: u64) -> Self {
        Self { seed, number, order: Order::default() }
    }

    /// The same epoch in another order.
    #[must_use]
    pub fn order(self, order: Order) -> Self {
        Self { order, ..self }
    }

    /// This crate's generator for this epoch's order: the same numbers each time.
    pub fn rng(&self) -> ChaCha8Rng {
        generator(key(Purpose::Order, self.seed, self.number), 0)
    }
}

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

    /// True when an epoch has no indices.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The indices of `epoch`, in order. Asked twice for the same epoch, it must give the same. An iterator whose `nth` does not walk
    /// makes it cheap to take up an epoch in its middle.
    fn indices(&self, epoch: Epoch) -> Box<dyn Iterator<Item = usize> + Send>;

    /// The same indices in batches of `size`, which is at least 1; the last one may be shorter. To be overridden, with [`cut`], where
    /// the type of the indices' iterator is known, so that an index costs no call through a pointer.
    fn batches(&self, epoch: Epoch, size: usize) -> Box<dyn Iterator<Item = Vec<usize>> + Send> {
        cut(self.indices(epoch), size)
    }

    /// A text that tells what decides the order besides seed, epoch and number of indices. Each
    /// [`State`](crate::State) holds the fingerprint, and a loader refuses a state with another one. The text
    /// must not change from build to build. Of a text of more than 200 bytes the end is hashed. `"sampler"`
    /// by default.
    fn fingerprint(&self) -> String {
        "sampler".to_owned()
    }

    /// The largest index of all epochs, if it is known beforehand; `None` by default. `build()` refuses a
    /// sampler whose largest index the dataset does not have. With `None`, such an index fails its batch.
    fn max_index(&self) -> Option<usize> {
        None
    }

    /// How many numbers of 32 bits an epoch takes from the loader's generator, in PyTorch's order.
    #[doc(hidden)]
    fn torch_draws(&self) -> u64 {
        0
    }
}

impl<S: Sampler + ?Sized> Sampler for Box<S> {
    fn len(&self) -> usize {
        (**self).len()
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

    fn torch_draws(&self) -> u64 {
        (**self).torch_draws()
    }
}
