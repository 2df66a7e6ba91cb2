//! Streams of batches of samples of similar length.

use std::{collections::VecDeque, fmt, mem};

use loader_ipc::function::Function;
use serde::{Deserialize, Serialize};

use super::{
    IterableDataset, Shard, SnapshotDataset, SnapshotIterator,
    groups::{GroupSnapshot, groups, groups_from},
    with_len,
};
use crate::data::{
    collate::{CollateError, Convert, Sample, Stack},
    collector::{Collector, CollectorPosition},
    context::SampleContext,
    function::LengthFn,
    random::{generator, shuffle},
    sampler::{LengthError, TokenBudget},
};

/// A stream of batches of samples of similar length. Created by [`IterableDataset::length_batches`].
#[derive(Clone, Serialize, Deserialize)]
#[serde(bound = "")]
pub struct LengthBatchesDataset<D: IterableDataset> {
    dataset: D,
    budget: TokenBudget,
    look_ahead: usize,
    len: LengthFn<D::Sample>,
}

impl<D: IterableDataset> LengthBatchesDataset<D> {
    pub(super) fn new(
        dataset: D,
        budget: TokenBudget,
        look_ahead: usize,
        len: fn(&D::Sample) -> usize,
    ) -> Result<Self, LengthError> {
        budget.check()?;
        if look_ahead == 0 {
            return Err(LengthError::Zero { option: "look_ahead" });
        }
        Ok(Self { dataset, budget, look_ahead, len: Function::new(len) })
    }

    fn collector(&self, cx: &SampleContext) -> LengthCollector<D::Sample> {
        LengthCollector {
            budget: self.budget.clone(),
            look_ahead: self.look_ahead,
            len: self.len.get(),
            key: cx.buffer_key(self.layers()),
            samples: Vec::new(),
            oldest: None,
            batches: VecDeque::new(),
            given: 0,
            has_ended: false,
        }
    }
}

impl<D: IterableDataset + fmt::Debug> fmt::Debug for LengthBatchesDataset<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LengthBatchesDataset").field("dataset", &self.dataset).finish_non_exhaustive()
    }
}

/// The samples of a batch. A loader without batches ([`unbatched`](crate::Builder::unbatched)) collates them
/// as a loader with batches does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LengthBatch<S> {
    /// The samples.
    pub samples: Vec<S>,
}

impl<S: Sample> Convert for LengthBatch<S> {
    type Item = S::Batch;

    fn convert(self) -> Result<S::Batch, CollateError> {
        let mut stack = S::stack(self.samples.len());
        self.samples.into_iter().try_for_each(|sample| stack.push(sample))?;
        stack.finish()
    }
}

impl<D: IterableDataset> IterableDataset for LengthBatchesDataset<D> {
    type Sample = LengthBatch<D::Sample>;

    fn iter(
        &self,
        shard: Shard,
        cx: &mut SampleContext,
    ) -> anyhow::Result<impl Iterator<Item = anyhow::Result<Self::Sample>> + Send> {
        groups(self.collector(cx), &self.dataset, shard, cx)
    }

    fn fingerprint(&self) -> String {
        let inner = with_len(&self.dataset.fingerprint(), self.dataset.len());
        format!("length_batches({:?}, {}, {inner})", self.budget, self.look_ahead)
    }

    pass_on_to_inner!(adds_layers: 1);
}

impl<D: SnapshotDataset> SnapshotDataset for LengthBatchesDataset<D> {
    type Snapshot = GroupSnapshot;

    fn iter_from(
        &self,
        shard: Shard,
        cx: &mut SampleContext,
        snapshot: Option<GroupSnapshot>,
    ) -> anyhow::Result<
        impl SnapshotIterator<Item = anyhow::Result<Self::Sample>, Snapshot = GroupSnapshot> + Send,
    > {
        groups_from(self.collector(cx), &self.dataset, shard, cx, snapshot)
    }
}

/// Collects `look_ahead` samples, and gives them in batches.
struct LengthCollector<S> {
    budget: TokenBudget,
    look_ahead: usize,
    len: fn(&S) -> usize,
    /// Key of the generators of the shard, of which each round of samples has one.
    key: [u8; 32],
    /// The samples that are not yet in batches.
    samples: Vec<S>,
    /// Position of the first sample that was collected since the last batch was given.
    oldest: Option<u64>,
    /// The batches that are not yet given.
    batches: VecDeque<Vec<S>>,
    /// Number of batches of the same samples that were given.
    given: usize,
    has_ended: bool,
}

impl<S> LengthCollector<S> {
    /// Puts the collected samples into batches, in random order.
    fn cut(&mut self) {
        let lens: Vec<usize> = self.samples.iter().map(self.len).collect();
        let mut batches = self.budget.cut((0..lens.len()).collect(), |index| lens[index]);
        shuffle(&mut generator(self.key, self.oldest.unwrap_or_default()), &mut batches);
        let mut samples: Vec<_> = mem::take(&mut self.samples).into_iter().map(Some).collect();
        let of_batch =
            |batch: Vec<usize>| batch.into_iter().filter_map(|index| samples[index].take()).collect();
        self.batches = batches.into_iter().map(of_batch).collect();
    }
}

impl<S> Collector<S> for LengthCollector<S> {
    type Group = LengthBatch<S>;

    fn push(&mut self, position: u64, sample: S) -> anyhow::Result<()> {
        self.budget.check_len(position as usize, (self.len)(&sample))?;
        self.oldest.get_or_insert(position);
        self.samples.push(sample);
        if self.samples.len() == self.look_ahead {
            self.cut();
        }
        Ok(())
    }

    fn end(&mut self) {
        if !mem::replace(&mut self.has_ended, true) {
            self.cut();
        }
    }

    fn pop(&mut self) -> Option<anyhow::Result<LengthBatch<S>>> {
        let samples = self.batches.pop_front()?;
        self.given += 1;
        if self.batches.is_empty() {
            (self.oldest, self.given) = (None, 0);
        }
        Some(Ok(LengthBatch { samples }))
    }

    fn position(&self) -> CollectorPosition {
        let samples = self.samples.len() + self.batches.iter().map(Vec::len).sum::<usize>();
        CollectorPosition { oldest: self.oldest, samples, given: self.given, has_ended: self.has_ended }
    }

    fn skip(&mut self, given: usize) -> bool {
        let is_valid = given == 0 || given < self.batches.len();
        (0..given.min(self.batches.len())).for_each(|_| drop(self.pop()));
        is_valid
    }
}
