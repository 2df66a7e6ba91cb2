//! Workers that stay from one epoch to the next.

use std::{
    path::PathBuf,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use loader_core::prelude::*;
use loader_tests::{
    Watchdog,
    datasets::{Counting, Fault, Faulty, Large, Noise, Slow, SlowFirst},
    digest, processes,
};
use nix::sys::signal::Signal;
use serde::{Deserialize, Serialize};

// PyTorch: U10, U13
#[test]
fn the_epochs_are_those_of_fresh_workers_and_the_processes_stay() {
    let _watchdog = Watchdog::start();
    for workers in [1, 3] {
        let build = |stay: bool| {
            let builder = DataLoader::builder(Noise { count: 60 }).batch_size(7).shuffle(true);
            builder.num_workers(workers).persistent_workers(stay).build().unwrap()
        };
        let (fresh, staying) = (build(false), build(true));
        let mut pids = Vec::new();
        for _ in 0..4 {
            let batches = staying.iter().unwrap();
            pids.push(batches.worker_pids());
            assert_eq!(digest(batches).unwrap(), digest(fresh.iter().unwrap()).unwrap());
        }
        assert!(pids.windows(2).all(|pair| pair[0] == pair[1]), "{pids:?}");
        assert!(pids[0].iter().all(|&pid| processes::is_running(pid)));
        drop(staying);
        assert!(pids[0].iter().all(|&pid| !processes::exists(pid)), "ended with the loader");
    }
}

#[test]
fn streams_begin_again() {
    let _watchdog = Watchdog::start();
    let build = |stay: bool| {
        let builder = DataLoader::stream(Counting { count: 60 }).shards(3).batch_size(7).num_workers(2);
        builder.persistent_workers(stay).build().unwrap()
    };
    let (fresh, staying) = (build(false), build(true));
    for stop in [100, 2, 100] {
        let numbers = |loader: &DataLoader<(Tensor<u64>, Tensor<u32>)>| {
            let batches = loader.iter().unwrap().take(stop).map(|batch| batch.unwrap());
            batches
                .flat_map(|(numbers, noise)| {
                    [numbers.as_slice().to_vec(), noise.as_slice().iter().map(|&n| n.into()).collect()]
                })
                .collect::<Vec<_>>()
        };
        assert_eq!(numbers(&staying), numbers(&fresh), "{stop} batches");
    }
}

static CALLS: AtomicU64 = AtomicU64::new(0);
static HOOKS: AtomicU64 = AtomicU64::new(0);

/// How often its process was asked, and for which epoch.
#[derive(Serialize, Deserialize)]
struct Calls;

impl Dataset for Calls {
    type Sample = (u64, u64, u64);

    fn len(&self) -> usize {
        4
    }

    fn get(&self, _index: usize, cx: &mut SampleContext) -> anyhow::Result<(u64, u64, u64)> {
        Ok((CALLS.fetch_add(1, Ordering::Relaxed), HOOKS.load(Ordering::Relaxed), cx.epoch()))
    }
}

// PyTorch: 106
#[test]
fn the_dataset_and_the_hook_are_not_reset() {
    let _watchdog = Watchdog::start();
    let builder = DataLoader::builder(Calls).batch_size(4).num_workers(1).persistent_workers(true);
    let loader = builder
        .worker_init(|_| {
            HOOKS.fetch_add(1, Ordering::Relaxed);
            Ok(())
        })
        .build()
        .unwrap();
    for epoch in 0..10 {
        let (calls, hooks, epochs) = loader.iter().unwrap().next().unwrap().unwrap();
        assert_eq!(calls.as_slice(), [0, 1, 2, 3].map(|call| 4 * epoch + call));
        assert_eq!((hooks.as_slice()[0], epochs.as_slice()[0]), (1, epoch));
    }
    assert_eq!(CALLS.load(Ordering::Relaxed), 0, "main's copy is another one");
}

// PyTorch: X20, N05
#[test]
fn an_epoch_that_is_abandoned_is_not_loaded_to_its_end() {
    let _watchdog = Watchdog::start();
    let dataset = Slow { count: 1000, delay: Duration::from_millis(20) };
    let builder = DataLoader::builder(dataset).batch_size(50).num_workers(2).prefetch_factor(4);
    let loader = builder.persistent_workers(true).build().unwrap();
    let mut batches = loader.iter().unwrap();
    let pids = batches.worker_pids();
    assert_eq!(batches.next().unwrap().unwrap().len(), 50);
    let started = Instant::now();
    drop(batches);
    let mut batches = loader.iter().unwrap();
    assert!(
        started.elapsed() < Duration::from_millis(700),
        "a batch takes a second: {:?}",
        started.elapsed()
    );
    assert_eq!(batches.worker_pids(), pids);
    assert_eq!(batches.next().unwrap().unwrap().as_slice()[..2], [0, 1]);
}

#[test]
fn large_batches_and_held_batches_survive_an_abandoned_epoch() {
    let _watchdog = Watchdog::start();
    // Slots grow, are offered and granted while the epoch is abandoned.
    let dataset = Large { count: 64, bytes: 700_000 };
    let builder = DataLoader::builder(dataset).batch_size(2).num_workers(2).prefetch_factor(3);
    let loader = builder.persistent_workers(true).build().unwrap();
    let mut held = Vec::new();
    let mut pids = Vec::new();
    for stop in [0, 1, 2, 5, 0, 7, 32, 3, 1] {
        let mut batches = loader.epoch(0).unwrap();
        pids.push(batches.worker_pids());
        held.extend(batches.by_ref().take(stop).map(Result::unwrap).enumerate());
        if held.len() > 10 {
            held.drain(..8);
        }
        for (number, batch) in &held {
            assert!(batch.row(1).iter().all(|&byte| usize::from(byte) == 2 * number + 1));
        }
    }
    assert!(pids.windows(2).all(|pair| pair[0] == pair[1]), "{pids:?}");
}

#[test]
fn a_second_iterator_has_workers_of_its_own() {
    let _watchdog = Watchdog::start();
    let builder = DataLoader::builder(Noise { count: 30 }).batch_size(4).num_workers(2);
    let loader = builder.persistent_workers(true).build().unwrap();
    let (one, two) = (loader.epoch(0).unwrap(), loader.epoch(0).unwrap());
    let pids = [one.worker_pids(), two.worker_pids()];
    assert!(pids[0].iter().all(|pid| !pids[1].contains(pid)));
    for (one, two) in one.zip(two) {
        assert_eq!(one.unwrap(), two.unwrap());
    }
    assert_eq!(pids.concat().into_iter().filter(|&pid| processes::is_running(pid)).count(), 2);
}

#[test]
fn an_iterator_may_outlive_its_loader() {
    let _watchdog = Watchdog::start();
    let builder = DataLoader::builder(Noise { count: 30 }).batch_size(4).num_workers(2);
    let mut batches = builder.persistent_workers(true).build().unwrap().iter().unwrap();
    let pids = batches.worker_pids();
    assert_eq!(batches.by_ref().filter(Result::is_ok).count(), 8);
    assert!(pids.iter().all(|&pid| !processes::exists(pid)));
}

// PyTorch: N02
#[test]
fn a_worker_that_died_between_two_epochs_is_replaced_with_the_others() {
    let _watchdog = Watchdog::start();
    let builder = DataLoader::builder(Noise { count: 30 }).batch_size(4).num_workers(2);
    let loader = builder.persistent_workers(true).build().unwrap();
    let first = loader.iter().unwrap();
    let pids = first.worker_pids();
    let expected = digest(first).unwrap();
    processes::signal(pids[1], Signal::SIGKILL);
    let second = loader.epoch(0).unwrap();
    assert!(second.worker_pids().iter().all(|pid| !pids.contains(pid)));
    assert_eq!(digest(second).unwrap(), expected);
    assert!(pids.iter().all(|&pid| !processes::exists(pid)));
}

#[test]
fn an_error_that_ends_the_iteration_ends_the_workers() {
    let _watchdog = Watchdog::start();
    let dataset = Faulty { count: 30, at: 7, fault: Fault::Kill };
    let builder = DataLoader::builder(dataset).num_workers(2).persistent_workers(true);
    let loader = builder.build().unwrap();
    let pids = {
        let batches = loader.iter().unwrap();
        let pids = batches.worker_pids();
        assert!(batches.filter(Result::is_err).count() == 1);
        pids
    };
    assert!(pids.iter().all(|&pid| !processes::exists(pid)));
    assert!(loader.iter().unwrap().next().unwrap().is_ok());
}

#[test]
fn reports_are_of_their_epoch() {
    let _watchdog = Watchdog::start();
    let dataset = SlowFirst { count: 20, delay: Duration::from_millis(50), numbers: 1 };
    let loader = DataLoader::builder(dataset).num_workers(2).persistent_workers(true).build().unwrap();
    for _ in 0..3 {
        let mut batches = loader.iter().unwrap();
        batches.by_ref().for_each(|batch| drop(batch.unwrap()));
        let workers = batches.report().workers;
        assert_eq!(workers.iter().map(|worker| worker.batches).sum::<u64>(), 20);
    }
}

#[test]
fn a_worker_that_is_stuck_in_an_abandoned_epoch_is_replaced_in_time() {
    let _watchdog = Watchdog::start();
    let dataset = Faulty { count: 100, at: 3, fault: Fault::Hang };
    let warnings = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&warnings);
    let builder = DataLoader::builder(dataset).num_workers(2).timeout(Duration::from_millis(300));
    let builder = builder.persistent_workers(true);
    let loader =
        builder.on_warning(move |warning| noted.lock().unwrap().push(warning.to_string())).build().unwrap();
    let pids = loader.iter().unwrap().worker_pids();
    let mut batches = loader.iter().unwrap();
    assert_eq!(batches.by_ref().take(3).filter(Result::is_ok).count(), 3);
    drop(batches);
    let batches = loader.iter().unwrap();
    assert!(batches.worker_pids().iter().all(|pid| !pids.contains(pid)));
    let warnings = warnings.lock().unwrap();
    let [warning] = &warnings[..] else { panic!("{warnings:?}") };
    assert!(warning.contains("fetching sample 3 of batch 3"), "{warning}");
}

