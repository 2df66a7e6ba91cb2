//! Iterable datasets that can save their position in a shard.

use serde::{Serialize, de::DeserializeOwned};

use super::{IterableDataset, Shard};
use crate::data::context::SampleContext;

/// An iterable dataset that can save its position in a shard and continue from there, as with `state_dict`
/// and `load_state_dict` of torchdata's `StatefulDataLoader`. Enable it with
/// [`Builder::snapshots`](crate::Builder::snapshots).
///
/// The loader resumes any other iterable dataset with [`iter_at`](IterableDataset::iter_at), or by reading
/// and dropping the samples before the position.
///
/// # Examples
/// ```
/// use loader_core::prelude::*;
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize)]
/// struct Squares(u64);
///
/// struct Position {
///     next: u64,
///     end: u64,
///     step: u64,
/// }
///
/// impl Iterator for Position {
///     type Item = anyhow::Result<u64>;
///     fn next(&mut self) -> Option<Self::Item> {
///         let number = self.next;
///         self.next += self.step;
///         (number < self.end).then_some(Ok(number * number))
///     }
/// }
///
/// impl SnapshotIterator for Position {
///     type Snapshot = u64;
///     fn snapshot(&self) -> anyhow::Result<u64> {
///         Ok(self.next)
///     }
/// }
///
/// impl IterableDataset for Squares {
///     type Sample = u64;
///     fn iter(
///         &self,
///         shard: Shard,
///         cx: &mut SampleContext,
///     ) -> anyhow::Result<impl Iterator<Item = anyhow::Result<u64>> + Send> {
///         self.iter_from(shard, cx, None)
///     }
/// }
///
/// impl SnapshotDataset for Squares {
///     type Snapshot = u64;
///     fn iter_from(
///         &self,
///         shard: Shard,
///         _cx: &mut SampleContext,
///         snapshot: Option<u64>,
///     ) -> anyhow::Result<impl SnapshotIterator<Item = anyhow::Result<u64>, Snapshot = u64> + Send> {
///         let next = snapshot.unwrap_or(shard.index() as u64);
///         Ok(Position { next, end: self.0, step: shard.count() as u64 })
///     }
/// }
///
/// let loader = DataLoader::stream(Squares(100)).snapshots().batch_size(10).build()?;
/// let mut batches = loader.iter()?;
/// batches.by_ref().take(3).for_each(drop);
/// let state = batches.state();
/// let fourth = loader.resume(&state)?.next().unwrap()?;
/// assert_eq!(fourth.as_slice()[0], 30 * 30);
/// # anyhow::Ok(())
/// ```
pub trait SnapshotDataset: IterableDataset {
    /// A position in a shard. It should be small, because the workers send it with their batches.
    type Snapshot: Serialize + DeserializeOwned + Send;

    /// Returns the samples of `shard` after the position `snapshot`, or all samples if `snapshot` is `None`.
    ///
    /// # Errors
    /// As for [`IterableDataset::iter`].
    fn iter_from(
        &self,
        shard: Shard,
        cx: &mut SampleContext,
        snapshot: Option<Self::Snapshot>,
    ) -> anyhow::Result<
        impl SnapshotIterator<Item = anyhow::Result<Self::Sample>, Snapshot = Self::Snapshot> + Send,
    >;
}

/// An iterator that can save its position.
pub trait SnapshotIterator: Iterator {
    /// The position.
    type Snapshot;

    /// Returns the position after the item that was taken last. It must contain everything that determines
    /// the following items, including the state of a generator.
    ///
    /// # Errors
    /// An error fails the batch that was just read.
    fn snapshot(&self) -> anyhow::Result<Self::Snapshot>;
}

#[cfg(test)]
mod tests {
    use std::fmt::Debug;

    use loader_ipc::codec;
    use proptest::prelude::*;
    use rand::RngExt;

    use super::*;
    use crate::data::{
        dataset::{
            Dataset, EndsShard, InterleaveDataset, MixDataset,
            testing::{Plain, Stream},
        },
        mix::{Exhausted, Mix, MixRule},
        pack::{LongDocuments, PackError, PackMethod, Packing},
    };

