//! What a state says, when it may be taken, and how large it is.

use std::{
    fmt::Debug,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use loader_core::{Error, Iter, State, collate::Batch, prelude::*};
use loader_tests::{
    Watchdog,
    datasets::{Count, Hoard, Noise, Squares},
    gate::{Gate, Gated, GatedStream},
    ways::{Way, all},
};
use serde::{Deserialize, Serialize};

use crate::{
    resumed::{WAYS, saved},
    streams::Stateful,
};

/// A state may be used again, by the same loader and by another one.
// PyTorch: 230, 231, 232, 233, 234, 248, 249, 250, 253, T01, T02
#[test]
fn the_state_before_the_first_batch() {
    let _watchdog = Watchdog::start();
    for way in WAYS {
        let build =
            || way.apply(DataLoader::stream(Stateful).snapshots().shards(3).batch_size(4)).build().unwrap();
        let loader = build();
        assert_eq!((loader.state().epoch(), loader.state().batches()), (0, 0));
        // Before there is an iterator, and before it returned a batch.
        let states = [saved(&loader.state()), saved(&loader.iter().unwrap().state())];
        let expected = all(build().iter().unwrap());
        drop(loader.iter().unwrap().next());
        for state in &states {
            for _ in 0..2 {
                assert_eq!(all(build().resume(state).unwrap()), expected, "{way:?}");
                assert_eq!(all(loader.resume(state).unwrap()), expected, "{way:?}");
            }
        }
    }
}

/// A state that was taken after the last batch stays in the epoch until `next` has returned `None`: the iterator that
/// resumes from it has no batches, and the digest of the whole epoch.
// PyTorch: 235, 236, 237, 238, 239, 259, T15
#[test]
fn a_state_stays_in_its_epoch_until_next_has_returned_none() {
    let _watchdog = Watchdog::start();
    fn check<B: Batch + PartialEq + Debug>(build: impl Fn(Way) -> DataLoader<B>) {
        let reference = build(WAYS[0]);
        let [first, second] = [0, 1].map(|_| all(reference.iter().unwrap()));
        for way in WAYS {
            let loader = build(way);
            let mut batches = loader.iter().unwrap();
            batches.by_ref().take(first.len()).for_each(|batch| drop(batch.unwrap()));
            let inside = saved(&batches.state());
            assert_eq!((inside.epoch(), inside.batches()), (0, first.len() as u64));
            assert!(batches.next().is_none());
            let after = saved(&batches.state());
            let digest = batches.report().digest.unwrap();
            drop(batches);
            assert_eq!((after.epoch(), after.batches()), (1, 0));
            for resumed in [&loader, &build(way)] {
                let mut rest = resumed.resume(&inside).unwrap();
                assert!(rest.next().is_none(), "{way:?}");
                assert_eq!((rest.epoch(), rest.report().digest.unwrap()), (0, digest), "{way:?}");
                assert_eq!(rest.state(), after, "{way:?}");
                let batches = resumed.resume(&after).unwrap();
                assert_eq!(batches.epoch(), 1, "{way:?}");
                assert_eq!(all(batches), second, "{way:?}");
                assert_eq!(resumed.iter().unwrap().epoch(), 2);
            }
            // The loop that also begins a run.
            for (start, expected) in [(inside, 0), (after, 0), (loader.state_at(0), first.len())] {
                let (mut state, mut batches) = (start, 0);
                while state.epoch() < 1 {
                    let mut rest = loader.resume(&state).unwrap();
                    batches += rest.by_ref().map(Result::unwrap).count();
                    state = rest.state();
                }
                assert_eq!(batches, expected, "{way:?}");
            }
        }
    }
    let stream = || DataLoader::stream(Stateful).shards(3).digest(true);
    for drop_last in [false, true] {
        check(|way| {
            let noise = DataLoader::builder(Noise { count: 21 }).shuffle(true).batch_size(4).digest(true);
            way.apply(noise.drop_last(drop_last)).build().unwrap()
        });
        check(|way| way.apply(stream().batch_size(4).drop_last(drop_last)).build().unwrap());
    }
    check(|way| way.apply(stream().snapshots().batch_size(4)).build().unwrap());
    check(|way| way.apply(stream().snapshots().unbatched()).build().unwrap());
    check(|way| way.apply(stream().snapshots().batch_size(4).steps_per_epoch(5)).build().unwrap());
}

// PyTorch: 242, 243, 256, 257, T03
#[test]
fn a_state_soon_after_a_resume_is_complete() {
    let _watchdog = Watchdog::start();
    for every in [1, 17] {
        let build = || {
            let builder = DataLoader::stream(Stateful).snapshots().snapshot_every(every).shards(3);
            builder.batch_size(2).num_workers(4).build().unwrap()
        };
        let mut batches = build().iter().unwrap();
        batches.by_ref().take(19).for_each(drop);
        let mut state = saved(&batches.state());
        let mut rest = all(batches);
        while !rest.is_empty() {
            let mut resumed = build().resume(&state).unwrap();
            assert_eq!(saved(&resumed.state()), state);
            let stop = rest.len().min(2);
            assert!(resumed.by_ref().take(stop).map(Result::unwrap).eq(rest.drain(..stop)));
            state = saved(&resumed.state());
            if rest.len() > 40 {
                // Far enough to reach the next snapshot.
                assert!(resumed.by_ref().take(15).map(Result::unwrap).eq(rest.drain(..15)));
                state = saved(&resumed.state());
            }
        }
    }
}

/// A snapshot may grow and shrink.
// PyTorch: 254, 255, T12, T14
#[test]
fn snapshots_of_any_size_resume() {
    let _watchdog = Watchdog::start();
    for way in WAYS {
        let build = || {
            let dataset = Hoard { count: 1200, bytes: 9, emptied_every: 400 };
            way.apply(DataLoader::stream(dataset).snapshots().shards(1).batch_size(100)).build().unwrap()
        };
        let mut batches = build().iter().unwrap();
        let mut states = vec![batches.state()];
        let mut expected = Vec::new();
        while let Some(batch) = batches.next() {
            expected.push(batch.unwrap());
            states.push(batches.state());
        }
        let texts: Vec<String> = states.iter().map(|state| serde_json::to_string(state).unwrap()).collect();
        assert!(texts[3].len() > texts[1].len() && texts[4].len() < texts[3].len());
        for (stop, text) in texts.iter().enumerate().take(12) {
            let state: State = serde_json::from_str(text).unwrap();
            assert_eq!(all(build().resume(&state).unwrap()), expected[stop..]);
        }
        // Two hexadecimal digits for each byte of the snapshot, and little else.
        assert!(texts[1].len() < 650 + 2 * 9 * 100, "{}", texts[1].len());
    }
}

/// Each sample of [`Squares`] tells how many samples its iterator has read.
// PyTorch: T13
#[test]
fn a_snapshot_saves_reading_what_was_returned_before() {
    let _watchdog = Watchdog::start();
    for workers in [0, 2] {
        let builder = DataLoader::stream(Squares { count: 1000 }).snapshots().shards(2).batch_size(10);
        let loader = builder.num_workers(workers).build().unwrap();
        let mut batches = loader.iter().unwrap();
        batches.by_ref().take(40).for_each(|batch| drop(batch.unwrap()));
        let (_, read) = loader.resume(&batches.state()).unwrap().next().unwrap().unwrap();
        assert_eq!(read.as_slice()[0], 1);

        // A shuffle buffer reads the samples again that it contained.
        let dataset = Squares { count: 20_000 }.shuffle_buffer(10);
        let loader = DataLoader::stream(dataset).snapshots().shards(1).batch_size(10).num_workers(workers);
        let loader = loader.build().unwrap();
        let mut batches = loader.iter().unwrap();
        batches.by_ref().take(1500).for_each(|batch| drop(batch.unwrap()));
        let (_, read) = loader.resume(&batches.state()).unwrap().next().unwrap().unwrap();
        let max = read.as_slice().iter().max().unwrap();
        assert!(*max < 150, "{max} samples were read; 15,000 were returned before the state was taken");
    }
}

// PyTorch: 258, 261, U13
#[test]
fn a_dataset_sees_the_right_epoch_after_a_resume() {
    let _watchdog = Watchdog::start();
    for way in WAYS {
        for shuffle in [false, true] {
            let build = || {
                let dataset = Count(20).map(|number, cx| Ok((number, cx.epoch())));
                way.apply(DataLoader::builder(dataset).batch_size(3).shuffle(shuffle)).build().unwrap()
            };
            let whole = build();
            let expected = [0, 1, 2, 3].map(|_| all(whole.iter().unwrap()));
            let loader = build();
            (0..2).for_each(|_| drop(all(loader.iter().unwrap())));
            let state = saved(&loader.state());
            let resumed = build();
            assert_eq!(all(resumed.resume(&state).unwrap()), expected[2]);
            assert_eq!(all(resumed.iter().unwrap()), expected[3]);
            assert_eq!(expected[3][0].1.as_slice(), [3; 3]);
        }
    }
}

/// A shard is opened once per epoch, and once per resumed epoch.
// PyTorch: 262, 263
#[test]
fn a_shard_is_opened_once() {
    static OPENED: AtomicU64 = AtomicU64::new(0);
    #[derive(Serialize, Deserialize)]
    struct Opens;
    impl IterableDataset for Opens {
        type Sample = u64;

        fn iter(
            &self,
            _shard: Shard,
            _cx: &mut SampleContext,
        ) -> anyhow::Result<impl Iterator<Item = anyhow::Result<u64>> + Send> {
            let opened = OPENED.fetch_add(1, Ordering::SeqCst) + 1;
            Ok((0..10).map(move |_| Ok(opened)))
        }
    }
    let _watchdog = Watchdog::start();
    // Returns the maximum number of shards that one process has opened.
    let opened = |workers| {
        let loader = DataLoader::stream(Opens).shards(2).batch_size(2).num_workers(workers).build().unwrap();
        let mut batches = loader.iter().unwrap();
        batches.by_ref().take(3).for_each(drop);
        let state = saved(&batches.state());
        let counts = all(loader.resume(&state).unwrap());
        counts.iter().map(|batch| batch.as_slice()[0]).max()
    };
    assert_eq!(opened(2), Some(1), "each worker has one of the two shards");
    assert_eq!(opened(1), Some(2), "the worker has both");
    assert_eq!(opened(0), Some(4), "main has both, of two iterators");
}

type Numbered = (Tensor<u64>, Tensor<u64>);

/// Returns the numbers of the next `count` samples.
fn loaded(batches: &mut Iter<Numbered>, count: usize) -> Vec<u64> {
    let batches = batches.filter(|batch| !matches!(batch, Err(Error::TimedOut { .. })));
    batches.take(count).map(|batch| batch.unwrap().0.as_slice()[0]).collect()
}

/// Checks that each of `count` samples came once.
fn assert_complete(mut seen: Vec<u64>, count: u64) {
    seen.sort_unstable();
    assert!(seen.iter().copied().eq(0..count), "{seen:?}");
}

/// The rest is loaded in order or not, and interrupted again.
// PyTorch: 264, T19
#[test]
fn out_of_order_a_resumed_epoch_has_what_was_not_returned() {
    let _watchdog = Watchdog::start();
    for (slow, stop) in [(0, 9), (3, 6), (9, 5)] {
        for persistent in [false, true] {
            let gate = Gate::closed();
            let build = |workers, in_order| {
                let dataset = Gated { count: 20, slow, gate: gate.path() };
                let builder = DataLoader::builder(dataset).in_order(in_order);
                Way { workers, persistent: persistent && workers > 0 }.apply(builder).build().unwrap()
            };
            let loader = build(2, false);
            let mut batches = loader.iter().unwrap();
            let seen = loaded(&mut batches, stop);
            assert!(!seen.contains(&slow));
            let state = saved(&batches.state());
            assert_eq!(state.batches(), stop as u64);
            gate.open();
            drop(batches);
            for (resumed, in_order) in [(&build(0, true), true), (&build(2, true), true), (&loader, false)] {
                let mut rest = resumed.resume(&state).unwrap();
                assert_eq!(rest.size_hint(), (20 - stop, Some(20 - stop)));
                let mut numbers = loaded(&mut rest, 3);
                let state = saved(&rest.state());
                drop(rest);
                numbers.extend(loaded(&mut resumed.resume(&state).unwrap(), usize::MAX));
                assert!(numbers.is_sorted() || !in_order, "{numbers:?}");
                assert_complete([&seen[..], &numbers].concat(), 20);
            }
        }
    }
}

/// When the state is taken, either the first of the two shards has ended or none.
// PyTorch: 265, 266, T19
#[test]
fn out_of_order_a_resumed_stream_has_what_was_not_returned() {
    let _watchdog = Watchdog::start();
    // The second shard waits at its first sample. Of 40 samples at most 7 are loaded when 3 have been
    // returned.
    for (count, slow, stop) in [(10, 5, 5), (40, 20, 3)] {
        for persistent in [false, true] {
            let gate = Gate::closed();
            let dataset = GatedStream(Gated { count, slow, gate: gate.path() });
            let builder = DataLoader::stream(dataset).num_workers(2).in_order(false);
            let builder = builder.persistent_workers(persistent).timeout(Duration::from_millis(200));
            let loader = builder.build().unwrap();
            let mut batches = loader.iter().unwrap();
            let mut seen = loaded(&mut batches, stop);
            assert!(seen.iter().copied().eq(0..stop as u64), "samples of the first shard: {seen:?}");
            if stop == 5 {
                // The first shard has ended.
                let error = batches.next().unwrap().unwrap_err();
                assert!(matches!(error, Error::TimedOut { .. }), "{error}");
            }
            let state = saved(&batches.state());
            assert_eq!(positions(&state), [stop as u64, 0]);
            gate.open();
            drop(batches);
            seen.extend(loaded(&mut loader.resume(&state).unwrap(), usize::MAX));
            assert_complete(seen, count);
        }
    }
}

/// Returns the number of samples of each shard that were returned before the state was taken.
fn positions(state: &State) -> Vec<u64> {
    let state = serde_json::to_value(state).unwrap();
    let shards = state["place"]["shards"]["shards"].as_array().unwrap_or_else(|| panic!("{state}"));
    shards.iter().map(|shard| shard["position"].as_u64().unwrap()).collect()
}

/// The state does not depend on the number of workers.
// PyTorch: 241
#[test]
fn two_loaders_side_by_side_have_equal_states() {
    let _watchdog = Watchdog::start();
    let build = |workers| {
        let builder = DataLoader::builder(Noise { count: 20 }).batch_size(3).shuffle(true);
        builder.num_workers(workers).build().unwrap()
    };
    let (one, two) = (build(2), build(0));
    let (mut left, mut right) = (one.iter().unwrap(), two.iter().unwrap());
    let mut batches = 0;
    while let (Some(one), Some(two)) = (left.next(), right.next()) {
        assert_eq!(one.unwrap(), two.unwrap());
        assert_eq!(left.state(), right.state());
        batches += 1;
    }
    assert_eq!(batches, 7);
}

/// A batch that failed counts as returned. A resumed epoch fails where the uninterrupted one does.
// PyTorch: 252
#[test]
fn failed_batches_before_and_after_a_resume() {
    let _watchdog = Watchdog::start();
    for way in WAYS {
        let dataset = Count(12).map(|number, _| {
            anyhow::ensure!(number % 5 != 3, "samples 3 and 8 fail");
            Ok(number)
        });
        let loader = way.apply(DataLoader::builder(dataset).batch_size(2)).build().unwrap();
        let whole = [true, false, true, true, false, true];
        for stop in [2, 3] {
            let mut batches = loader.epoch(0).unwrap();
            assert!(batches.by_ref().take(stop).map(|batch| batch.is_ok()).eq(whole[..stop].iter().copied()));
            let state = saved(&batches.state());
            assert_eq!(state.batches(), stop as u64);
            let mut rest = loader.resume(&state).unwrap();
            assert!(rest.by_ref().take(4 - stop).all(|batch| batch.is_ok()));
            let error = rest.next().unwrap().unwrap_err();
            let Error::DatasetFailed { index: Some(8), batch: 4, .. } = &error else { panic!("{error:?}") };
            assert_eq!(saved(&rest.state()).batches(), 5);
            assert!(rest.next().unwrap().is_ok() && rest.next().is_none());
        }
    }
}
