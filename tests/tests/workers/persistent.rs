//! Workers that stay. Most of it is shown where every way to load is: [`loader_tests::ways::WAYS`].

use std::sync::atomic::{AtomicU64, Ordering};

use loader_core::{Error, prelude::*};
use loader_tests::{
    Watchdog,
    datasets::{Count, Counting},
    gate::{Gate, Gated},
    processes,
    ways::all,
};
use serde::{Deserialize, Serialize};

static SEEN: AtomicU64 = AtomicU64::new(0);

/// Remembers what its process has loaded.
#[derive(Serialize, Deserialize)]
struct Remembers;

impl Dataset for Remembers {
    type Sample = (u64, u32);

    fn len(&self) -> usize {
        10
    }

    fn get(&self, _index: usize, _cx: &mut SampleContext) -> anyhow::Result<(u64, u32)> {
        Ok((SEEN.fetch_add(1, Ordering::SeqCst) + 1, std::process::id()))
    }
}

// PyTorch: 106, A15
#[test]
fn the_dataset_is_not_reset() {
    let _watchdog = Watchdog::start();
    let loader = DataLoader::builder(Remembers).num_workers(1).persistent_workers(true).build().unwrap();
    let pid = loader.iter().unwrap().worker_pids()[0];
    let before = all(loader.iter().unwrap()).last().unwrap().0.as_slice()[0];
    for epoch in 1..10 {
        let batches = all(loader.iter().unwrap());
        assert!(batches.iter().all(|(_, pids)| pids.as_slice() == [pid]), "the same process");
        assert_eq!(batches[9].0.as_slice(), [before + 10 * epoch]);
    }
    assert_eq!(SEEN.load(Ordering::SeqCst), 0, "main's copy is another one");
}

/// Epochs, some left early, some resumed, some of another order: each is what fresh workers load.
// PyTorch: P-07, T20
#[test]
fn any_sequence_of_epochs_is_that_of_fresh_workers() {
    let _watchdog = Watchdog::start();
    let build = |workers: usize, stays: bool| {
        let builder = DataLoader::stream(Counting { count: 60 }).shards(4).batch_size(4).seed(9);
        builder.num_workers(workers).persistent_workers(stays).build().unwrap()
    };
    let (fresh, staying) = (build(0, false), build(3, true));
    let mut pids = Vec::new();
    for (epoch, stop) in [(0, 3), (0, 0), (1, 99), (5, 7), (1, 1), (2, 99)] {
        let mut batches = staying.epoch(epoch).unwrap();
        pids.push(batches.worker_pids());
        let first: Vec<_> = batches.by_ref().take(stop).map(Result::unwrap).collect();
        let state = batches.state();
        drop(batches);
        let mut expected = fresh.epoch(epoch).unwrap();
        assert!(expected.by_ref().take(stop).map(Result::unwrap).eq(first));
        if stop < 99 {
            let rest = staying.resume(&state).unwrap();
            pids.push(rest.worker_pids());
            assert_eq!(all(rest), all(expected), "epoch {epoch} from batch {stop} on");
        }
    }
    assert!(pids.windows(2).all(|pair| pair[0] == pair[1]), "{pids:?}");
}

/// The same out of order, where what is missing has holes.
// PyTorch: T19
#[test]
fn stays_out_of_order_and_resumed() {
    let _watchdog = Watchdog::start();
    let gate = Gate::closed();
    let dataset = Gated { count: 30, slow: 4, gate: gate.path() };
    let builder = DataLoader::builder(dataset).num_workers(2).in_order(false).prefetch_factor(3);
    let loader = builder.persistent_workers(true).build().unwrap();
    let mut batches = loader.iter().unwrap();
    let number = |batch: Result<(Tensor<u64>, Tensor<u64>), Error>| batch.unwrap().0.as_slice()[0];
    let mut seen: Vec<u64> = batches.by_ref().take(12).map(number).collect();
    assert!(!seen.contains(&4));
    let state = batches.state();
    gate.open();
    drop(batches);
    let mut rest = loader.resume(&state).unwrap();
    seen.extend(rest.by_ref().take(5).map(number));
    let state: State = serde_json::from_str(&serde_json::to_string(&rest.state()).unwrap()).unwrap();
    drop(rest);
    seen.extend(loader.resume(&state).unwrap().map(number));
    seen.sort_unstable();
    assert!(seen.into_iter().eq(0..30));
}

/// The workers of an iterator that the loader does not outlive, and those of a second one, end.
// PyTorch: X02
#[test]
fn workers_that_nobody_will_need_end() {
    let _watchdog = Watchdog::start();
    let loader = DataLoader::builder(Count(40)).num_workers(2).persistent_workers(true).build().unwrap();
    let mut pids = Vec::new();
    for _ in 0..3 {
        let (mut one, mut two) = (loader.iter().unwrap(), loader.iter().unwrap());
        pids.extend([one.worker_pids(), two.worker_pids()].concat());
        assert!(one.next().unwrap().is_ok() && two.next().unwrap().is_ok());
    }
    pids.sort_unstable();
    pids.dedup();
    assert_eq!(pids.iter().filter(|&&pid| processes::exists(pid)).count(), 2, "one team rests");
    drop(loader);
    assert!(pids.iter().all(|&pid| !processes::exists(pid)));
}
