//! `timeout` and `warn_after`: what `next` returns or reports while it waits for a batch.

use std::{
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

use loader_core::{Error, Warning, WorkerState, prelude::*};
use loader_tests::{
    Watchdog,
    datasets::{Count, SlowFirst},
    gate::{Gate, Gated},
    processes,
    timing::timed,
};
use serde::{Deserialize, Serialize};

/// The time is measured from the call of `next`. Other batches that arrive do not extend it, as they do in
/// PyTorch.
// PyTorch: 42, P-20, X12, N16, U23
#[test]
fn a_timeout_names_the_worker_and_the_sample_and_loses_no_batch() {
    let _watchdog = Watchdog::start();
    let gate = Gate::closed();
    let timeout = Duration::from_millis(200);
    let dataset = Gated { count: 40, slow: 0, gate: gate.path() }.map(|sample, _| {
        thread::sleep(Duration::from_millis(20));
        Ok(sample)
    });
    let builder = DataLoader::builder(dataset).num_workers(2).prefetch_factor(15).timeout(timeout);
    let loader = builder.build().unwrap();
    let mut batches = loader.iter().unwrap();
    let pids = batches.worker_pids();
    for _ in 0..2 {
        let started = Instant::now();
        let error = batches.next().unwrap().unwrap_err();
        assert!(started.elapsed() >= timeout && started.elapsed() < 10 * timeout);
        let Error::TimedOut { after, waiting_for } = &error else { panic!("{error:?}") };
        assert_eq!((*after, waiting_for.worker, waiting_for.pid), (timeout, 0, pids[0]));
        assert_eq!((waiting_for.state, waiting_for.index, waiting_for.batch), (WorkerState::Fetching, 0, 0));
        assert!(error.to_string().contains(", fetching sample 0 of batch 0"), "{error}");
    }
    gate.open();
    let numbers = batches.filter_map(Result::ok).map(|(number, _)| number.as_slice()[0]);
    assert!(numbers.eq(0..40), "a batch was lost");
    assert!(pids.iter().all(|&pid| !processes::exists(pid)));
}

/// Takes nearly two timeouts of 500 ms to open, and then half a timeout for its first sample.
#[derive(Serialize, Deserialize)]
struct SlowToOpen;

impl Dataset for SlowToOpen {
    type Sample = u64;

    fn len(&self) -> usize {
        4
    }

    fn setup(&mut self, _cx: &mut SampleContext) -> anyhow::Result<()> {
        thread::sleep(Duration::from_millis(950));
        Ok(())
    }

    fn get(&self, index: usize, _cx: &mut SampleContext) -> anyhow::Result<u64> {
        thread::sleep(Duration::from_millis(if index == 0 { 250 } else { 0 }));
        Ok(index as u64)
    }
}

#[test]
fn opening_the_dataset_does_not_count_towards_the_timeout() {
    let _watchdog = Watchdog::start();
    let builder = DataLoader::builder(SlowToOpen).num_workers(2).timeout(Duration::from_millis(500));
    let loader = builder.build().unwrap();
    let (count, took) = timed(|| loader.iter().unwrap().map(Result::unwrap).count());
    assert_eq!(count, 4);
    assert!(took >= Duration::from_millis(1_200), "{took:?}: the timeout must be shorter than the wait");
}

// PyTorch: A10
#[test]
fn a_timeout_of_one_iterator_does_not_affect_another() {
    let _watchdog = Watchdog::start();
    let gate = Gate::closed();
    let dataset = Gated { count: 6, slow: 3, gate: gate.path() };
    let builder = DataLoader::builder(dataset).num_workers(1).timeout(Duration::from_millis(100));
    let loader = builder.persistent_workers(true).build().unwrap();
    let (mut one, mut two) = (loader.epoch(0).unwrap(), loader.epoch(0).unwrap());
    assert!(one.by_ref().take(3).all(|batch| batch.is_ok()));
    assert!(matches!(one.next().unwrap(), Err(Error::TimedOut { .. })));
    assert!(two.by_ref().take(3).all(|batch| batch.is_ok()));
    assert!(matches!(one.next().unwrap(), Err(Error::TimedOut { .. })));
    gate.open();
    assert_eq!((one.filter(Result::is_ok).count(), two.filter(Result::is_ok).count()), (3, 3));
}

#[test]
fn a_timeout_beyond_the_range_of_the_clock_is_no_timeout() {
    let _watchdog = Watchdog::start();
    let builder = DataLoader::builder(Count(4)).num_workers(1).timeout(Duration::from_secs(u64::MAX / 2));
    assert_eq!(builder.build().unwrap().iter().unwrap().filter(Result::is_ok).count(), 4);
}

#[test]
fn a_long_wait_is_warned_of_once_with_worker_and_sample() {
    let _watchdog = Watchdog::start();
    let warnings = Arc::new(Mutex::new(Vec::new()));
    let collected = Arc::clone(&warnings);
    let dataset = SlowFirst { count: 3, delay: Duration::from_millis(600), numbers: 1 };
    let builder = DataLoader::builder(dataset).num_workers(1).warn_after(Duration::from_millis(100));
    let loader =
        builder.on_warning(move |warning| collected.lock().unwrap().push(warning.clone())).build().unwrap();
    let mut batches = loader.iter().unwrap();
    let pid = batches.worker_pids()[0];
    assert_eq!(batches.by_ref().filter(Result::is_ok).count(), 3);
    let warnings = warnings.lock().unwrap();
    let [Warning::LongWait { waiting_for, .. }] = &warnings[..] else { panic!("{warnings:?}") };
    assert_eq!((waiting_for.worker, waiting_for.pid, waiting_for.batch, waiting_for.index), (0, pid, 0, 0));
    let text = warnings[0].to_string();
    assert!(text.starts_with("no batch for 100ms: waiting for worker 0 (pid "), "{text}");
    assert!(text.contains("fetching sample 0 of batch 0 for 0."), "{text}");
}
