//! State: what is left is what would have come.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use loader_core::{Error, Iter, State, collate::Batch, prelude::*};
use loader_tests::{
    Watchdog,
    datasets::{Count, Noise, Shards},
    gate::{Gate, Gated, GatedStream},
    ways::{Way, all},
};
use serde::{Deserialize, Serialize};

use crate::interrupted::{WAYS, saved, stateful};

// PyTorch: 230, 231, 232, 233, 234, 248, T01
#[test]
fn the_state_before_anything_was_loaded() {
    let _watchdog = Watchdog::start();
    for way in WAYS {
        let build =
            || way.of(DataLoader::stream(stateful()).snapshots().shards(3).batch_size(4)).build().unwrap();
        let loader = build();
        // Before there is an iterator, and before it gave anything: both stand for the same.
        let (before, at_start) = (saved(&loader.state()), saved(&loader.iter().unwrap().state()));
        let expected = all(build().iter().unwrap());
        drop(loader.iter().unwrap().next());
        for state in [&before, &at_start] {
            for _ in 0..2 {
                assert_eq!(all(build().resume(state).unwrap()), expected, "{way:?}");
                assert_eq!(all(loader.resume(state).unwrap()), expected, "{way:?}");
            }
        }
    }
    // Saved at 0 and at 4: from 4 on, and the whole epoch.
    for way in WAYS {
        let build = || way.of(DataLoader::builder(Count(10)).shuffle(true).seed(2)).build().unwrap();
        let loader = build();
        let mut batches = loader.iter().unwrap();
        let at_0 = saved(&batches.state());
        let first: Vec<_> = batches.by_ref().take(4).map(Result::unwrap).collect();
        let at_4 = saved(&batches.state());
        let rest = all(batches);
        assert_eq!(all(build().resume(&at_4).unwrap()), rest);
        assert_eq!(all(build().resume(&at_0).unwrap()), [first, rest].concat());
    }
}

/// Inside the loop after the last batch, or behind the loop: in both cases what comes is the next epoch. PyTorch's resumes with an epoch
/// of no batches in the first case.
// PyTorch: 235, 236, 237, 238, 239, 259, T15
#[test]
fn the_end_of_an_epoch() {
    let _watchdog = Watchdog::start();
    fn check<B: Batch + PartialEq + std::fmt::Debug>(build: impl Fn(Way) -> DataLoader<B>) {
        let reference = build(WAYS[0]);
        let [first, second] = [0, 1].map(|_| all(reference.iter().unwrap()));
        for way in WAYS {
            let loader = build(way);
            let mut batches = loader.iter().unwrap();
            batches.by_ref().take(first.len()).for_each(|batch| drop(batch.unwrap()));
            let inside = saved(&batches.state());
            assert!(batches.next().is_none());
            let behind = saved(&batches.state());
            drop(batches);
            for state in [inside, behind, saved(&loader.state())] {
                let resumed = build(way);
                assert_eq!(all(resumed.resume(&state).unwrap()), second, "{way:?}");
                assert_eq!(resumed.state().epoch(), 2);
            }
            assert_eq!(all(loader.iter().unwrap()), second);
        }
    }
    check(|way| {
        way.of(DataLoader::builder(Noise { count: 20 }).shuffle(true).batch_size(4)).build().unwrap()
    });
    check(|way| way.of(DataLoader::stream(stateful()).snapshots().shards(3).batch_size(4)).build().unwrap());
    check(|way| way.of(DataLoader::stream(stateful()).shards(3).batch_size(4)).build().unwrap());
    check(|way| way.of(DataLoader::stream(stateful()).snapshots().shards(3).unbatched()).build().unwrap());
}

