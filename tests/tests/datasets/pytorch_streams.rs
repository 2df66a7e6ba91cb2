//! Iterable datasets.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
};

use loader_core::{Warning, prelude::*};
use loader_tests::{
    Watchdog,
    datasets::{Counting, Shards},
    processes,
    ways::{WAYS, all, numbers, one_epoch, two_epochs},
};

// PyTorch: 46, F04
#[test]
fn shards_of_0_4_and_20() {
    let _watchdog = Watchdog::start();
    for stays in [false, true] {
        for prefetch in [2, 3, 4] {
            let warnings = Arc::new(Mutex::new(Vec::new()));
            let noted = Arc::clone(&warnings);
            let dataset = Shards { sizes: vec![0, 4, 20], says: Some(24) };
            let builder = DataLoader::stream(dataset).unbatched().num_workers(3).prefetch_factor(prefetch);
            let builder = builder.persistent_workers(stays);
            let loader = builder.on_warning(move |warning| noted.lock().unwrap().push(warning.clone()));
            let loader = loader.build().unwrap();
            assert_eq!(loader.len(), Some(24));
            for _ in 0..2 {
                let batches = loader.iter().unwrap();
                let pids = batches.worker_pids();
                let mut seen = all(batches);
                seen.sort_unstable();
                assert!(seen.into_iter().eq(0..24));
                assert_eq!(
                    pids.iter().filter(|&&pid| processes::exists(pid)).count(),
                    if stays { 3 } else { 0 }
                );
            }
            // The warnings of more workers than processors are another matter.
            let is_length = |warning: &Warning| matches!(warning, Warning::LongerThanLen { .. });
            assert!(!warnings.lock().unwrap().iter().any(is_length));
        }
    }
    let batches = |drop_last| {
        let build = |way: loader_tests::ways::Way| {
            let builder = DataLoader::stream(Shards::of(&[0, 4, 20])).shards(3).batch_size(7);
            way.of(builder.drop_last(drop_last)).build()
        };
        numbers(&one_epoch(build)).into_iter().collect::<BTreeSet<_>>()
    };
    let range = |range: std::ops::Range<u64>| range.collect::<Vec<_>>();
    assert_eq!(batches(false), [range(0..4), range(4..11), range(11..18), range(18..24)].into());
    assert_eq!(batches(true), [range(4..11), range(11..18)].into());
}

/// PyTorch warns of every sample too many, once somebody asked for the length, and counts batches for samples. Here it is one warning
/// an iterator, whoever asked for what, and samples are samples.
// PyTorch: 46
#[test]
fn more_samples_than_said() {
    let _watchdog = Watchdog::start();
    for way in WAYS {
        let warnings = Arc::new(Mutex::new(Vec::new()));
        let noted = Arc::clone(&warnings);
        let dataset = Shards { sizes: vec![0, 4, 20], says: Some(20) };
        let builder = way.of(DataLoader::stream(dataset).shards(3).batch_size(7));
        let loader = builder.on_warning(move |warning| noted.lock().unwrap().push(warning.clone()));
        let loader = loader.build().unwrap();
        for _ in 0..2 {
            assert_eq!(loader.iter().unwrap().filter(Result::is_ok).count(), 4);
        }
        let is_length = |warning: &&Warning| matches!(warning, Warning::LongerThanLen { .. });
        let warnings: Vec<Warning> = warnings.lock().unwrap().iter().filter(is_length).cloned().collect();
        // 4 and 7, 7, then 6.
        assert_eq!(warnings, vec![Warning::LongerThanLen { announced: 20, loaded: 24 }; 2], "{way:?}");
    }
}

