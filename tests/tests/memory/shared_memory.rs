//! Loaders whose `shared_memory_limit` is barely enough.

use std::{thread, time::Duration};

use loader_core::{Error, Iter, prelude::*};
use loader_tests::{
    Watchdog,
    datasets::{AsStream, Large},
    processes,
    timing::timed,
};
use nix::sys::signal::Signal;
use serde::{Deserialize, Serialize};

const MEGABYTE: usize = 1 << 20;

/// One of the samples is large. Each byte is the sample's index.
#[derive(Debug, Serialize, Deserialize)]
struct OneLarge {
    count: usize,
    at: usize,
}

impl Dataset for OneLarge {
    type Sample = Vec<u8>;

    fn len(&self) -> usize {
        self.count
    }

    fn get(&self, index: usize, _cx: &mut SampleContext) -> anyhow::Result<Vec<u8>> {
        Ok(vec![index as u8; if index == self.at { 8 * MEGABYTE } else { 100_000 }])
    }
}

#[test]
fn the_slot_of_one_large_batch_is_given_back() {
    let _watchdog = Watchdog::start();
    let loader = DataLoader::builder(OneLarge { count: 100, at: 10 }).num_workers(2);
    let loader = loader.shared_memory_limit(12 << 20).build().unwrap();
    let mut batches = loader.iter().unwrap();
    let mut large = None;
    for number in 0..100 {
        let batch = batches.next().unwrap().unwrap();
        assert_eq!(batch.as_slice()[0], number);
        if number == 10 {
            large = Some(batch);
        }
    }
    assert!(batches.next().is_none());
    drop((large, batches));
    let mut batches = loader.iter().unwrap();
    batches.next().unwrap().unwrap();
    let bytes = batches.report().shared_memory_bytes;
    assert!(bytes < 3 << 20, "{bytes} bytes");
}

/// The first sample comes late and needs more than half of the memory. Meanwhile the others fill the memory.
#[derive(Debug, Serialize, Deserialize)]
struct LargeAndLate;

impl Dataset for LargeAndLate {
    type Sample = Vec<u8>;

    fn len(&self) -> usize {
        20
    }

    fn get(&self, index: usize, _cx: &mut SampleContext) -> anyhow::Result<Vec<u8>> {
        if index == 0 {
            thread::sleep(Duration::from_millis(300));
        }
        Ok(vec![index as u8; if index == 0 { 300_000 } else { 60_000 }])
    }
}

#[test]
fn arrived_batches_make_room_for_an_earlier_one() {
    let _watchdog = Watchdog::start();
    let loader = DataLoader::builder(LargeAndLate).num_workers(2).prefetch_factor(4);
    let loader = loader.shared_memory_limit(512 << 10).build().unwrap();
    assert_eq!(first_bytes(loader.iter().unwrap()), (0..20).collect::<Vec<_>>());
}

/// Returns the first byte of each batch.
fn first_bytes(batches: Iter<Tensor<u8>>) -> Vec<u8> {
    batches.map(|batch| batch.unwrap().as_slice()[0]).collect()
}

/// Loaders of ten batches of a megabyte each: map-style, and iterable with a shard for each worker. True if
/// the batches come in order.
fn small_loaders(workers: usize, prefetch: usize, limit: u64) -> [(DataLoader<Tensor<u8>>, bool); 2] {
    let large = || Large { count: 10, bytes: MEGABYTE };
    let map = DataLoader::builder(large()).num_workers(workers).prefetch_factor(prefetch);
    let stream = DataLoader::stream(AsStream(large())).num_workers(workers).prefetch_factor(prefetch);
    [
        (map.shared_memory_limit(limit).on_warning(|_| {}).build().unwrap(), true),
        (stream.shared_memory_limit(limit).on_warning(|_| {}).build().unwrap(), false),
    ]
}

/// Checks that each of the ten batches came once.
fn assert_complete(mut first_bytes: Vec<u8>, in_order: bool) {
    if !in_order {
        first_bytes.sort_unstable();
    }
    assert_eq!(first_bytes, (0..10).collect::<Vec<_>>());
}

#[test]
fn room_for_one_batch_is_enough_with_any_number_of_workers() {
    let _watchdog = Watchdog::start();
    for (workers, prefetch) in [(1, 4), (2, 1), (4, 2), (8, 3)] {
        let limit = (MEGABYTE + 20_000).max(workers * prefetch * 64 * 1024) as u64;
        for (loader, in_order) in small_loaders(workers, prefetch, limit) {
            for _ in 0..2 {
                assert_complete(first_bytes(loader.iter().unwrap()), in_order);
            }
        }
    }
}

/// Returns a small and a large tensor, each with a clone.
fn with_clones(samples: Vec<Vec<u8>>) -> anyhow::Result<[Tensor<u8>; 4]> {
    let first = samples[0][0];
    let (small, large) =
        (Tensor::from_slice(&[first; 5000], [5000])?, Tensor::from_slice(&samples[0], [MEGABYTE])?);
    Ok([small.clone(), small, large.clone(), large])
}

