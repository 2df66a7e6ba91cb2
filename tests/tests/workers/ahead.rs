//! Batches that a thread converts ahead, or gives to an async program.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use futures_util::StreamExt;
use loader_core::{Error, prelude::*};
use loader_tests::{
    Watchdog,
    alone::alone,
    datasets::{Large, Noise},
    gate::{Gate, Gated},
    processes,
    timing::{assert_soon, timed},
    traces::Before,
};
use nix::sys::signal::Signal;

#[test]
fn a_killed_worker_changes_nothing() {
    let _watchdog = Watchdog::start();
    let loader = DataLoader::builder(Noise { count: 400 }).batch_size(4).shuffle(true).num_workers(2);
    let loader = loader.seed(5).build().unwrap();
    let mut iter = loader.iter().unwrap();
    let pids = iter.worker_pids();
    let expected: Vec<_> = iter.by_ref().map(Result::unwrap).collect();
    assert_eq!(pids.len(), 2);

    let iter = loader.epoch(0).unwrap();
    let pids = iter.worker_pids();
    let mut ahead = iter.convert_ahead(3, Ok).unwrap();
    let mut found = Vec::new();
    for batch in ahead.by_ref() {
        found.push(batch.unwrap());
        if found.len() == 10 {
            processes::signal(pids[1], Signal::SIGKILL);
        }
    }
    assert_eq!(found, expected);
    assert_eq!(ahead.report().map(|report| report.restarts), Some(1));
}

#[test]
fn a_drop_does_not_wait_for_a_worker_that_hangs() {
    alone(|| {
        let before = Before::take();
        let gate = Gate::closed();
        let dataset = Gated { count: 20, slow: 3, gate: gate.path() };
        let loader = DataLoader::builder(dataset).num_workers(1).build().unwrap();
        let mut ahead = loader.iter().unwrap().convert_ahead(1, Ok).unwrap();
        for _ in 0..3 {
            ahead.next().unwrap().unwrap();
        }
        let ((), took) = timed(|| drop(ahead));
        assert!(took < Duration::from_secs(15), "it took {took:?}");
        drop((loader, gate));
        before.assert_nothing_left();
    });
}

#[test]
fn persistent_workers_stay_for_the_next_epoch() {
    let _watchdog = Watchdog::start();
    let builder = DataLoader::builder(Noise { count: 40 }).batch_size(4).num_workers(2);
    let loader = builder.persistent_workers(true).build().unwrap();
    let iter = loader.iter().unwrap();
    let pids = iter.worker_pids();
    assert_eq!(iter.convert_ahead(2, Ok).unwrap().count(), 10);
    let iter = loader.iter().unwrap();
    assert_eq!(iter.worker_pids(), pids);
    drop(iter.convert_ahead(2, Ok).unwrap());
    assert_eq!(loader.iter().unwrap().worker_pids(), pids);
}

/// With room for few batches, the thread fills them all. It waits until the program has taken what is ready.
#[test]
fn a_limit_on_shared_memory_slows_down_instead_of_failing() {
    let _watchdog = Watchdog::start();
    let builder = DataLoader::builder(Large { count: 40, bytes: 1 << 20 }).num_workers(1).prefetch_factor(1);
    let loader = builder.shared_memory_limit(5 << 20).build().unwrap();
    let mut ahead = loader.iter().unwrap().convert_ahead(8, Ok).unwrap();
    for (number, batch) in ahead.by_ref().enumerate() {
        assert_eq!(batch.unwrap().as_slice()[0], number as u8);
    }
    assert_eq!(ahead.report().map(|report| report.errors), Some(0));
    // What the program keeps is not given back.
    let mut held = Vec::new();
    let ahead = loader.iter().unwrap().convert_ahead(8, Ok).unwrap();
    let error = ahead.map(|batch| batch.map(|batch| held.push(batch))).find_map(Result::err).unwrap();
    assert!(matches!(error, Error::SharedMemoryExhausted { .. }), "{error}");
    for named in ["to_owned_tensor", "to_burn", "into_dlpack", "view"] {
        assert!(error.to_string().contains(named), "{error}");
    }
}

#[test]
fn a_stream_lets_the_runtime_work_while_it_waits() {
    let _watchdog = Watchdog::start();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let gate = Gate::closed();
    let dataset = Gated { count: 20, slow: 3, gate: gate.path() };
    let loader = DataLoader::builder(dataset).num_workers(2).build().unwrap();
    let mut batches = loader.iter().unwrap().into_stream().unwrap();
    let ticks = AtomicUsize::new(0);
    runtime.block_on(async {
        let load = async {
            let mut numbers = Vec::new();
            while let Some(batch) = batches.next().await {
                numbers.push(batch.unwrap().0.as_slice()[0]);
            }
            numbers
        };
        let tick = async {
            for _ in 0..20 {
                tokio::time::sleep(Duration::from_millis(5)).await;
                ticks.fetch_add(1, Ordering::Relaxed);
            }
            gate.open();
        };
        let (numbers, ()) = tokio::join!(load, tick);
        assert_eq!(numbers, (0..20).collect::<Vec<u64>>());
        assert_eq!(ticks.load(Ordering::Relaxed), 20);
    });
    assert_eq!(batches.report().map(|report| report.batches), Some(20));
    assert_eq!((batches.state().epoch(), batches.last_batch().map(|info| info.number)), (1, Some(19)));
}

#[test]
fn a_dropped_stream_does_not_wait() {
    alone(|| {
        let before = Before::take();
        let gate = Gate::closed();
        let dataset = Gated { count: 20, slow: 0, gate: gate.path() };
        let loader = DataLoader::builder(dataset).num_workers(1).build().unwrap();
        let iter = loader.iter().unwrap();
        let pids = iter.worker_pids();
        let batches = iter.into_stream().unwrap();
        let ((), took) = timed(|| drop(batches));
        assert_soon(took);
        processes::wait_until_gone(&pids, Duration::from_secs(20)).unwrap();
        drop((loader, gate));
        before.assert_nothing_left();
    });
}
