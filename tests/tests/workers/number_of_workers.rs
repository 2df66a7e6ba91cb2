//! `Iter::set_num_workers`: the number of workers changes while an epoch is loaded.

use std::{
    thread,
    time::{Duration, Instant},
};

use loader_core::{Error, Iter, prelude::*};
use loader_tests::{
    Watchdog,
    datasets::{Noise, Squares},
    processes,
    ways::all,
};
use nix::sys::signal::Signal;

type NoiseBatch = (Tensor<u64>, Tensor<f32>, Vec<String>);

/// Loads an epoch and changes the number of workers every few batches. With `kills`, a worker is killed now
/// and then.
fn changing<B: loader_core::collate::Batch>(mut batches: Iter<B>, kills: bool) -> Vec<B> {
    let mut loaded = Vec::new();
    loop {
        // Long enough for shards to change their workers.
        if loaded.len() % 6 == 0 {
            let number = [1, 3, 2, 4][loaded.len() / 6 % 4];
            batches.set_num_workers(number).unwrap();
            assert_eq!(batches.num_workers(), number);
        }
        if kills && loaded.len() % 3 == 2 {
            let pids = batches.worker_pids();
            processes::try_signal(pids[loaded.len() % pids.len()], Signal::SIGKILL);
        }
        // Time in which added workers start.
        thread::sleep(Duration::from_millis(4));
        match batches.next() {
            Some(batch) => loaded.push(batch.unwrap()),
            None => return loaded,
        }
    }
}

#[test]
fn the_batches_do_not_depend_on_the_number() {
    let _watchdog = Watchdog::start();
    let noise = |workers| {
        let builder = DataLoader::builder(Noise { count: 400 }).batch_size(4).shuffle(true).seed(3);
        let loader: DataLoader<NoiseBatch> = builder.num_workers(workers).on_warning(|_| {}).build().unwrap();
        loader
    };
    let expected = all(noise(0).iter().unwrap());
    for kills in [false, true] {
        assert_eq!(changing(noise(2).iter().unwrap(), kills), expected, "kills: {kills}");
    }
    // Shards change their workers. The count of items read since the iterator was opened is left out: it
    // differs if a shard was opened again.
    let squares = |workers| {
        let loader = DataLoader::stream(Squares { count: 300 }).snapshots().shards(5).batch_size(3);
        loader.num_workers(workers).on_warning(|_| {}).build().unwrap()
    };
    let numbers = |batches: Vec<(Tensor<u64>, Tensor<u64>)>| -> Vec<Vec<u64>> {
        batches.iter().map(|(numbers, _)| numbers.as_slice().to_vec()).collect()
    };
    let expected = numbers(all(squares(0).iter().unwrap()));
    for kills in [false, true] {
        assert_eq!(numbers(changing(squares(2).iter().unwrap(), kills)), expected, "kills: {kills}");
    }
}

#[test]
fn persistent_workers_keep_the_number() {
    let _watchdog = Watchdog::start();
    let loader = |workers| -> DataLoader<NoiseBatch> {
        let builder = DataLoader::builder(Noise { count: 4000 }).batch_size(10).num_workers(workers);
        builder.persistent_workers(workers > 0).build().unwrap()
    };
    let (ours, reference) = (loader(2), loader(0));
    let mut number = 2;
    for (epoch, next) in (0..).zip([1, 4, 2, 3]) {
        let mut batches = ours.epoch(epoch).unwrap();
        assert_eq!(batches.num_workers(), number, "epoch {epoch}");
        number = next;
        batches.set_num_workers(number).unwrap();
        assert!(batches.map(Result::unwrap).eq(all(reference.epoch(epoch).unwrap())), "epoch {epoch}");
    }
}

#[test]
fn a_worker_that_stays_parked_ends() {
    let _watchdog = Watchdog::start();
    let loader = DataLoader::builder(Noise { count: 1_000_000_000 }).num_workers(3).build().unwrap();
    let mut batches = loader.iter().unwrap();
    let pids = batches.worker_pids();
    batches.set_num_workers(1).unwrap();
    let started = Instant::now();
    while processes::is_running(pids[1]) || processes::is_running(pids[2]) {
        batches.next().unwrap().unwrap();
        thread::sleep(Duration::from_millis(5));
        assert!(started.elapsed() < Duration::from_secs(40), "the parked workers still run");
    }
    assert!(started.elapsed() >= Duration::from_secs(10), "it ended while it might have been used again");
    assert!(processes::is_running(pids[0]));
    assert_eq!(batches.report().restarts, 0);
    batches.set_num_workers(2).unwrap();
    while batches.worker_pids()[1] == pids[1] {
        batches.next().unwrap().unwrap();
    }
}

#[test]
fn impossible_numbers_are_refused() {
    let _watchdog = Watchdog::start();
    let loader = |workers| DataLoader::builder(Noise { count: 4 }).num_workers(workers).build().unwrap();
    let is_refused = |workers, number| {
        let loaded: DataLoader<NoiseBatch> = loader(workers);
        let result = loaded.iter().unwrap().set_num_workers(number);
        matches!(result, Err(Error::InvalidOption { option: "num_workers", .. }))
    };
    assert!(is_refused(0, 1) && is_refused(1, 0) && is_refused(1, 63));
    assert!(!is_refused(1, 1));
}
