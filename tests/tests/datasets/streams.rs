//! Iterable datasets: shards, their order and ends, adaptors, and lengths that are wrong.

use std::{
    collections::BTreeSet,
    ops::Range,
    sync::{Arc, Mutex},
};

use loader_core::{
    Builder, Error, InterleaveDataset, Warning,
    kind::{Iterable, Plain},
    prelude::*,
};
use loader_tests::{
    Watchdog,
    datasets::{Counting, Shards},
    processes,
    ways::{WAYS, all, numbers, two_epochs},
};
use rand::RngExt;

/// Loads an epoch with a number of workers, and returns its samples, batch by batch.
fn batches(sizes: &[u64], workers: usize, batch_size: usize, drop_last: bool) -> Vec<Vec<u64>> {
    let builder = DataLoader::stream(Shards::of(sizes)).shards(sizes.len()).batch_size(batch_size);
    let loader = builder.drop_last(drop_last).num_workers(workers).build().unwrap();
    let mut iter = loader.iter().unwrap();
    let mut found = Vec::new();
    while let Some(batch) = iter.next() {
        let (batch, info) = (batch.unwrap(), iter.last_batch().unwrap());
        assert_eq!(info.number, found.len() as u64);
        assert_eq!(info.worker, (workers > 0).then(|| info.shard.unwrap() % workers));
        assert_eq!(info.samples, batch.len());
        found.push(batch.as_slice().to_vec());
    }
    found
}

// PyTorch: 46, F03, 3.10d
#[test]
fn shards_give_a_batch_each_in_turn_until_they_end() {
    let _watchdog = Watchdog::start();
    let range = |range: Range<u64>| range.collect::<Vec<_>>();
    for workers in [0, 1, 3, 4] {
        let complete = [range(4..11), range(11..18)];
        assert_eq!(batches(&[0, 4, 20], workers, 7, true), complete);
        let [second, third] = complete;
        assert_eq!(batches(&[0, 4, 20], workers, 7, false), [range(0..4), second, third, range(18..24)]);
    }
}

// PyTorch: N09
#[test]
fn the_order_does_not_depend_on_the_number_of_workers() {
    let _watchdog = Watchdog::start();
    for sizes in [&[5, 0, 1, 9, 30, 2, 2, 11][..], &[3], &[3, 3]] {
        let expected = batches(sizes, 0, 2, false);
        assert_eq!(expected.concat().len() as u64, sizes.iter().sum::<u64>());
        for workers in [1, 2, 3, 7, 8, 11] {
            assert_eq!(batches(sizes, workers, 2, false), expected, "{workers} workers");
        }
    }
}

// PyTorch: D03
#[test]
fn by_default_there_are_as_many_shards_as_workers() {
    let _watchdog = Watchdog::start();
    for (workers, first) in [(0, [0, 1, 2]), (2, [0, 2, 4]), (3, [0, 3, 6])] {
        let loader = DataLoader::stream(Counting { count: 20 }).batch_size(3).num_workers(workers).build();
        let (numbers, _) = loader.unwrap().iter().unwrap().next().unwrap().unwrap();
        assert_eq!(numbers.as_slice(), first);
    }
}

/// Batch `n` comes from worker `n` modulo their number, in each epoch.
// PyTorch: 53
#[test]
fn the_turns_begin_at_worker_0_in_each_epoch() {
    let _watchdog = Watchdog::start();
    for workers in [1, 2, 3] {
        for persistent in [false, true] {
            let dataset = Shards::of(&[4; 3][..workers])
                .map(|number, cx| Ok((number, cx.worker().map_or(99, |worker| worker.id() as u64))));
            let builder = DataLoader::stream(dataset).batch_size(2).num_workers(workers);
            let loader = builder.persistent_workers(persistent).build().unwrap();
            for _epoch in 0..3 {
                let mut batches = loader.iter().unwrap();
                for number in 0..2 * workers {
                    let (_, ids) = batches.next().unwrap().unwrap();
                    assert_eq!(ids.as_slice(), [(number % workers) as u64; 2]);
                    assert_eq!(batches.last_batch().unwrap().worker, Some(number % workers));
                }
                assert!(batches.next().is_none());
            }
            // The turns begin at worker 0 after an abandoned epoch too.
            drop(loader.iter().unwrap().next());
            let (_, ids) = loader.iter().unwrap().next().unwrap().unwrap();
            assert_eq!(ids.as_slice(), [0, 0]);
        }
    }
}

