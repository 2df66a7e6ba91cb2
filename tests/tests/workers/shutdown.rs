//! Ends of all kinds: they return, and leave nothing.

use std::time::{Duration, Instant};

use loader_core::{Error, prelude::*};
use loader_tests::{
    Watchdog,
    datasets::{Fault, Faulty, Large, Slow},
    processes,
};
use nix::sys::signal::Signal;

/// Drops the iterator and gives the time that took; no worker may be left.
fn drop_and_check<B: loader_core::collate::Batch>(batches: loader_core::Iter<B>) -> Duration {
    let pids = batches.worker_pids();
    assert!(!pids.is_empty());
    let started = Instant::now();
    drop(batches);
    let took = started.elapsed();
    assert!(pids.iter().all(|&pid| !processes::exists(pid)), "a worker is left");
    took
}

#[test]
fn dropped_before_the_first_batch() {
    let _watchdog = Watchdog::start();
    let loader = DataLoader::builder(Large { count: 100, bytes: 1000 }).num_workers(3).build().unwrap();
    drop_and_check(loader.iter().unwrap());
}

// PyTorch: X02
#[test]
fn dropped_in_mid_epoch_with_batches_held() {
    let _watchdog = Watchdog::start();
    let loader = DataLoader::builder(Large { count: 100, bytes: 1000 }).num_workers(3).build().unwrap();
    let mut batches = loader.iter().unwrap();
    let held: Vec<_> = batches.by_ref().take(10).map(Result::unwrap).collect();
    drop_and_check(batches);
    assert!(held.iter().enumerate().all(|(index, batch)| batch.as_slice() == vec![index as u8; 1000]));
}

#[test]
fn dropped_while_workers_are_in_a_long_batch() {
    let _watchdog = Watchdog::start();
    // A whole batch would take 20 s; the done flag is seen between two samples.
    let dataset = Slow { count: 1000, delay: Duration::from_millis(20) };
    let loader = DataLoader::builder(dataset).batch_size(1000).num_workers(2).build().unwrap();
    let batches = loader.iter().unwrap();
    std::thread::sleep(Duration::from_millis(100));
    let took = drop_and_check(batches);
    assert!(took < Duration::from_secs(4), "it waited for the batch: {took:?}");
}

#[test]
fn dropped_while_a_worker_waits_for_a_larger_slot() {
    let _watchdog = Watchdog::start();
    let loader = DataLoader::builder(Large { count: 10, bytes: 1 << 20 }).num_workers(2).build().unwrap();
    let batches = loader.iter().unwrap();
    // Both have asked by now, and nobody has called `next` to answer them.
    std::thread::sleep(Duration::from_millis(200));
    let took = drop_and_check(batches);
    assert!(took < Duration::from_secs(4), "{took:?}");
}

// PyTorch: 42, P-31, X12, X13, U04, U05
#[test]
fn dropped_while_workers_hang_stop_or_block_every_signal() {
    let _watchdog = Watchdog::start();
    for fault in [Fault::Hang, Fault::HangHard, Fault::Stop] {
        let loader = DataLoader::builder(Faulty { count: 10, at: 1, fault }).num_workers(2).build().unwrap();
        let mut batches = loader.iter().unwrap();
        batches.next().unwrap().unwrap();
        std::thread::sleep(Duration::from_millis(100));
        let took = drop_and_check(batches);
        assert!(took < Duration::from_secs(20), "{fault:?}: {took:?}");
    }
}

#[test]
fn a_worker_that_is_stopped_and_continued_loses_nothing() {
    let _watchdog = Watchdog::start();
    let dataset = Slow { count: 100, delay: Duration::from_millis(1) };
    let loader = DataLoader::builder(dataset).num_workers(2).build().unwrap();
    let mut batches = loader.iter().unwrap();
    let pid = batches.worker_pids()[0];
    batches.next().unwrap().unwrap();
    processes::signal(pid, Signal::SIGSTOP);
    std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(300));
        processes::signal(pid, Signal::SIGCONT);
    });
    let rest: Vec<u64> = batches.map(|batch| batch.unwrap().as_slice()[0]).collect();
    assert!(rest.into_iter().eq(1..100));
}

// PyTorch: X03
#[test]
fn a_panic_in_the_training_step_unwinds_through_the_iterator() {
    let _watchdog = Watchdog::start();
    let loader = DataLoader::builder(Large { count: 100, bytes: 10 }).num_workers(2).build().unwrap();
    let pids = std::sync::Mutex::new(Vec::new());
    let step = std::panic::AssertUnwindSafe(|| {
        let mut batches = loader.iter().unwrap();
        pids.lock().unwrap().extend(batches.worker_pids());
        let first = batches.next().unwrap().unwrap();
        panic!("the training step panics at {first:?}");
    });
    assert!(std::panic::catch_unwind(step).is_err());
    assert!(pids.into_inner().unwrap().iter().all(|&pid| !processes::exists(pid)));
}

// PyTorch: X19, U32
#[test]
fn workers_ignore_ctrl_c() {
    let _watchdog = Watchdog::start();
    let dataset = Slow { count: 50, delay: Duration::from_millis(2) };
    let loader = DataLoader::builder(dataset).num_workers(2).build().unwrap();
    let mut batches = loader.iter().unwrap();
    batches.next().unwrap().unwrap();
    batches.worker_pids().iter().for_each(|&pid| processes::signal(pid, Signal::SIGINT));
    assert_eq!(batches.filter(Result::is_ok).count(), 49);
}

// PyTorch: X15
#[test]
fn large_tasks_for_a_worker_that_hangs_do_not_block_main() {
    let _watchdog = Watchdog::start();
    // Far more than a queue holds: 64 tasks of 200 indices and 64 of thousands.
    for batch_size in [200, 4000] {
        let dataset = Faulty { count: 1_000_000, at: 3, fault: Fault::Hang };
        let builder = DataLoader::builder(dataset).batch_size(batch_size).num_workers(1).prefetch_factor(64);
        let builder = builder.sampler(HangFirst).timeout(Duration::from_millis(300));
        let mut batches = builder.build().unwrap().iter().unwrap();
        let error = batches.next().unwrap().unwrap_err();
        assert!(matches!(error, Error::TimedOut { .. }), "{error:?}");
        let took = drop_and_check(batches);
        assert!(took < Duration::from_secs(20), "{took:?}");
    }
}

/// The sample that hangs, then every second one: no range, so that the indices must travel.
#[derive(Debug)]
struct HangFirst;

impl Sampler for HangFirst {
    fn len(&self) -> usize {
        500_000
    }

    fn indices(&self, _epoch: loader_core::sampler::Epoch) -> Box<dyn Iterator<Item = usize> + Send> {
        Box::new(std::iter::once(3).chain((0..499_999).map(|number| 2 * number)))
    }
}

// PyTorch: N21
#[test]
fn a_long_prefetch_of_small_batches_does_not_block_anyone() {
    let _watchdog = Watchdog::start();
    let loader = DataLoader::builder(Large { count: 5000, bytes: 1 }).num_workers(1).prefetch_factor(2000);
    let mut batches = loader.build().unwrap().iter().unwrap();
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(batches.by_ref().filter(Result::is_ok).count(), 5000);
}
