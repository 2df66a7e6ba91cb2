//! Datasets mixed by weight.

use anyhow::{Context, anyhow, ensure};
use loader_ipc::codec;
use serde::{Deserialize, Serialize};

use super::{
    Dataset, EndsShard, IterableDataset, Shard, SnapshotDataset, SnapshotIterator,
    nested::{Nested, open_later},
    with_len,
};
use crate::data::{
    context::SampleContext,
    mix::{Blend, Mix, MixError, Next, Progress},
    sampler::MixSampler,
};

impl MixSampler {
    /// Creates a sampler for `datasets`, the members of a [`ConcatDataset`](crate::ConcatDataset).
    ///
    /// # Errors
    /// As for [`new`](Self::new).
    pub fn of<D: Dataset>(datasets: &[D], mix: Mix) -> Result<Self, MixError> {
        Self::new(datasets.iter().map(D::len), mix)
    }
}

/// Iterable datasets of one type that are mixed by weight in each shard. The module [`mix`](crate::mix)
/// describes the weights, the rules, and what follows when a dataset has no samples left.
///
/// An item that is an error counts as a sample of its dataset. A dataset that begins again
/// ([`Exhausted::Repeat`](crate::mix::Exhausted::Repeat)) draws other random numbers than before, so its
/// shuffle buffers and random transforms differ. With [`Exhausted::Stop`](crate::mix::Exhausted::Stop) and `Repeat`, a
/// shard ends with an error if a dataset has no samples in it and samples of another dataset would be lost: each
/// dataset needs at least one file, block or row group (whichever it deals to shards) per shard.
///
/// # Examples
/// ```
/// use loader_core::{MixDataset, mix::{Exhausted, Mix}, prelude::*};
/// # #[derive(serde::Serialize, serde::Deserialize)]
/// # struct Numbers(std::ops::Range<u64>);
/// # impl IterableDataset for Numbers {
/// #     type Sample = u64;
/// #     fn iter(&self, shard: Shard, _cx: &mut SampleContext) -> anyhow::Result<impl Iterator<Item = anyhow::Result<u64>> + Send> {
/// #         Ok(shard.of(self.0.clone()).map(Ok))
/// #     }
/// # }
/// let mix = Mix::new([2.0, 1.0])?.exhausted(Exhausted::Drop);
/// let mixed = MixDataset::new([Numbers(0..4), Numbers(10..14)], mix)?;
/// let loader = DataLoader::stream(mixed).batch_size(8).build()?;
/// assert_eq!(loader.iter()?.next().unwrap()?.as_slice(), [0, 10, 1, 2, 11, 3, 12, 13]);
/// # anyhow::Ok(())
/// ```
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(bound(serialize = "D: Serialize", deserialize = "D: Deserialize<'de>"))]
pub struct MixDataset<D> {
    streams: Vec<D>,
    mix: Mix,
}

impl<D: IterableDataset> MixDataset<D> {
    /// Mixes `streams`. All of them are open at the same time in each shard.
    ///
    /// # Errors
    /// Returns [`MixError::WrongCount`] if there is not one weight for each dataset, and
    /// [`MixError::EmptyDataset`] if a dataset is known to have no samples.
    pub fn new(streams: impl IntoIterator<Item = D>, mix: Mix) -> Result<Self, MixError> {
        let streams: Vec<D> = streams.into_iter().collect();
        mix.check_count(streams.len())?;
        match streams.iter().position(D::is_empty) {
            Some(dataset) => Err(MixError::EmptyDataset { dataset }),
            None => Ok(Self { streams, mix }),
        }
    }

    /// Returns the context of pass `pass` over a stream.
    fn context(&self, own: &SampleContext, stream: usize, pass: usize, shard: Shard) -> SampleContext {
        let lane = pass * self.streams.len() + stream;
        own.for_lane(lane, lane, shard)
    }

    fn blend(&self, shard: Shard, cx: &SampleContext, progress: Option<Progress>) -> Blend {
        let (mix, epoch, rng) = (self.mix.clone(), cx.epoch(), cx.buffer_rng(self.layers()));
        match progress {
            None => Blend::new(mix, epoch, shard, rng),
            Some(progress) => Blend::resume(mix, epoch, shard, rng, progress),
        }
    }
}