/// Builds a loader, and collects its warnings about a wrong length.
fn with_length_warnings(
    builder: Builder<Iterable<Plain<Shards>>>,
) -> (DataLoader<Tensor<u64>>, Arc<Mutex<Vec<Warning>>>) {
    let warnings = Arc::new(Mutex::new(Vec::new()));
    let collected = Arc::clone(&warnings);
    let builder = builder.on_warning(move |warning| {
        if matches!(warning, Warning::LongerThanLen { .. }) {
            collected.lock().unwrap().push(warning.clone());
        }
    });
    (builder.build().unwrap(), warnings)
}

// PyTorch: 46, F04
#[test]
fn workers_whose_shards_have_ended_stay_only_if_they_are_persistent() {
    let _watchdog = Watchdog::start();
    for persistent in [false, true] {
        for prefetch in [2, 3, 4] {
            let builder = DataLoader::stream(Shards { sizes: vec![0, 4, 20], stated_len: Some(24) });
            let builder = builder.num_workers(3).prefetch_factor(prefetch).persistent_workers(persistent);
            let (loader, warnings) = with_length_warnings(builder);
            assert_eq!(loader.len(), Some(24));
            for _ in 0..2 {
                let batches = loader.iter().unwrap();
                let pids = batches.worker_pids();
                let mut seen = numbers(&all(batches)).concat();
                seen.sort_unstable();
                assert!(seen.into_iter().eq(0..24));
                let left = pids.iter().filter(|&&pid| processes::exists(pid)).count();
                assert_eq!(left, if persistent { 3 } else { 0 });
            }
            assert_eq!(*warnings.lock().unwrap(), [], "the length is correct");
        }
    }
}

/// PyTorch differs: it warns about every sample beyond the length, only after the program has called `len`,
/// and it compares a number of batches with a number of samples.
// PyTorch: 46, U20
#[test]
fn a_stream_longer_than_its_length_is_warned_of_once_per_epoch() {
    let _watchdog = Watchdog::start();
    // The shards give batches of up to 7 samples in turn. The first `quiet` batches do not exceed the length.
    for (sizes, quiet, total, loaded) in [(vec![20, 20], 2, 6, 21), (vec![0, 4, 20], 3, 4, 24)] {
        for way in WAYS {
            let shards = sizes.len();
            let builder =
                DataLoader::stream(Shards { sizes: sizes.clone(), stated_len: Some(20) }).shards(shards);
            let (loader, warnings) = with_length_warnings(way.apply(builder.batch_size(7)));
            let expected = Warning::LongerThanLen { announced: 20, loaded };
            for epoch in 0..2 {
                let mut batches = loader.iter().unwrap();
                assert_eq!(batches.by_ref().take(quiet).filter(Result::is_ok).count(), quiet);
                assert_eq!(warnings.lock().unwrap().len(), epoch, "{way:?}");
                assert_eq!(batches.filter(Result::is_ok).count(), total - quiet);
                assert_eq!(*warnings.lock().unwrap(), vec![expected.clone(); epoch + 1], "{way:?}");
            }
        }
    }
}

// PyTorch: 98, U12
#[test]
fn a_shuffled_stream_depends_on_the_seed_and_the_epoch_alone() {
    let _watchdog = Watchdog::start();
    let load = |seed: u64| {
        two_epochs(|way| {
            let builder = DataLoader::stream(Counting { count: 100 }.shuffle_buffer(8)).shards(4);
            way.apply(builder.unbatched().seed(seed)).build()
        })
    };
    let epochs = load(1);
    for epoch in &epochs {
        let mut numbers: Vec<u64> = epoch.iter().map(|&(number, _)| number).collect();
        assert!(!numbers.is_sorted());
        numbers.sort_unstable();
        assert!(numbers.into_iter().eq(0..100));
    }
    assert_ne!(epochs[0], epochs[1]);
    assert_eq!(load(1), epochs);
    assert_ne!(load(2), epochs);
}

// PyTorch: 47, D03, D07
#[test]
fn streams_are_chained_and_mapped() {
    let _watchdog = Watchdog::start();
    for workers in [0, 1, 4] {
        let dataset = Shards::of(&[10]).chain(Shards::of(&[20])).chain(Shards::of(&[0]));
        let builder = DataLoader::stream(dataset).shards(1).batch_size(7).num_workers(workers);
        let batches = numbers(&all(builder.build().unwrap().iter().unwrap()));
        assert!(batches.concat().into_iter().eq((0..10).chain(0..20)));
        assert_eq!(batches[1], [7, 8, 9, 0, 1, 2, 3], "a batch can contain samples of two streams");

        let dataset = Counting { count: 6 }.chain(Counting { count: 4 }).map(|(number, _), cx| {
            anyhow::ensure!(cx.shard().is_some());
            Ok((number * 10, cx.index() as u64))
        });
        let builder = DataLoader::stream(dataset).shards(2).batch_size(10).num_workers(workers);
        let loader = builder.build().unwrap();
        assert_eq!((loader.samples(), loader.len()), (Some(10), Some(1)));
        let batches = all(loader.iter().unwrap());
        let numbers: Vec<_> = batches.iter().map(|(numbers, _)| numbers.as_slice()).collect();
        assert_eq!(numbers, [[0, 20, 40, 0, 20], [10, 30, 50, 10, 30]]);
        assert_eq!(batches[1].1.as_slice(), [0, 1, 2, 3, 4], "the positions in the shard");
    }
    assert_eq!(Counting { count: 3 }.chain(Counting { count: 4 }).len(), Some(7));
    assert_eq!(Shards::of(&[1]).chain(Counting { count: 1 }.map(|(number, _), _| Ok(number))).len(), None);
}