    /// Formats an item, so that items that are errors can be compared too.
    fn text<S: Debug>(item: anyhow::Result<S>) -> String {
        item.map_or_else(|error| error.to_string(), |sample| format!("{sample:?}"))
    }

    /// Checks that `iter_from` gives the same items as `iter`, and that a stream that is resumed at each
    /// snapshot gives the items after it. Checks the snapshots of each resumed stream in the same way,
    /// `depth` levels deep.
    fn check<D: SnapshotDataset<Sample: Debug>>(
        dataset: &D,
        shard: Shard,
        depth: usize,
    ) -> Result<(), TestCaseError> {
        let context = || SampleContext::for_shard(None, 7, 1, shard);
        let whole: Vec<String> = dataset.iter(shard, &mut context()).unwrap().map(text).collect();
        check_from(dataset, shard, None, &whole, depth)
    }

    fn check_from<D: SnapshotDataset<Sample: Debug>>(
        dataset: &D,
        shard: Shard,
        from: Option<&[u8]>,
        expected: &[String],
        depth: usize,
    ) -> Result<(), TestCaseError> {
        let mut cx = SampleContext::for_shard(None, 7, 1, shard);
        let from = from.map(|bytes| codec::decode(bytes).unwrap());
        let mut items = dataset.iter_from(shard, &mut cx, from).unwrap();
        let mut taken = 0;
        while let Some(item) = items.next() {
            // After this error the loader reads no further and takes no snapshot.
            let is_last = item.as_ref().is_err_and(|error| error.is::<EndsShard>());
            prop_assert_eq!(Some(&text(item)), expected.get(taken));
            if is_last {
                return Ok(());
            }
            taken += 1;
            if depth > 0 {
                let snapshot = codec::encode(&items.snapshot().unwrap()).unwrap();
                check_from(dataset, shard, Some(&snapshot), &expected[taken..], depth - 1)?;
            }
        }
        prop_assert_eq!(taken, expected.len());
        Ok(())
    }

    fn noisy((number, noise): (u64, u64), cx: &mut SampleContext) -> anyhow::Result<(u64, u64)> {
        anyhow::ensure!(number % 11 != 7, "{number} is refused");
        Ok((number, noise ^ cx.rng().random::<u64>()))
    }