impl<D: IterableDataset> IterableDataset for MixDataset<D> {
    type Sample = D::Sample;

    fn iter(
        &self,
        shard: Shard,
        cx: &mut SampleContext,
    ) -> anyhow::Result<impl Iterator<Item = anyhow::Result<D::Sample>> + Send> {
        let own = cx.for_layer(self.layers());
        let open = move |stream, pass| {
            open_later(&self.streams[stream], shard, self.context(&own, stream, pass, shard))
        };
        Ok(MixIter::new(self.blend(shard, cx, None), self.streams.len(), open))
    }

    fn len(&self) -> Option<usize> {
        self.mix.known_len(self.streams.iter().map(D::len))
    }

    fn setup(&mut self, cx: &mut SampleContext) -> anyhow::Result<()> {
        self.streams.iter_mut().try_for_each(|stream| stream.setup(cx))
    }

    fn fingerprint(&self) -> String {
        let streams = self.streams.iter().map(|stream| with_len(&stream.fingerprint(), stream.len()));
        format!("mix({}, {})", self.mix.fingerprint(), streams.collect::<Vec<_>>().join(", "))
    }

    fn layers(&self) -> u8 {
        self.streams.iter().map(D::layers).max().unwrap_or(0).wrapping_add(1)
    }
}

/// Snapshot of a [`MixDataset`].
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct MixSnapshot {
    progress: Progress,
    /// For each stream the number of the pass over it, and its encoded snapshot; `None` stands for the
    /// beginning of the pass, and for a stream that has ended.
    lanes: Vec<(usize, Option<Vec<u8>>)>,
}

impl<D: SnapshotDataset> SnapshotDataset for MixDataset<D> {
    type Snapshot = MixSnapshot;

    fn iter_from(
        &self,
        shard: Shard,
        cx: &mut SampleContext,
        snapshot: Option<MixSnapshot>,
    ) -> anyhow::Result<impl SnapshotIterator<Item = anyhow::Result<D::Sample>, Snapshot = MixSnapshot> + Send>
    {
        let own = cx.for_layer(self.layers());
        let nested = move |stream: usize, pass, snapshot| {
            Nested::new(&self.streams[stream], shard, self.context(&own, stream, pass, shard), snapshot)
        };
        let mut lanes = Vec::new();
        let mut progress = None;
        if let Some(snapshot) = snapshot {
            let is_valid =
                snapshot.lanes.len() == self.streams.len() && snapshot.progress.fits(self.streams.len());
            ensure!(is_valid, "the snapshot of the mix is of another number of datasets");
            progress = Some(snapshot.progress);
            for (stream, (pass, bytes)) in snapshot.lanes.into_iter().enumerate() {
                let Some(bytes) = bytes else {
                    lanes.push(Lane { pass, ..Lane::default() });
                    continue;
                };
                let inner = codec::decode(&bytes).context("reading the snapshot of a mixed stream")?;
                let mut items = nested(stream, pass, Some(inner));
                // Opened here instead of at its first item: an error then means that the shard could not be
                // opened, and the shard keeps its position.
                items.open()?;
                lanes.push(Lane { pass, items: Some(items), has_samples: true, snapshot: Some(bytes) });
            }
        }
        let open = move |stream, pass| nested(stream, pass, None);
        let iter = MixIter::new(self.blend(shard, cx, progress), self.streams.len(), open);
        Ok(if lanes.is_empty() { iter } else { MixIter { lanes, ..iter } })
    }
}

/// Iterator over the samples of mixed streams.
struct MixIter<L, F> {
    blend: Blend,
    lanes: Vec<Lane<L>>,
    /// Opens a stream at its beginning, for a pass.
    open: F,
}

/// A stream in a mix.
struct Lane<L> {
    /// Number of times that the stream has been read to its end.
    pass: usize,
    /// `None` before the first sample of the pass, and after the last one if the stream does not begin again.
    items: Option<L>,
    /// True if the pass has given a sample.
    has_samples: bool,
    /// The snapshot at which the stream was resumed; `None` after it has given an item.
    snapshot: Option<Vec<u8>>,
}

