//! Lists that are orders as they are, the same in each epoch.

use super::{BatchSampler, Epoch, Sampler, cut};

impl Sampler for Vec<usize> {
    fn len(&self) -> usize {
        self.len()
    }

    fn indices(&self, _epoch: Epoch) -> Box<dyn Iterator<Item = usize> + Send> {
        Box::new(self.clone().into_iter())
    }

    fn batches(&self, _epoch: Epoch, size: usize) -> Box<dyn Iterator<Item = Vec<usize>> + Send> {
        cut(self.clone().into_iter(), size)
    }
}

impl BatchSampler for Vec<Vec<usize>> {
    fn len(&self) -> usize {
        self.len()
    }

    fn batches(&self, _epoch: Epoch) -> Box<dyn Iterator<Item = Vec<usize>> + Send> {
        Box::new(self.clone().into_iter())
    }
}
