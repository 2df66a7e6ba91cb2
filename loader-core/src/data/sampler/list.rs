//! Vectors as samplers and batch samplers. Their order is the same in each epoch.

use super::{BatchSampler, Epoch, Sampler, cut_into_batches};
use crate::data::fingerprint::hash;

/// The indices in the order of the vector. Each epoch copies the vector: 8 bytes per index.
impl Sampler for Vec<usize> {
    fn len(&self) -> usize {
        self.len()
    }

    fn indices(&self, _epoch: Epoch) -> Box<dyn Iterator<Item = usize> + Send> {
        Box::new(self.clone().into_iter())
    }

    fn batches(&self, _epoch: Epoch, size: usize) -> Box<dyn Iterator<Item = Vec<usize>> + Send> {
        cut_into_batches(self.clone().into_iter(), size)
    }

    fn fingerprint(&self) -> String {
        format!("list({})", hash(self.iter().map(|&index| index as u64)))
    }

    fn max_index(&self) -> Option<usize> {
        self.iter().copied().max()
    }
}

/// The batches in the order of the vector. Each epoch copies the vector and each batch in it.
impl BatchSampler for Vec<Vec<usize>> {
    fn len(&self, _epoch: Epoch) -> usize {
        self.len()
    }

    fn max_index(&self) -> Option<usize> {
        self.iter().flatten().copied().max()
    }

    fn batches(&self, _epoch: Epoch) -> Box<dyn Iterator<Item = Vec<usize>> + Send> {
        Box::new(self.clone().into_iter())
    }

    fn fingerprint(&self) -> String {
        // The length of each batch is hashed too, so that different cuts of the same indices differ.
        let numbers = self.iter().flat_map(|batch| [batch.len()].into_iter().chain(batch.iter().copied()));
        format!("list of batches({})", hash(numbers.map(|number| number as u64)))
    }
}