impl<L> Default for Lane<L> {
    fn default() -> Self {
        Self { pass: 0, items: None, has_samples: false, snapshot: None }
    }
}

impl<L, F> MixIter<L, F> {
    fn new(blend: Blend, streams: usize, open: F) -> Self {
        Self { blend, lanes: (0..streams).map(|_| Lane::default()).collect(), open }
    }
}

impl<S, L: Iterator<Item = anyhow::Result<S>>, F: Fn(usize, usize) -> L> MixIter<L, F> {
    /// Returns the next item of a stream's present pass.
    fn next_of(&mut self, stream: usize) -> Option<L::Item> {
        let lane = &mut self.lanes[stream];
        let item = lane.items.get_or_insert_with(|| (self.open)(stream, lane.pass)).next()?;
        (lane.snapshot, lane.has_samples) = (None, true);
        Some(item)
    }

    /// Returns the error of a stream without samples in this shard, after which the shard ends; `None` if no samples
    /// are lost.
    fn empty_error(&mut self, stream: usize, next: &Next) -> Option<anyhow::Error> {
        let problem = match next {
            Next::Choose => return None,
            Next::Again => "so it cannot be repeated",
            Next::End => {
                let others = 0..self.lanes.len();
                let mut wanted = others
                    .filter_map(|other| if self.blend.is_wanted(other) { self.next_of(other) } else { None });
                // If the other stream cannot be read, its error is the cause to tell.
                if let Err(error) = wanted.next()?
                    && error.is::<EndsShard>()
                {
                    return Some(error);
                }
                "so the shard would end before the other datasets are read"
            }
        };
        self.blend.end();
        let error =
            anyhow!("dataset {stream} of the mix has no samples in this shard, {problem}; use fewer shards");
        Some(error.context(EndsShard))
    }
}

impl<S, L: Iterator<Item = anyhow::Result<S>>, F: Fn(usize, usize) -> L> Iterator for MixIter<L, F> {
    type Item = L::Item;

    fn next(&mut self) -> Option<L::Item> {
        let mut stream = self.blend.choose()?;
        loop {
            if let Some(item) = self.next_of(stream) {
                self.blend.commit(stream);
                return Some(item);
            }
            let next = self.blend.exhausted(stream);
            if !self.lanes[stream].has_samples
                && let Some(error) = self.empty_error(stream, &next)
            {
                return Some(Err(error));
            }
            let lane = &mut self.lanes[stream];
            *lane = Lane { pass: lane.pass + 1, ..Lane::default() };
            match next {
                Next::End => return None,
                Next::Again => {}
                Next::Choose => stream = self.blend.choose()?,
            }
        }
    }
}

