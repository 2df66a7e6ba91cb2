//! Hedging: an idle worker makes a second attempt at a late batch.

use std::{
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};

use loader_core::{Builder, Error, kind::MapStyle, prelude::*};
use loader_tests::{
    Watchdog,
    datasets::{Fault, Flaky, Noise, Slow, put_tokens, take_token},
    digest, processes,
};
use nix::sys::signal::Signal;
use serde::{Deserialize, Serialize};
use tempfile::TempDir;

use crate::kills::kill;

/// Returns a builder for 100 samples, of which each sample in `late` hangs at its first attempt.
fn hangs_once(late: &[usize]) -> (Builder<MapStyle<Flaky>>, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let tokens: Vec<_> = late.iter().map(|&index| (index, 1)).collect();
    put_tokens(folder.path(), &tokens);
    let dataset = Flaky { count: 100, fault: Fault::Hang, tokens: folder.path().to_owned() };
    (DataLoader::builder(dataset).batch_size(4).hedge(true).on_warning(|_| {}), folder)
}

/// Returns the digest of these samples in an undisturbed epoch.
fn undisturbed() -> (u64, u64) {
    digest(DataLoader::builder(Noise { count: 100 }).batch_size(4).build().unwrap().iter().unwrap()).unwrap()
}

// PyTorch: U17
#[test]
fn a_batch_that_hangs_comes_from_another_worker() {
    let _watchdog = Watchdog::start();
    let expected = undisturbed();
    let check = |late: usize, persistent: bool| {
        let (builder, _folder) = hangs_once(&[late]);
        let loader = builder.num_workers(2).persistent_workers(persistent).build().unwrap();
        let batches = loader.iter().unwrap();
        let pids = batches.worker_pids();
        let started = Instant::now();
        assert_eq!(digest(batches).unwrap(), expected);
        // The drop kills the worker that hangs; until then the other one has loaded the rest.
        assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
        drop(loader);
        assert!(pids.iter().all(|&pid| !processes::exists(pid)));
    };
    // In parallel, because each drop waits 5 seconds for the worker that hangs.
    thread::scope(|scope| {
        for (late, persistent) in [(30, false), (30, true), (99, false)] {
            scope.spawn(move || check(late, persistent));
        }
    });
}

#[test]
fn a_stopped_worker_delays_no_batch_and_its_late_answers_are_ignored() {
    let _watchdog = Watchdog::start();
    let builder = || DataLoader::builder(Slow { count: 200, delay: Duration::from_millis(1) }).batch_size(2);
    let expected = digest(builder().build().unwrap().iter().unwrap()).unwrap();
    let loader = builder().num_workers(3).hedge(true).on_warning(|_| {}).build().unwrap();
    let mut batches = loader.iter().unwrap();
    let mut digest = BatchDigest::new();
    let stopped = batches.worker_pids()[1];
    for step in 0..100 {
        let batch = batches.next().unwrap().unwrap();
        digest.add(&batches.last_batch().unwrap().indices, &batch);
        match step {
            10 => processes::signal(stopped, Signal::SIGSTOP),
            // Other workers have loaded its batches by now.
            60 => processes::signal(stopped, Signal::SIGCONT),
            _ => {}
        }
    }
    assert!(batches.next().is_none());
    assert_eq!((digest.order(), digest.content()), expected);
}

#[test]
fn a_death_in_either_attempt_changes_nothing() {
    let _watchdog = Watchdog::start();
    let expected = undisturbed();
    let check = |victim: usize, delay| {
        let (builder, _folder) = hangs_once(&[30, 70]);
        let batches = builder.num_workers(4).build().unwrap().iter().unwrap();
        let pid = batches.worker_pids()[victim];
        let killer = thread::spawn(move || {
            thread::sleep(Duration::from_millis(delay));
            kill(pid);
        });
        assert_eq!(digest(batches).unwrap(), expected, "worker {victim} killed after {delay} ms");
        killer.join().unwrap();
    };
    // In parallel, because each drop waits 5 seconds for a worker that hangs.
    thread::scope(|scope| {
        for (victim, delay) in [(0, 15), (0, 40), (2, 15), (2, 40)] {
            scope.spawn(move || check(victim, delay));
        }
    });
}

/// Small samples, except sample 0, whose size the next slots have too, and sample 60, which does not fit into
/// the memory limit beside such a slot. Sample 10 hangs at its first attempt.
#[derive(Debug, Serialize, Deserialize)]
struct LargeAfterHang {
    tokens: PathBuf,
}

impl Dataset for LargeAfterHang {
    type Sample = Vec<u8>;

    fn len(&self) -> usize {
        70
    }

    fn get(&self, index: usize, _cx: &mut SampleContext) -> anyhow::Result<Vec<u8>> {
        if index == 10 && take_token(&self.tokens, index) {
            thread::sleep(Duration::from_secs(30));
        }
        let len = match index {
            0 => 300_000,
            60 => 2_100_000,
            _ => 100,
        };
        Ok(vec![index as u8; len])
    }
}

#[test]
fn a_late_attempt_loses_its_slot_when_memory_is_short() {
    let _watchdog = Watchdog::start();
    let folder = tempfile::tempdir().unwrap();
    put_tokens(folder.path(), &[(10, 1)]);
    let loader = DataLoader::builder(LargeAfterHang { tokens: folder.path().to_owned() }).num_workers(2);
    let loader = loader.hedge(true).shared_memory_limit(2304 << 10).timeout(Duration::from_secs(10));
    let loader = loader.on_warning(|_| {}).build().unwrap();
    let mut batches = loader.iter().unwrap();
    let bytes: Vec<u8> = batches.by_ref().map(|batch| batch.unwrap().as_slice()[0]).collect();
    assert_eq!(bytes, (0..70).collect::<Vec<_>>());
    assert_eq!(batches.report().restarts, 1);
}

#[test]
fn the_first_attempt_may_die_while_main_does_not_wait() {
    let _watchdog = Watchdog::start();
    let (builder, _folder) = hangs_once(&[30]);
    let loader = builder.num_workers(2).timeout(Duration::from_millis(40)).build().unwrap();
    let mut batches = loader.iter().unwrap();
    let mut digest = BatchDigest::new();
    let mut was_killed = false;
    while let Some(batch) = batches.next() {
        match batch {
            Ok(batch) => digest.add(&batches.last_batch().unwrap().indices, &batch),
            Err(Error::TimedOut { waiting_for, .. }) => {
                if !std::mem::replace(&mut was_killed, true) {
                    kill(waiting_for.pid);
                }
                thread::sleep(Duration::from_millis(100));
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!((digest.order(), digest.content()), undisturbed());
}
