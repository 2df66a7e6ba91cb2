//! Workers that persist from one epoch to the next. Other tests load in every way of
//! [`loader_tests::ways::WAYS`], which includes persistent workers.

use std::{
    path::PathBuf,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use loader_core::{Builder, Error, WorkerState, kind::DatasetKind, prelude::*};
use loader_tests::{
    Watchdog,
    datasets::{Count, Counting, Fault, Faulty, Large, Noise, Slow},
    digest, processes,
    timing::{assert_soon, timed},
    ways::all,
};
use nix::sys::signal::Signal;
use serde::{Deserialize, Serialize};

/// Sets two persistent workers.
fn two_persistent<K: DatasetKind>(builder: Builder<K>) -> Builder<K> {
    builder.num_workers(2).persistent_workers(true)
}

/// A loader of eight batches.
fn noise() -> DataLoader<(Tensor<u64>, Tensor<f32>, Vec<String>)> {
    two_persistent(DataLoader::builder(Noise { count: 30 }).batch_size(4)).build().unwrap()
}

// PyTorch: U10, U13
#[test]
fn the_processes_persist_until_the_loader_is_dropped() {
    let _watchdog = Watchdog::start();
    for workers in [1, 3] {
        let builder = || DataLoader::builder(Noise { count: 60 }).batch_size(7).shuffle(true);
        let persistent = builder().num_workers(workers).persistent_workers(true).build().unwrap();
        let plain = builder().build().unwrap();
        let mut pids = Vec::new();
        for _ in 0..4 {
            let batches = persistent.iter().unwrap();
            pids.push(batches.worker_pids());
            assert_eq!(digest(batches).unwrap(), digest(plain.iter().unwrap()).unwrap());
        }
        assert!(pids.windows(2).all(|pair| pair[0] == pair[1]), "{pids:?}");
        assert!(pids[0].iter().all(|&pid| processes::is_running(pid)));
        drop(persistent);
        assert!(!processes::any_exists(&pids[0]));
    }
}

/// Epochs, some left early, some resumed, in any order: each is the same as without workers.
// PyTorch: P-07, T20
#[test]
fn abandoned_and_resumed_epochs_leave_no_trace_in_later_ones() {
    let _watchdog = Watchdog::start();
    let build = |workers: usize, persistent: bool| {
        let builder = DataLoader::stream(Counting { count: 60 }).shards(4).batch_size(4).seed(9);
        builder.num_workers(workers).persistent_workers(persistent).build().unwrap()
    };
    let (plain, persistent) = (build(0, false), build(3, true));
    let mut pids = Vec::new();
    for (epoch, stop) in [(0, 3), (0, 0), (1, 99), (5, 7), (1, 1), (2, 99)] {
        let mut batches = persistent.epoch(epoch).unwrap();
        pids.push(batches.worker_pids());
        let first: Vec<_> = batches.by_ref().take(stop).map(Result::unwrap).collect();
        let state = batches.state();
        drop(batches);
        let mut expected = plain.epoch(epoch).unwrap();
        assert!(expected.by_ref().take(stop).map(Result::unwrap).eq(first));
        if stop < 99 {
            let rest = persistent.resume(&state).unwrap();
            pids.push(rest.worker_pids());
            assert_eq!(all(rest), all(expected), "epoch {epoch} from batch {stop} on");
        }
    }
    assert!(pids.windows(2).all(|pair| pair[0] == pair[1]), "{pids:?}");
}

/// Number of samples that this process has loaded.
static LOADED: AtomicU64 = AtomicU64::new(0);

// PyTorch: 106, A15
#[test]
fn a_process_keeps_its_state_between_epochs() {
    let _watchdog = Watchdog::start();
    let dataset = Count(4).map(|_, _| Ok(LOADED.fetch_add(1, Ordering::Relaxed)));
    let builder = DataLoader::builder(dataset).batch_size(4).num_workers(1).persistent_workers(true);
    let loader = builder.build().unwrap();
    for epoch in 0..10 {
        let batch = loader.iter().unwrap().next().unwrap().unwrap();
        assert_eq!(batch.as_slice(), [0, 1, 2, 3].map(|sample| 4 * epoch + sample));
    }
    assert_eq!(LOADED.load(Ordering::Relaxed), 0, "main's counter is a different one");
}

// PyTorch: X20, N05
#[test]
fn a_worker_leaves_a_batch_of_an_abandoned_epoch_between_two_samples() {
    let _watchdog = Watchdog::start();
    // A batch takes 10 s.
    let dataset = Slow { count: 1000, delay: Duration::from_millis(20) };
    let builder = DataLoader::builder(dataset).batch_size(500).prefetch_factor(4);
    let loader = two_persistent(builder).build().unwrap();
    let batches = loader.iter().unwrap();
    let pids = batches.worker_pids();
    thread::sleep(Duration::from_millis(100));
    let (batches, took) = timed(|| {
        drop(batches);
        loader.iter().unwrap()
    });
    assert_soon(took);
    assert_eq!(batches.worker_pids(), pids);
}

/// Slots grow, are offered and granted while epochs are abandoned.
#[test]
fn held_batches_are_intact_after_epochs_that_were_abandoned() {
    let _watchdog = Watchdog::start();
    let builder = DataLoader::builder(Large { count: 64, bytes: 700_000 }).batch_size(2).prefetch_factor(3);
    let loader = two_persistent(builder).build().unwrap();
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

/// Of two iterators at the same time, the workers of one persist.
// PyTorch: X02
#[test]
fn a_second_iterator_has_its_own_workers_which_end() {
    let _watchdog = Watchdog::start();
    let loader = noise();
    let mut pids = Vec::new();
    for stop in [99, 1, 1] {
        let (one, two) = (loader.epoch(0).unwrap(), loader.epoch(0).unwrap());
        let both = [one.worker_pids(), two.worker_pids()];
        assert!(both[0].iter().all(|pid| !both[1].contains(pid)), "{both:?}");
        pids.extend(both.concat());
        for (one, two) in one.zip(two).take(stop) {
            assert_eq!(one.unwrap(), two.unwrap());
        }
    }
    pids.sort_unstable();
    pids.dedup();
    assert_eq!(pids.iter().filter(|&&pid| processes::exists(pid)).count(), 2);
    drop(loader);
    assert!(!processes::any_exists(&pids));
}

#[test]
fn the_workers_end_with_an_iterator_that_outlives_its_loader() {
    let _watchdog = Watchdog::start();
    let mut batches = noise().iter().unwrap();
    let pids = batches.worker_pids();
    assert_eq!(batches.by_ref().filter(Result::is_ok).count(), 8);
    assert!(!processes::any_exists(&pids));
}

// PyTorch: N02
#[test]
fn all_workers_are_replaced_if_one_died_between_two_epochs() {
    let _watchdog = Watchdog::start();
    let loader = noise();
    let first = loader.iter().unwrap();
    let pids = first.worker_pids();
    let expected = digest(first).unwrap();
    processes::signal(pids[1], Signal::SIGKILL);
    let second = loader.epoch(0).unwrap();
    assert!(second.worker_pids().iter().all(|pid| !pids.contains(pid)));
    assert_eq!(digest(second).unwrap(), expected);
    assert!(!processes::any_exists(&pids));
}

#[test]
fn an_error_that_ends_the_iteration_ends_the_workers() {
    let _watchdog = Watchdog::start();
    let builder = DataLoader::builder(Faulty { count: 30, at: 7, fault: Fault::Kill });
    let loader = two_persistent(builder).on_worker_death(OnWorkerDeath::Fail).build().unwrap();
    let mut batches = loader.iter().unwrap();
    let pids = batches.worker_pids();
    let error = batches.find_map(Result::err).unwrap();
    assert!(error.ends_iteration(), "{error:?}");
    drop(batches);
    assert!(!processes::any_exists(&pids));
    assert!(loader.iter().unwrap().next().unwrap().is_ok());
}

#[test]
fn a_report_counts_the_batches_of_its_own_epoch() {
    let _watchdog = Watchdog::start();
    let loader = two_persistent(DataLoader::builder(Count(20))).build().unwrap();
    for _ in 0..3 {
        let mut batches = loader.iter().unwrap();
        batches.by_ref().for_each(|batch| drop(batch.unwrap()));
        let workers = batches.report().workers;
        assert_eq!(workers.iter().map(|worker| worker.batches).sum::<u64>(), 20);
    }
}

#[test]
fn all_workers_are_replaced_if_one_hangs_in_an_abandoned_epoch() {
    let _watchdog = Watchdog::start();
    let warnings = Arc::new(Mutex::new(Vec::new()));
    let collected = Arc::clone(&warnings);
    let builder = DataLoader::builder(Faulty { count: 100, at: 3, fault: Fault::Hang });
    let builder = two_persistent(builder).timeout(Duration::from_millis(300));
    let loader = builder
        .on_warning(move |warning| collected.lock().unwrap().push(format!("{warning:?}")))
        .build()
        .unwrap();
    let mut batches = loader.iter().unwrap();
    let pids = batches.worker_pids();
    assert_eq!(batches.by_ref().take(3).filter(Result::is_ok).count(), 3);
    // Until the worker is in the sample: otherwise main takes the task back, and no worker hangs.
    loop {
        let Some(Err(Error::TimedOut { waiting_for, .. })) = batches.next() else { panic!("it hangs") };
        if (waiting_for.state, waiting_for.batch) == (WorkerState::Fetching, 3) {
            break;
        }
    }
    drop(batches);
    let batches = loader.iter().unwrap();
    assert!(batches.worker_pids().iter().all(|pid| !pids.contains(pid)));
    let warnings = warnings.lock().unwrap();
    let [warning] = &warnings[..] else { panic!("{warnings:?}") };
    assert!(warning.contains("WorkersReplaced") && warning.contains("sample 3 of batch 3"), "{warning}");
}

/// Loads the samples 0 to 3, of which the last takes a second. Its warnings go to the returned list.
fn last_is_slow(on_death: OnWorkerDeath) -> (DataLoader<Tensor<u64>>, Arc<Mutex<Vec<String>>>) {
    let warnings = Arc::new(Mutex::new(Vec::new()));
    let collected = Arc::clone(&warnings);
    let dataset = Count(4).map(|sample, _| {
        if sample == 3 {
            thread::sleep(Duration::from_secs(1));
        }
        Ok(sample)
    });
    let builder = two_persistent(DataLoader::builder(dataset)).move_tasks(false).on_worker_death(on_death);
    let loader = builder.on_warning(move |warning| collected.lock().unwrap().push(format!("{warning:?}")));
    (loader.build().unwrap(), warnings)
}

#[test]
fn a_worker_that_dies_after_its_last_batch_fails_the_epoch_or_gives_a_warning() {
    let _watchdog = Watchdog::start();
    for on_death in [OnWorkerDeath::Restart, OnWorkerDeath::Fail] {
        let (loader, warnings) = last_is_slow(on_death);
        let mut batches = loader.iter().unwrap();
        assert_eq!(batches.by_ref().take(3).filter(Result::is_ok).count(), 3);
        processes::signal(batches.worker_pids()[0], Signal::SIGKILL);
        let last = batches.next().unwrap();
        if on_death == OnWorkerDeath::Fail {
            assert!(matches!(last, Err(Error::WorkerExited { worker: 0, .. })), "{last:?}");
            continue;
        }
        assert_eq!(last.unwrap().as_slice(), [3]);
        drop(batches);
        assert_eq!(loader.iter().unwrap().filter(Result::is_ok).count(), 4);
        let warnings = warnings.lock().unwrap();
        let [warning] = &warnings[..] else { panic!("{warnings:?}") };
        assert!(warning.contains("WorkersReplaced") && warning.contains("SIGKILL"), "{warning}");
    }
}

#[test]
fn a_worker_that_dies_between_two_epochs_fails_the_next_or_gives_a_warning() {
    let _watchdog = Watchdog::start();
    for on_death in [OnWorkerDeath::Restart, OnWorkerDeath::Fail] {
        let (loader, warnings) = last_is_slow(on_death);
        let mut batches = loader.iter().unwrap();
        let pids = batches.worker_pids();
        assert_eq!(batches.by_ref().filter(Result::is_ok).count(), 4);
        processes::signal(pids[1], Signal::SIGKILL);
        if on_death == OnWorkerDeath::Fail {
            let error = loader.iter().unwrap_err();
            assert!(matches!(error, Error::WorkerExited { worker: 1, .. }), "{error}");
        }
        assert_eq!(loader.iter().unwrap().filter(Result::is_ok).count(), 4);
        let warnings = warnings.lock().unwrap();
        let is_replaced =
            |warning: &String| warning.contains("WorkersReplaced") && warning.contains("SIGKILL");
        let expected = usize::from(on_death == OnWorkerDeath::Restart);
        assert_eq!(warnings.iter().filter(|warning| is_replaced(warning)).count(), expected, "{warnings:?}");
        assert_eq!(warnings.len(), expected, "{warnings:?}");
    }
}

#[test]
fn workers_that_end_give_their_slots_back() {
    let _watchdog = Watchdog::start();
    let dataset = Slow { count: 100, delay: Duration::from_millis(2) };
    let loader = two_persistent(DataLoader::builder(dataset)).build().unwrap();
    let mut bytes = Vec::new();
    for _ in 0..12 {
        // The loader keeps the workers of the first iterator only. Then one of them dies while it waits for
        // an epoch.
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

/// Its `setup` fails while the file exists.
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
fn workers_whose_setup_failed_do_not_persist() {
    let _watchdog = Watchdog::start();
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing");
    std::fs::write(&missing, "").unwrap();
    let loader = two_persistent(DataLoader::builder(Mounted { missing: missing.clone() })).build().unwrap();
    assert_eq!(loader.iter().unwrap().filter(Result::is_err).count(), 6);
    std::fs::remove_file(&missing).unwrap();
    assert_eq!(loader.iter().unwrap().filter(Result::is_ok).count(), 6);
}
