//! Which samples, in which order. The plan of an epoch is a pure function of the seed, the epoch and the sampler; nothing in it
//! knows the number of workers.

mod batch;
mod random;
mod sequential;

use std::fmt;

use rand::rngs::ChaCha8Rng;

use crate::random::{Purpose, generator, key};

pub use batch::{BatchSampler, FixedBatches, cut};
pub use random::RandomSampler;
pub use sequential::SequentialSampler;

/// The epoch that an order is made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Epoch {
    /// The loader's seed.
    pub seed: u64,
    /// Number of the epoch, from 0.
    pub number: u64,
}

impl Epoch {
    /// The generator for this epoch's order: the same numbers each time.
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

    /// The indices of `epoch`, in order. Asked twice for the same epoch, it must give the same.
    fn indices(&self, epoch: Epoch) -> Box<dyn Iterator<Item = usize> + Send>;

    /// The same indices in batches of `size`, which is at least 1; the last one may be shorter. To be overridden, with [`cut`], where
    /// the type of the indices' iterator is known, so that an index costs no call through a pointer.
    fn batches(&self, epoch: Epoch, size: usize) -> Box<dyn Iterator<Item = Vec<usize>> + Send> {
        cut(self.indices(epoch), size)
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
}