impl<S, L, F> SnapshotIterator for MixIter<L, F>
where
    L: SnapshotIterator<Item = anyhow::Result<S>, Snapshot: Serialize>,
    F: Fn(usize, usize) -> L,
{
    type Snapshot = MixSnapshot;

    fn snapshot(&self) -> anyhow::Result<MixSnapshot> {
        let write = |lane: &Lane<L>| {
            let snapshot = match (&lane.snapshot, &lane.items) {
                (Some(bytes), _) => Some(bytes.clone()),
                (None, Some(items)) => Some(codec::encode(&items.snapshot()?)?),
                (None, None) => None,
            };
            Ok((lane.pass, snapshot))
        };
        let lanes = self.lanes.iter().map(write).collect::<anyhow::Result<_>>()?;
        Ok(MixSnapshot { progress: self.blend.progress(), lanes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{
        dataset::testing::Stream,
        mix::{Exhausted, MixRule},
    };

    fn stream(count: u64) -> Stream {
        Stream { count, bad: None, is_missing: false }
    }

    fn samples(mix: &MixDataset<Stream>, shard: Shard) -> Vec<anyhow::Result<(u64, u64)>> {
        mix.iter(shard, &mut SampleContext::for_shard(None, 5, 0, shard)).unwrap().collect()
    }

    #[test]
    fn a_stream_that_begins_again_draws_other_numbers() {
        let mix = Mix::new([1.0, 1.0]).unwrap().exhausted(Exhausted::Repeat);
        let mixed = MixDataset::new([stream(2), stream(4)], mix).unwrap();
        let samples: Vec<_> = samples(&mixed, Shard::new(0, 1)).into_iter().map(Result::unwrap).collect();
        assert!(samples.iter().map(|(number, _)| *number).eq([0, 0, 1, 1, 0, 2, 1, 3, 0]));
        let mut noise: Vec<u64> = samples.iter().map(|(_, noise)| *noise).collect();
        noise.sort_unstable();
        noise.dedup();
        assert_eq!(noise.len(), 9);
    }

    #[test]
    fn a_dataset_that_gets_a_weight_later_is_not_lost() {
        let mix = Mix::new([1.0, 1.0]).unwrap().change(0, 0, [1.0, 0.0]).unwrap();
        let mix = mix.change(0, 100, [0.0, 1.0]).unwrap();
        let mixed = MixDataset::new([stream(1), stream(9)], mix).unwrap();
        let items = samples(&mixed, Shard::new(1, 2));
        assert_eq!(items.len(), 1);
        let error = format!("{:#}", items[0].as_ref().unwrap_err());
        assert!(
            error.contains("dataset 0 of the mix has no samples in this shard, so the shard would end"),
            "{error}"
        );
    }

    #[test]
    fn a_short_stream_that_begins_again_keeps_its_weight() {
        let mix = Mix::new([1.0, 1.0]).unwrap().rule(MixRule::Random).exhausted(Exhausted::Repeat);
        let mix = mix.num_samples(4000).unwrap();
        let mixed = MixDataset::new([stream(1), stream(100_000)], mix).unwrap();
        let numbers = samples(&mixed, Shard::new(0, 1)).into_iter().map(|item| item.unwrap().0);
        let of_short = numbers.filter(|&number| number == 0).count();
        assert!((1850..2150).contains(&of_short), "{of_short} of 4000");
    }

    #[test]
    fn changes_and_numbers_of_samples_are_shared_among_shards() {
        let mix = Mix::new([1.0, 1.0]).unwrap().exhausted(Exhausted::Repeat).num_samples(25).unwrap();
        let mix = mix.change(0, 12, [0.0, 1.0]).unwrap();
        let mixed = MixDataset::new([stream(30), stream(30)], mix).unwrap();
        assert_eq!(mixed.len(), Some(25));
        for (index, len) in [(0, 9), (1, 8), (2, 8)] {
            let shard = Shard::new(index, 3);
            let numbers: Vec<u64> = samples(&mixed, shard).into_iter().map(|item| item.unwrap().0).collect();
            assert_eq!(numbers.len(), len);
            // Two samples of each stream, then the rest of the second one.
            let first = index as u64;
            assert_eq!(numbers[..6], [first, first, first + 3, first + 3, first + 6, first + 9]);
        }
    }

    #[test]
    fn a_dataset_without_samples_in_a_shard_of_another_one_is_an_error() {
        for policy in [Exhausted::Stop, Exhausted::Repeat] {
            for streams in [[stream(9), stream(1)], [stream(1), stream(9)]] {
                let mix = Mix::new([1.0, 1.0]).unwrap().exhausted(policy);
                let mixed = MixDataset::new(streams, mix).unwrap();
                let items = samples(&mixed, Shard::new(1, 2));
                let error = items.last().unwrap().as_ref().unwrap_err();
                assert!(
                    error.is::<EndsShard>() && format!("{error:#}").contains("use fewer shards"),
                    "{error:#}"
                );
            }
        }
        // No sample is lost in a shard without any.
        let mixed = MixDataset::new([stream(1), stream(1)], Mix::new([1.0, 1.0]).unwrap()).unwrap();
        assert_eq!(samples(&mixed, Shard::new(1, 2)).len(), 0);
        let error = MixDataset::new([stream(9), stream(0)], Mix::new([1.0, 1.0]).unwrap()).unwrap_err();
        assert_eq!(error, MixError::EmptyDataset { dataset: 1 });
    }
}