/// PyTorch refuses another number of workers.
// PyTorch: 240, T07
#[test]
fn another_number_of_workers() {
    let _watchdog = Watchdog::start();
    let map = |workers| {
        let builder = DataLoader::builder(Noise { count: 40 }).batch_size(3).shuffle(true);
        builder.num_workers(workers).build().unwrap()
    };
    let stream = |workers| {
        let builder = DataLoader::stream(stateful()).snapshots().shards(3).batch_size(4);
        builder.num_workers(workers).build().unwrap()
    };
    for (before, after) in [(0, 3), (3, 0), (1, 4), (4, 2)] {
        let mut batches = map(before).iter().unwrap();
        batches.by_ref().take(5).for_each(drop);
        let state = saved(&batches.state());
        assert_eq!(all(map(after).resume(&state).unwrap()), all(batches));
        let mut batches = stream(before).iter().unwrap();
        batches.by_ref().take(5).for_each(drop);
        let state = saved(&batches.state());
        assert_eq!(all(stream(after).resume(&state).unwrap()), all(batches));
    }
    // A dataset whose shards are as many as the workers is another one with other workers: that is said.
    let by_workers =
        |workers| DataLoader::stream(Shards::of(&[9, 9, 9])).num_workers(workers).build().unwrap();
    let state = by_workers(3).iter().unwrap().state();
    let error = by_workers(2).resume(&state).unwrap_err();
    assert!(error.to_string().contains("number of shards (see `shards`) is 3, the loader's is 2"), "{error}");
}

