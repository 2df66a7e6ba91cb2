//! Given indices in random order.

use std::{fmt, sync::Arc};

use super::{
    Epoch, Sampler, by_position::ByPosition, cut_into_batches, permutation::Permutations, source::Source,
};
use crate::data::{fingerprint::hash, torch::permutation_draws};

/// A random permutation of given indices, new for each epoch: PyTorch's `SubsetRandomSampler`.
///
/// # Examples
/// ```
/// use loader_core::sampler::{Epoch, Sampler, SubsetRandomSampler};
///
/// let sampler = SubsetRandomSampler::new([3, 1, 4, 15]);
/// let mut indices: Vec<usize> = sampler.indices(Epoch::new(7, 0)).collect();
/// indices.sort();
/// assert_eq!(indices, [1, 3, 4, 15]);
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct SubsetRandomSampler {
    indices: Arc<[usize]>,
}

impl SubsetRandomSampler {
    /// Creates a sampler of `indices`. An index that occurs twice is drawn twice per epoch. If there are no
    /// indices, each epoch is empty.
    pub fn new(indices: impl IntoIterator<Item = usize>) -> Self {
        Self { indices: indices.into_iter().collect() }
    }
}

impl Sampler for SubsetRandomSampler {
    fn len(&self) -> usize {
        self.indices.len()
    }

    fn indices(&self, epoch: Epoch) -> Box<dyn Iterator<Item = usize> + Send> {
        Box::new(self.permutation(epoch))
    }

    fn batches(&self, epoch: Epoch, size: usize) -> Box<dyn Iterator<Item = Vec<usize>> + Send> {
        cut_into_batches(self.permutation(epoch), size)
    }

    fn fingerprint(&self) -> String {
        format!("subset({})", hash(self.indices.iter().map(|&index| index as u64)))
    }

    fn max_index(&self) -> Option<usize> {
        self.indices.iter().copied().max()
    }
}

impl SubsetRandomSampler {
    fn permutation(&self, epoch: Epoch) -> impl Iterator<Item = usize> + Send + use<> {
        let (indices, len) = (Arc::clone(&self.indices), self.indices.len());
        let mut order = Permutations::new(len, epoch, || Source::of_sampler(epoch, permutation_draws(len)));
        ByPosition::new(len, move |position| indices[order.at(position)])
    }
}

impl fmt::Debug for SubsetRandomSampler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SubsetRandomSampler").field("len", &self.indices.len()).finish_non_exhaustive()
    }
}
