//! Map-style datasets as streams.

use rand::Rng;
use serde::{Deserialize, Serialize};

use super::{Dataset, EndsShard, IterableDataset, Shard, SnapshotDataset, SnapshotIterator, with_len};
use crate::data::{context::SampleContext, sampler::Permutations};

/// A map-style dataset that is read as a stream. Created by [`Dataset::into_stream`].
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct DatasetStream<D> {
    dataset: D,
    shuffle: bool,
}

impl<D: Dataset> DatasetStream<D> {
    pub(super) fn new(dataset: D) -> Self {
        Self { dataset, shuffle: false }
    }

    /// If true, the samples come in a new random order in each epoch, from one permutation of which each
    /// shard reads its part; if false (the default), in the order of their indices.
    #[must_use]
    pub fn shuffle(self, shuffle: bool) -> Self {
        Self { shuffle, ..self }
    }

    fn open(&self, shard: Shard, cx: &SampleContext, taken: u64) -> Samples<'_, D> {
        let seed = cx.for_layer(self.layers()).epoch_rng().next_u64();
        let order = self.shuffle.then(|| Permutations::keyed(self.dataset.len(), seed));
        Samples { dataset: &self.dataset, order, shard, cx: cx.for_layer(0), taken }
    }
}

impl<D: Dataset> IterableDataset for DatasetStream<D> {
    type Sample = D::Sample;

    fn iter(
        &self,
        shard: Shard,
        cx: &mut SampleContext,
    ) -> anyhow::Result<impl Iterator<Item = anyhow::Result<D::Sample>> + Send> {
        Ok(self.open(shard, cx, 0))
    }

    fn iter_at(
        &self,
        shard: Shard,
        position: u64,
        cx: &mut SampleContext,
    ) -> anyhow::Result<Option<impl Iterator<Item = anyhow::Result<D::Sample>> + Send>> {
        Ok(Some(self.open(shard, cx, position)))
    }

    fn len(&self) -> Option<usize> {
        Some(self.dataset.len())
    }

    fn fingerprint(&self) -> String {
        let shuffle = if self.shuffle { ", shuffle" } else { "" };
        format!("stream({}{shuffle})", with_len(&self.dataset.fingerprint(), Some(self.dataset.len())))
    }

    pass_on_to_inner!(adds_layers: 1);
}

impl<D: Dataset> SnapshotDataset for DatasetStream<D> {
    /// Number of samples taken from the shard.
    type Snapshot = u64;

    fn iter_from(
        &self,
        shard: Shard,
        cx: &mut SampleContext,
        snapshot: Option<u64>,
    ) -> anyhow::Result<impl SnapshotIterator<Item = anyhow::Result<D::Sample>, Snapshot = u64> + Send> {
        Ok(self.open(shard, cx, snapshot.unwrap_or(0)))
    }
}

/// The samples of one shard.
struct Samples<'a, D> {
    dataset: &'a D,
    order: Option<Permutations>,
    shard: Shard,
    cx: SampleContext,
    /// Number of samples taken.
    taken: u64,
}

impl<D: Dataset> Iterator for Samples<'_, D> {
    type Item = anyhow::Result<D::Sample>;

    fn next(&mut self) -> Option<Self::Item> {
        let taken = usize::try_from(self.taken).ok()?;
        let position = taken.checked_mul(self.shard.count())?.checked_add(self.shard.index())?;
        if position >= self.dataset.len() {
            return None;
        }
        self.taken += 1;
        let index = self.order.as_mut().map_or(position, |order| order.at(position));
        self.cx.set_index(index);
        Some(self.dataset.get(index, &mut self.cx).map_err(EndsShard::on_outage))
    }
}

impl<D: Dataset> SnapshotIterator for Samples<'_, D> {
    type Snapshot = u64;

    fn snapshot(&self) -> anyhow::Result<u64> {
        Ok(self.taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::dataset::testing::Plain;

    #[test]
    fn the_shards_of_a_shuffled_stream_have_each_sample_once() {
        for len in [0, 5, 100, 70_000] {
            let stream = Plain { first: 0, len }.into_stream().shuffle(true);
            let of_shard = |epoch, index| {
                let shard = Shard::new(index, 3);
                let mut cx = SampleContext::for_shard(None, 7, epoch, shard);
                let samples = stream.iter(shard, &mut cx).unwrap().map(|sample| sample.unwrap().0);
                samples.collect::<Vec<_>>()
            };
            let whole = |epoch| (0..3).flat_map(|index| of_shard(epoch, index)).collect::<Vec<_>>();
            let mut sorted = whole(0);
            sorted.sort_unstable();
            assert!(sorted.into_iter().eq(0..len as u64));
            assert!(len < 100 || whole(0) != whole(1), "each epoch has another order");
        }
    }
}