// PyTorch: 47, D07
#[test]
fn chains() {
    let _watchdog = Watchdog::start();
    let chained = |way: loader_tests::ways::Way| {
        let dataset = Shards::of(&[10]).chain(Shards::of(&[20])).chain(Shards::of(&[0]));
        way.of(DataLoader::stream(dataset).shards(1).batch_size(7)).build()
    };
    let batches = numbers(&one_epoch(chained));
    assert!(batches.concat().into_iter().eq((0..10).chain(0..20)));
    assert_eq!(batches[1], [7, 8, 9, 0, 1, 2, 3], "a batch goes across the seam");
    let length = Counting { count: 3 }.chain(Counting { count: 4 }).len();
    assert_eq!(length, Some(7));
    assert_eq!(Shards::of(&[1]).chain(Counting { count: 1 }.map(|(number, _), _| Ok(number))).len(), None);
}

/// A shard has a worker of its own, and they take turns: batch `n` is of worker `n` modulo their number, in each epoch.
// PyTorch: 53
#[test]
fn workers_take_turns_in_each_epoch() {
    let _watchdog = Watchdog::start();
    for workers in [1, 2, 3] {
        for stays in [false, true] {
            let dataset = Shards::of(&[4; 3][..workers])
                .map(|number, cx| Ok((number, cx.worker().map_or(99, |worker| worker.id() as u64))));
            let builder = DataLoader::stream(dataset).batch_size(2).num_workers(workers);
            let loader = builder.persistent_workers(stays).build().unwrap();
            for _epoch in 0..3 {
                let mut batches = loader.iter().unwrap();
                for number in 0..2 * workers {
                    let (_, ids) = batches.next().unwrap().unwrap();
                    assert_eq!(ids.as_slice(), [(number % workers) as u64; 2]);
                    assert_eq!(batches.last_batch().unwrap().worker, Some(number % workers));
                }
                assert!(batches.next().is_none());
            }
            // The turn begins at worker 0 again after an epoch that was left, too.
            drop(loader.iter().unwrap().next());
            let (_, ids) = loader.iter().unwrap().next().unwrap().unwrap();
            assert_eq!(ids.as_slice(), [0, 0]);
        }
    }
}

// PyTorch: 98
#[test]
fn mixed_streams() {
    let _watchdog = Watchdog::start();
    let mixed = |seed: u64| {
        two_epochs(|way| {
            let dataset = Shards::of(&[30, 30]).shuffle_buffer(10);
            way.of(DataLoader::stream(dataset).shards(2).unbatched().seed(seed)).build()
        })
    };
    let epochs = mixed(1);
    for epoch in &epochs {
        assert!(!epoch.is_sorted());
        assert!(epoch.iter().copied().collect::<BTreeSet<_>>().into_iter().eq(0..60));
    }
    assert_ne!(epochs[0], epochs[1]);
    assert_eq!(mixed(1), epochs);
    assert_ne!(mixed(2), epochs);
}

/// More workers than shards have nothing to do, and still end.
// PyTorch: N09
#[test]
fn shards_fewer_and_more_than_workers() {
    let _watchdog = Watchdog::start();
    for shards in [1, 2, 9] {
        let batches = two_epochs(|way| {
            let dataset = Shards::of(&[3; 9][..shards]);
            way.of(DataLoader::stream(dataset).shards(shards).batch_size(2)).build()
        });
        assert_eq!(numbers(&batches[1]).concat().len(), 3 * shards);
    }
}

/// Each process has shards of its own: what is written down of one's is not taken for another's, nor with another number of processes.
// PyTorch: T20
#[test]
fn a_share_of_a_stream_is_resumed_by_its_own_process() {
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
        let error = build(rank, world).resume(&state).expect_err("it has other shards");
        assert!(error.to_string().contains("does not fit the loader"), "{error}");
    }
}

/// Of a share, too, the length is that of what is loaded.
// PyTorch: 1.5
#[test]
fn len_of_a_share_of_a_stream() {
    for world in [1, 2, 4] {
        let builder = DataLoader::stream(Counting { count: 48 }).distributed(0, world).batch_size(3);
        let loader = builder.build().unwrap();
        assert_eq!(loader.len(), Some(16 / world), "{world} processes");
        assert_eq!(loader.iter().unwrap().count(), 16 / world);
    }
}