// PyTorch: 242, 243, 256, 257, T03
#[test]
fn a_state_soon_after_a_resume_is_whole() {
    let _watchdog = Watchdog::start();
    for every in [1, 17] {
        let build = || {
            let builder = DataLoader::stream(stateful()).snapshots().snapshot_every(every).shards(3);
            builder.batch_size(2).num_workers(4).build().unwrap()
        };
        let mut batches = build().iter().unwrap();
        batches.by_ref().take(19).for_each(drop);
        let mut state = saved(&batches.state());
        let mut rest = all(batches);
        while !rest.is_empty() {
            let mut resumed = build().resume(&state).unwrap();
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

// PyTorch: 249, 250, 253, T02
#[test]
fn the_last_state_given_counts() {
    let _watchdog = Watchdog::start();
    for way in WAYS {
        let build =
            || way.of(DataLoader::builder(Noise { count: 30 }).shuffle(true).batch_size(4)).build().unwrap();
        let mut batches = build().iter().unwrap();
        batches.by_ref().take(3).for_each(drop);
        let state = saved(&batches.state());
        let rest = all(batches);
        let loader = build();
        assert_eq!((loader.state().epoch(), loader.state().batches()), (0, 0));
        let resumed = loader.resume(&state).unwrap();
        assert_eq!(saved(&resumed.state()), state, "at once");
        assert_eq!(all(resumed), rest);
        // A state may be used again, by a loader that has gone on since.
        assert_eq!(all(loader.iter().unwrap()).len(), 8);
        assert_eq!(all(loader.resume(&state).unwrap()), rest);
    }
}

/// A snapshot may grow and shrink, and a state that was taken does not change any more.
// PyTorch: 254, 255, T12, T14
#[test]
fn snapshots_of_any_size() {
    #[derive(Serialize, Deserialize)]
    struct Hoard;
    struct Hoarded(u64, Vec<u64>);
    impl Iterator for Hoarded {
        type Item = anyhow::Result<(u64, u64)>;

        fn next(&mut self) -> Option<Self::Item> {
            self.0 += 1;
            // Grows, then is cleared, and grows again.
            match self.0 {
                n if n % 400 == 0 => self.1.clear(),
                n => self.1.push(n),
            }
            (self.0 <= 1200).then_some(Ok((self.0, self.1.len() as u64)))
        }
    }
    impl SnapshotIterator for Hoarded {
        type Snapshot = (u64, Vec<u64>);

        fn snapshot(&self) -> anyhow::Result<Self::Snapshot> {
            Ok((self.0, self.1.clone()))
        }
    }
    impl IterableDataset for Hoard {
        type Sample = (u64, u64);

        fn iter(
            &self,
            shard: Shard,
            cx: &mut SampleContext,
        ) -> anyhow::Result<impl Iterator<Item = anyhow::Result<(u64, u64)>> + Send> {
            self.iter_from(shard, cx, None)
        }
    }
    impl SnapshotDataset for Hoard {
        type Snapshot = (u64, Vec<u64>);

        fn iter_from(
            &self,
            _shard: Shard,
            _cx: &mut SampleContext,
            snapshot: Option<Self::Snapshot>,
        ) -> anyhow::Result<
            impl SnapshotIterator<Item = anyhow::Result<(u64, u64)>, Snapshot = Self::Snapshot> + Send,
        > {
            let (next, held) = snapshot.unwrap_or_default();
            Ok(Hoarded(next, held))
        }
    }
    let _watchdog = Watchdog::start();
    for way in WAYS {
        let build = || {
            let builder = DataLoader::stream(Hoard).snapshots().shards(1).batch_size(100);
            way.of(builder).build().unwrap()
        };
        let loader = build();
        let mut batches = loader.iter().unwrap();
        let mut states = vec![batches.state()];
        let mut expected = Vec::new();
        while let Some(batch) = batches.next() {
            expected.push(batch.unwrap());
            states.push(batches.state());
        }
        let texts: Vec<String> = states.iter().map(|state| serde_json::to_string(state).unwrap()).collect();
        assert!(texts[3].len() > texts[1].len() && texts[4].len() < texts[3].len(), "they grow and shrink");
        for (stop, text) in texts.iter().enumerate().take(12) {
            let state: State = serde_json::from_str(text).unwrap();
            assert_eq!(all(build().resume(&state).unwrap()), expected[stop..]);
        }
        // Less than what the place itself takes is not added for being both dataset and iterator.
        assert!(texts[1].len() < 600 + 2 * 9 * 100, "{}", texts[1].len());
    }
}

// PyTorch: 258, 261, U13
#[test]
fn many_epochs() {
    let _watchdog = Watchdog::start();
    for (workers, stays) in [(0, false), (2, false), (2, true)] {
        for shuffle in [false, true] {
            let build = || {
                let dataset = Count(20).map(|number, cx| Ok((number, cx.epoch())));
                let builder = DataLoader::builder(dataset).batch_size(3).shuffle(shuffle);
                builder.num_workers(workers).persistent_workers(stays).build().unwrap()
            };
            let whole = build();
            let expected = [0, 1, 2, 3].map(|_| all(whole.iter().unwrap()));
            let loader = build();
            (0..2).for_each(|_| drop(all(loader.iter().unwrap())));
            let state = saved(&loader.state());
            let resumed = build();
            assert_eq!(all(resumed.resume(&state).unwrap()), expected[2]);
            assert_eq!(all(resumed.iter().unwrap()), expected[3]);
            assert_eq!(expected[3][0].1.as_slice(), [3; 3], "the dataset's own count of epochs");
        }
    }
}

/// A stream is opened once a shard and epoch, also when it is resumed.
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
    let build =
        |workers| DataLoader::stream(Opens).shards(2).batch_size(2).num_workers(workers).build().unwrap();
    let opened = |loader: &DataLoader<Tensor<u64>>, stop| {
        let mut batches = loader.iter().unwrap();
        batches.by_ref().take(stop).for_each(drop);
        let state = saved(&batches.state());
        let counts = all(loader.resume(&state).unwrap());
        counts.iter().map(|batch| batch.as_slice()[0]).max()
    };
    // Each worker has one of the two shards; a fresh process has opened one.
    assert_eq!(opened(&build(2), 3), Some(1));
    assert_eq!(opened(&build(1), 3), Some(2), "one worker has both");
    assert_eq!(opened(&build(0), 3), Some(4), "here both, for two iterators");
}

// PyTorch: 264, T19
#[test]
fn out_of_order_and_resumed() {
    let _watchdog = Watchdog::start();
    for (slow, stop) in [(0, 3), (3, 6), (9, 5)] {
        for stays in [false, true] {
            let gate = Gate::closed();
            let dataset = Gated { count: 10, slow, gate: gate.path() };
            let builder = DataLoader::builder(dataset).num_workers(2).in_order(false);
            let loader = builder.persistent_workers(stays).build().unwrap();
            let mut batches = loader.iter().unwrap();
            let seen = loaded(&mut batches, stop);
            assert!(!seen.contains(&slow));
            let state = saved(&batches.state());
            gate.open();
            drop(batches);
            assert_rest_comes(&loader, seen, &state, 10);
        }
    }
}

/// Of two shards either the first one is over when the state is taken, or none.
// PyTorch: 265, 266, T19
#[test]
fn streams_out_of_order_and_resumed() {
    let _watchdog = Watchdog::start();
    // The second shard waits at its first sample. Of 40 samples at most 7 are on their way after 3.
    for (count, slow, stop) in [(10, 5, 5), (40, 20, 3)] {
        for stays in [false, true] {
            let gate = Gate::closed();
            let dataset = GatedStream(Gated { count, slow, gate: gate.path() });
            let builder = DataLoader::stream(dataset).num_workers(2).in_order(false);
            let builder = builder.persistent_workers(stays).timeout(Duration::from_millis(200));
            let loader = builder.build().unwrap();
            let mut batches = loader.iter().unwrap();
            let seen = loaded(&mut batches, stop);
            assert!(seen.iter().copied().eq(0..stop as u64), "those of the first shard: {seen:?}");
            if stop == 5 {
                // The first shard has no more.
                let error = batches.next().unwrap().unwrap_err();
                assert!(matches!(error, Error::TimedOut { .. }), "{error}");
            }
            let state = saved(&batches.state());
            assert_eq!(positions(&state), [stop as u64, 0]);
            gate.open();
            drop(batches);
            assert_rest_comes(&loader, seen, &state, count);
        }
    }
}

type Numbered = (Tensor<u64>, Tensor<u64>);

/// The numbers of the next `count` samples.
fn loaded(batches: &mut Iter<Numbered>, count: usize) -> Vec<u64> {
    let batches = batches.filter(|batch| !matches!(batch, Err(Error::TimedOut { .. })));
    batches.take(count).map(|batch| batch.unwrap().0.as_slice()[0]).collect()
}

/// Resumes: with what was `seen` before, each of `count` samples came once.
fn assert_rest_comes(loader: &DataLoader<Numbered>, mut seen: Vec<u64>, state: &State, count: u64) {
    seen.extend(loaded(&mut loader.resume(state).unwrap(), usize::MAX));
    seen.sort_unstable();
    assert!(seen.iter().copied().eq(0..count), "{seen:?}");
}

/// How many samples of each shard came before the state was taken.
fn positions(state: &State) -> Vec<u64> {
    let state = serde_json::to_value(state).unwrap();
    let shards = state["place"]["shards"]["shards"].as_array().unwrap_or_else(|| panic!("{state}"));
    shards.iter().map(|shard| shard["position"].as_u64().unwrap()).collect()
}

/// A stateful loader and another one side by side.
// PyTorch: 241
#[test]
fn two_loaders() {
    let _watchdog = Watchdog::start();
    let build = |workers| {
        let builder = DataLoader::builder(Noise { count: 20 }).batch_size(3).shuffle(true);
        builder.num_workers(workers).build().unwrap()
    };
    let (one, two) = (build(2), build(0));
    let mut states = Vec::new();
    let (mut left, mut right) = (one.iter().unwrap(), two.iter().unwrap());
    while let (Some(one), Some(two)) = (left.next(), right.next()) {
        assert_eq!(one.unwrap(), two.unwrap());
        assert_eq!(left.state(), right.state());
        states.push(left.state());
    }
    assert_eq!(states.len(), 7);
}

/// The shared counter that shows which errors a resumed loader has: those behind the place, at theirs.
// PyTorch: 252
#[test]
fn errors_after_a_resume() {
    let _watchdog = Watchdog::start();
    let warned = Arc::new(AtomicU64::new(0));
    for way in WAYS {
        let counted = Arc::clone(&warned);
        let dataset = Count(12).map(|number, _| {
            anyhow::ensure!(number % 5 != 3, "three in five");
            Ok(number)
        });
        let builder = DataLoader::builder(dataset).batch_size(2).on_warning(move |_| {
            counted.fetch_add(1, Ordering::SeqCst);
        });
        let loader = way.of(builder).build().unwrap();
        let mut batches = loader.iter().unwrap();
        let good: Vec<bool> = batches.by_ref().take(3).map(|batch| batch.is_ok()).collect();
        assert_eq!(good, [true, false, true]);
        let state = saved(&batches.state());
        let mut rest = loader.resume(&state).unwrap();
        assert!(rest.next().unwrap().is_ok());
        let error = rest.next().unwrap().unwrap_err();
        let Error::DatasetFailed { index: Some(8), batch: 4, .. } = &error else { panic!("{error:?}") };
        assert_eq!(saved(&rest.state()).batches(), 5);
    }
}