#[test]
fn streams_are_filtered_cut_and_interleaved() {
    let _watchdog = Watchdog::start();
    fn load<D>(dataset: D, shards: usize, workers: usize) -> Vec<Vec<u64>>
    where
        D: IterableDataset<Sample = (u64, u32)>,
    {
        let builder = DataLoader::stream(dataset).shards(shards).batch_size(4).num_workers(workers);
        let batches = all(builder.build().unwrap().iter().unwrap());
        batches.iter().map(|(numbers, _)| numbers.as_slice().to_vec()).collect()
    }
    let count = |count| Counting { count };
    let streams = || InterleaveDataset::new([count(3), count(1), count(4), count(2)], 2);
    for workers in [0, 2] {
        let filtered = count(20).filter(|(number, _), cx| {
            let shard = cx.shard().map_or(0, |shard| shard.index() as u64);
            anyhow::ensure!(*number == 2 * cx.index() as u64 + shard);
            Ok(number % 4 > 1)
        });
        let expected = [vec![2, 6, 10, 14], vec![3, 7, 11, 15], vec![18], vec![19]];
        assert_eq!(load(filtered, 2, workers), expected);
        // Of ten samples of all shards together, the first shard gives four and the others three each.
        assert_eq!(load(count(100).take(10), 3, workers).concat(), [0, 3, 6, 9, 1, 4, 7, 2, 5, 8]);
        assert_eq!(load(count(7).take(10), 2, workers).concat().len(), 7);
        assert_eq!(load(streams(), 1, workers).concat(), [0, 0, 1, 0, 2, 1, 0, 2, 1, 3]);
        assert_eq!(load(streams(), 2, workers).concat().len(), 10, "each shard has a part of each stream");
    }
    assert_eq!(count(7).take(10).len(), Some(7));
    assert_eq!(streams().len(), Some(10));
}

// PyTorch: U12
#[test]
fn no_two_functions_or_parts_draw_the_same_numbers() {
    let draw = |(_, noise): (u64, u32), cx: &mut SampleContext| {
        let first: u32 = cx.rng().random();
        Ok(vec![noise, first])
    };
    let further = |mut numbers: Vec<u32>, cx: &mut SampleContext| {
        numbers.push(cx.rng().random());
        Ok(numbers)
    };
    let part = || Counting { count: 20 }.map(draw).map(further);
    let loader = DataLoader::stream(part().chain(part())).batch_size(10).build().unwrap();
    let drawn: Vec<u32> =
        loader.iter().unwrap().flat_map(|batch| batch.unwrap().as_slice().to_vec()).collect();
    let distinct: BTreeSet<u32> = drawn.iter().copied().collect();
    assert_eq!((drawn.len(), distinct.len()), (120, 120));

    let mixed = || Counting { count: 20 }.shuffle_buffer(8);
    let loader = DataLoader::stream(mixed().chain(mixed())).batch_size(20).build().unwrap();
    let halves: Vec<Vec<u64>> =
        loader.iter().unwrap().map(|batch| batch.unwrap().0.as_slice().to_vec()).collect();
    assert_ne!(halves[0], halves[1]);
}

/// A state of one rank does not fit another rank or another world size, because the shards differ.
// PyTorch: T20
#[test]
fn a_share_of_a_stream_is_resumed_by_its_own_rank() {
    let _watchdog = Watchdog::start();
    let build = |rank, world| {
        let builder = DataLoader::stream(Counting { count: 48 }).distributed(rank, world).shards(2);
        builder.batch_size(2).num_workers(2).build().unwrap()
    };
    let mut batches = build(1, 3).iter().unwrap();
    batches.by_ref().take(3).for_each(drop);
    let state = batches.state();
    assert_eq!(all(build(1, 3).resume(&state).unwrap()), all(batches));
    for (rank, world) in [(0, 3), (2, 3), (1, 2), (1, 4)] {
        let error = build(rank, world).resume(&state).expect_err("the shards differ");
        assert!(matches!(error, Error::StateMismatch { .. }), "{error:?}");
    }
}