#[test]
fn clones_in_a_batch_share_memory_in_every_slot() {
    let _watchdog = Watchdog::start();
    for workers in [1, 4] {
        let loader = DataLoader::builder(Large { count: 10, bytes: MEGABYTE }).num_workers(workers);
        let loader = loader.collate(with_clones).shared_memory_limit(MEGABYTE as u64 + 20_000);
        for (number, batch) in loader.on_warning(|_| {}).build().unwrap().iter().unwrap().enumerate() {
            let mut batch = batch.unwrap();
            assert!(batch.iter().all(|tensor| tensor.as_slice().iter().all(|&byte| byte == number as u8)));
            let [small, _, large, _] = &mut batch;
            assert!(small.as_mut_slice().is_err() && large.as_mut_slice().is_err(), "clones stay clones");
        }
    }
}

#[test]
fn workers_that_die_while_they_wait_for_a_slot_are_replaced() {
    let _watchdog = Watchdog::start();
    for after in [0, 1, 2, 4, 8].map(Duration::from_millis) {
        for (loader, in_order) in small_loaders(4, 2, MEGABYTE as u64 + 20_000) {
            let batches = loader.iter().unwrap();
            let pids = batches.worker_pids();
            thread::scope(|scope| {
                // Most workers wait for a slot when they are killed.
                scope.spawn(|| {
                    for pid in pids {
                        thread::sleep(after);
                        processes::try_signal(pid, Signal::SIGKILL);
                    }
                });
                assert_complete(first_bytes(batches), in_order);
            });
        }
    }
}

#[test]
fn persistent_workers_leave_an_epoch_while_they_wait_for_a_slot() {
    let _watchdog = Watchdog::start();
    let loader = DataLoader::builder(Large { count: 10, bytes: MEGABYTE }).num_workers(4);
    let loader = loader.persistent_workers(true).shared_memory_limit(MEGABYTE as u64 + 20_000);
    let loader = loader.on_warning(|_| {}).build().unwrap();
    for taken in [1, 2, 0, 1] {
        for batch in loader.iter().unwrap().take(taken) {
            batch.unwrap();
        }
    }
    assert_complete(first_bytes(loader.iter().unwrap()), true);
}

#[test]
fn the_error_of_a_batch_that_does_not_fit_says_how_much_it_needs() {
    let _watchdog = Watchdog::start();
    let loader = DataLoader::builder(Large { count: 4, bytes: MEGABYTE }).num_workers(2);
    let loader = loader.shared_memory_limit(1 << 19).build().unwrap();
    for batch in loader.iter().unwrap() {
        let error = batch.unwrap_err();
        assert!(matches!(error, Error::SendFailed { .. }), "{error:?}");
        let text = error.to_string();
        let needed = text.split("set shared_memory_limit to at least ").nth(1).unwrap();
        let needed: usize = needed.split(' ').next().unwrap().parse().unwrap();
        assert!((MEGABYTE..MEGABYTE + 20_000).contains(&needed), "{text}");
    }
}

/// A loader of 20 batches whose limit has room for little more than one.
fn tight() -> DataLoader<Tensor<u8>> {
    let loader = DataLoader::builder(Large { count: 20, bytes: MEGABYTE }).num_workers(2);
    loader.shared_memory_limit(MEGABYTE as u64 + (9 << 16)).build().unwrap()
}

#[test]
fn iterators_on_two_threads_wait_for_each_others_memory() {
    let _watchdog = Watchdog::start();
    let loader = tight();
    thread::scope(|scope| {
        let all = [(); 3].map(|()| {
            scope.spawn(|| {
                let batches = loader.iter().unwrap();
                let slowly = batches.map(|batch| {
                    let batch = batch.unwrap();
                    thread::sleep(Duration::from_millis(5));
                    batch.as_slice()[0]
                });
                slowly.collect::<Vec<_>>()
            })
        });
        for bytes in all {
            assert_eq!(bytes.join().unwrap(), (0..20).collect::<Vec<_>>());
        }
    });
}

#[test]
fn an_iterator_that_finds_no_memory_gets_an_error_and_loses_no_batch() {
    let _watchdog = Watchdog::start();
    let loader = tight();
    let mut first = loader.iter().unwrap();
    let held = first.next().unwrap().unwrap();
    let mut second = loader.iter().unwrap();
    let (error, took) = timed(|| second.next().unwrap().unwrap_err());
    assert!(matches!(error, Error::SharedMemoryExhausted { elsewhere: 1.., .. }), "{error:?}");
    assert!(!error.ends_iteration());
    assert!(took < Duration::from_secs(30), "{took:?}");
    drop(first);
    drop(held);
    assert_eq!(first_bytes(second), (0..20).collect::<Vec<_>>());
}