    fn kept((number, _): &(u64, u64), cx: &mut SampleContext) -> anyhow::Result<bool> {
        anyhow::ensure!(number % 13 != 5, "{number} is not judged");
        Ok(number % 3 != 0 || cx.rng().random())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn a_resumed_stream_gives_the_remaining_items(
            (count, more) in (0u64..32, 0u64..12),
            (size, outer) in (1usize..12, 1usize..6),
            limit in 0usize..40,
            bad in prop_oneof![Just(None), (2u64..9).prop_map(Some)],
            (index, shards) in prop_oneof![Just((0usize, 1usize)), Just((1, 2)), Just((2, 3))],
        ) {
            let shard = Shard::new(index, shards);
            let stream = || Stream { count, bad, is_missing: false };
            let other = || Stream { count: more, bad: None, is_missing: false };
            check(&stream().shuffle_buffer(size), shard, 2)?;
            check(&IterableDataset::map(stream().shuffle_buffer(size), noisy).shuffle_buffer(outer), shard, 2)?;
            check(&stream().chain(other()).chain(other()), shard, 2)?;
            check(&stream().shuffle_buffer(size).chain(other().shuffle_buffer(size)).shuffle_buffer(outer), shard, 1)?;
            check(&IterableDataset::map(stream(), noisy).filter(kept).shuffle_buffer(size).take(limit), shard, 1)?;
            check(&stream().interleave(outer).shuffle_buffer(size), shard, 1)?;
            let streams = [stream(), other(), Stream { count: 3, ..stream() }, other(), stream()];
            check(&InterleaveDataset::new(streams.map(|stream| stream.shuffle_buffer(size)), outer), shard, 2)?;
            check(&stream().take(limit).chain(other()).shuffle_buffer(size).filter(kept), shard, 1)?;
            let missing = || Stream { is_missing: true, ..stream() };
            check(&stream().chain(missing()).shuffle_buffer(size).filter(kept), shard, 2)?;
            check(&InterleaveDataset::new([stream(), missing(), other()], outer).shuffle_buffer(size), shard, 1)?;
            let nested = InterleaveDataset::new([other().chain(missing()), stream().chain(other())], outer);
            check(&nested.chain(stream()).take(limit), shard, 1)?;
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn a_resumed_mix_gives_the_remaining_items(
            (one, two, bad) in (1u64..30, 1u64..30, prop_oneof![Just(None), (2u64..9).prop_map(Some)]),
            rule in prop_oneof![Just(MixRule::Even), Just(MixRule::ErrorDriven), Just(MixRule::Random)],
            exhausted in prop_oneof![Just(Exhausted::Stop), Just(Exhausted::Repeat), Just(Exhausted::Drop)],
            (at, samples) in (0u64..20, prop::option::of(1u64..60)),
            (index, shards) in prop_oneof![Just((0usize, 1usize)), Just((1, 2))],
        ) {
            let shard = Shard::new(index, shards);
            let mut mix = Mix::new([2.0, 1.0, 0.5]).unwrap().rule(rule).exhausted(exhausted);
            mix = mix.change(1, at, [1.0, 0.0, 1.0]).unwrap().change(1, at + 7, [0.3, 0.3, 0.4]).unwrap();
            if let Some(samples) = samples {
                mix = mix.num_samples(samples).unwrap();
            }
            let stream = |count, bad| Stream { count: count + shards as u64, bad, is_missing: false }.shuffle_buffer(3);
            let streams = [stream(one, bad), stream(two, None), stream(4, None)];
            check(&MixDataset::new(streams, mix).unwrap().shuffle_buffer(2), shard, 1)?;
            check(&Plain { first: 0, len: one as usize }.into_stream().shuffle(true), shard, 2)?;
        }
    }

    fn document(number: u64) -> Vec<i64> {
        vec![number as i64 + 1; (number * 7 % 15) as usize]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn a_resumed_packed_stream_gives_the_remaining_windows(
            (count, window, look_ahead) in (0u64..40, 1usize..12, 1usize..9),
            method in prop_oneof![Just(PackMethod::Concatenate), Just(PackMethod::FirstFit), Just(PackMethod::BestFit)],
            long in prop_oneof![Just(LongDocuments::Error), Just(LongDocuments::Split), Just(LongDocuments::Truncate)],
            (bad, drop_last) in (prop_oneof![Just(None), (2u64..9).prop_map(Some)], any::<bool>()),
            (index, shards) in prop_oneof![Just((0usize, 1usize)), Just((1, 2))],
        ) {
            let shard = Shard::new(index, shards);
            let numbers = || Stream { count, bad, is_missing: false }.shuffle_buffer(3);
            let packing = Packing::new(window).method(method).look_ahead(look_ahead).long_documents(long).drop_last(drop_last);
            let packed = IterableDataset::map(numbers(), |(number, _), _cx| Ok(document(number))).pack(packing).unwrap();
            check(&packed, shard, 2)?;

            // No token is lost or doubled.
            let context = || SampleContext::for_shard(None, 7, 1, shard);
            let (numbers, mut cx) = (numbers(), context());
            let read = numbers.iter(shard, &mut cx).unwrap().flatten().map(|(number, _)| document(number));
            let mut expected: Vec<i64> = read.flat_map(|document| match (method, long) {
                (PackMethod::Concatenate, _) | (_, LongDocuments::Split) => document,
                (_, LongDocuments::Truncate) => document.into_iter().take(window).collect(),
                (_, LongDocuments::Error) => Some(document).filter(|document| document.len() <= window).unwrap_or_default(),
            }).collect();
            let windows: Vec<_> = packed.iter(shard, &mut context()).unwrap().flatten().collect();
            let mut found: Vec<i64> = Vec::new();
            for packed in &windows {
                let end = *packed.cu_seqlens.last().unwrap() as usize;
                prop_assert!(end > 0 && end <= window);
                found.extend(&packed.tokens.as_slice()[..end]);
                for (segment, ends) in (1..).zip(packed.cu_seqlens.windows(2)) {
                    let range = ends[0] as usize..ends[1] as usize;
                    prop_assert!(packed.positions.as_slice()[range.clone()].iter().copied().eq(0..range.len() as i64));
                    prop_assert!(packed.segments.as_slice()[range.clone()].iter().all(|&other| other == segment));
                    prop_assert!(packed.tokens.as_slice()[range.clone()].iter().all(|&token| token == packed.tokens.as_slice()[range.start]));
                }
                for tensor in [&packed.tokens, &packed.positions, &packed.segments] {
                    prop_assert!(tensor.as_slice()[end..].iter().all(|&number| number == 0));
                }
            }
            if method == PackMethod::Concatenate {
                if drop_last {
                    expected.truncate(expected.len() / window * window);
                }
                prop_assert_eq!(windows.len(), expected.len().div_ceil(window));
            } else {
                expected.sort_unstable();
                found.sort_unstable();
            }
            prop_assert_eq!(found, expected);
        }
    }

    #[test]
    fn invalid_packings_and_long_documents_are_typed_errors() {
        let documents = || {
            IterableDataset::map(Stream { count: 3, bad: None, is_missing: false }, |_, _cx| {
                Ok(vec![7u16; 9])
            })
        };
        let pack = |packing| documents().pack(packing).map(|_| ());
        assert_eq!(pack(Packing::new(0)), Err(PackError::InvalidWindow { window: 0 }));
        assert_eq!(pack(Packing::new(65_536)), Err(PackError::InvalidWindow { window: 65_536 }));
        assert_eq!(pack(Packing::new(4).pad(-1)), Err(PackError::InvalidPad { pad: -1 }));
        assert_eq!(pack(Packing::new(4).look_ahead(0)), Err(PackError::NoLookAhead));
        let packed = documents().pack(Packing::new(8).method(PackMethod::BestFit)).unwrap();
        let shard = Shard::new(0, 1);
        let items: Vec<_> = packed.iter(shard, &mut SampleContext::new(0)).unwrap().collect();
        let errors = items.into_iter().map(|item| item.unwrap_err().downcast::<PackError>().unwrap());
        assert!(errors.eq(vec![PackError::TooLong { tokens: 9, window: 8 }; 3]));
    }

    #[test]
    fn resuming_fails_if_the_stream_has_become_shorter() {
        let shard = Shard::new(0, 1);
        let buffer = |count| Stream { count, bad: None, is_missing: false }.shuffle_buffer(5);
        let long = buffer(100);
        let mut cx = SampleContext::new(0);
        let mut items = long.iter_from(shard, &mut cx, None).unwrap();
        items.by_ref().take(50).for_each(drop);
        let snapshot = items.snapshot().unwrap();
        let mut cx = SampleContext::new(0);
        let error = buffer(20).iter_from(shard, &mut cx, Some(snapshot)).err().expect("it is too short");
        assert!(error.to_string().contains("had 55 or more when"), "{error:#}");
    }

    /// The oldest sample in a buffer of `size` samples entered it on average `size * ln(size)` items ago: the
    /// sum of `size / k` for `k` from 1 to `size`.
    #[test]
    fn a_resumed_buffer_reads_a_bounded_number_of_items_again() {
        const SIZE: usize = 200;
        let stream = Stream { count: 40_000, bad: None, is_missing: false }.shuffle_buffer(SIZE);
        let mut cx = SampleContext::new(3);
        let mut items = stream.iter_from(Shard::new(0, 1), &mut cx, None).unwrap();
        let mut again = Vec::new();
        for _ in 0..38 {
            items.by_ref().take(1000).for_each(drop);
            again.push(items.snapshot().unwrap().items_read_again());
        }
        let mean = again.iter().sum::<u64>() / again.len() as u64;
        // 200 * (ln 200 + 0.58) is 1,176; the distance between marks adds up to a quarter of the buffer.
        assert!((1_000..1_500).contains(&mean), "{mean} of {again:?}");
    }
}