#[test]
fn workers_that_are_ended_give_their_slots_back() {
    let _watchdog = Watchdog::start();
    let dataset = Slow { count: 100, delay: Duration::from_millis(2) };
    let loader = DataLoader::builder(dataset).num_workers(2).persistent_workers(true).build().unwrap();
    let mut bytes = Vec::new();
    for _ in 0..12 {
        // The second finds the place of the first taken; then one dies at rest.
        let (mut one, mut two) = (loader.iter().unwrap(), loader.iter().unwrap());
        one.next().unwrap().unwrap();
        two.next().unwrap().unwrap();
        bytes.push(two.report().shared_memory_bytes);
        let pids = one.worker_pids();
        drop(one);
        drop(two);
        processes::signal(pids[0], Signal::SIGKILL);
    }
    assert!(bytes.iter().all(|&now| now <= 2 * bytes[0]), "{bytes:?}");
}

/// Cannot be set up while the file is there.
#[derive(Serialize, Deserialize)]
struct Mounted {
    missing: PathBuf,
}

impl Dataset for Mounted {
    type Sample = u64;

    fn len(&self) -> usize {
        6
    }

    fn get(&self, index: usize, _cx: &mut SampleContext) -> anyhow::Result<u64> {
        Ok(index as u64)
    }

    fn setup(&mut self, _cx: &mut SampleContext) -> anyhow::Result<()> {
        anyhow::ensure!(!self.missing.exists(), "the mount is missing");
        Ok(())
    }
}

#[test]
fn workers_that_could_not_open_the_dataset_do_not_stay() {
    let _watchdog = Watchdog::start();
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing");
    std::fs::write(&missing, "").unwrap();
    let builder = DataLoader::builder(Mounted { missing: missing.clone() }).num_workers(2);
    let loader = builder.persistent_workers(true).build().unwrap();
    assert_eq!(loader.iter().unwrap().filter(Result::is_err).count(), 6);
    std::fs::remove_file(&missing).unwrap();
    assert_eq!(loader.iter().unwrap().filter(Result::is_ok).count(), 6);
}
