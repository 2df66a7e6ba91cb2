//! A batch that is late is also given to a worker that has nothing to do.

use std::{
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use loader_core::{Error, Iter, collate::Batch, prelude::*};
use loader_tests::{
    Watchdog,
    datasets::{Fault, Mortal, Slow, put_lives, take_life},
    processes,
};
use nix::sys::signal::Signal;
use serde::{Deserialize, Serialize};

fn digest<B: Batch>(batches: Iter<B>) -> (u64, u64) {
    loader_tests::digest(batches).unwrap_or_else(|error| panic!("{error}"))
}

/// Samples that hang when they are tried first.
fn hesitant(lives: &Path) -> Mortal {
    Mortal { count: 100, fault: Fault::Hang, lives: lives.to_owned() }
}

// PyTorch: U17
#[test]
fn a_batch_that_hangs_once_comes_from_another_worker() {
    let _watchdog = Watchdog::start();
    let folder = tempfile::tempdir().unwrap();
    let builder = || DataLoader::builder(hesitant(folder.path())).batch_size(4).shuffle(true);
    let undisturbed = digest(builder().build().unwrap().iter().unwrap());
    for stays in [false, true] {
        put_lives(folder.path(), &[(30, 1)]);
        let loader = builder().num_workers(2).hedge(true).persistent_workers(stays).build().unwrap();
        let batches = loader.iter().unwrap();
        let pids = batches.worker_pids();
        let started = Instant::now();
        assert_eq!(digest(batches), undisturbed);
        // One worker is ended hard, the other had to do the rest.
        assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
        drop(loader);
        assert!(pids.iter().all(|&pid| !processes::exists(pid)));
    }
}

#[test]
fn a_stopped_worker_holds_nobody_up() {
    let _watchdog = Watchdog::start();
    let builder = || DataLoader::builder(Slow { count: 200, delay: Duration::from_millis(1) }).batch_size(2);
    let undisturbed = digest(builder().build().unwrap().iter().unwrap());
    let loader = builder().num_workers(3).hedge(true).build().unwrap();
    let mut batches = loader.iter().unwrap();
    let mut digest = Digest::new();
    let stopped = batches.worker_pids()[1];
    for step in 0..100 {
        let batch = batches.next().unwrap().unwrap();
        digest.add(&batches.last_batch().unwrap().indices, &batch);
        match step {
            10 => processes::signal(stopped, Signal::SIGSTOP),
            // It comes back with what others have done by now.
            60 => processes::signal(stopped, Signal::SIGCONT),
            _ => {}
        }
    }
    assert!(batches.next().is_none());
    assert_eq!((digest.order(), digest.content()), undisturbed);
}

#[test]
fn deaths_on_either_side_change_nothing() {
    let _watchdog = Watchdog::start();
    let folder = tempfile::tempdir().unwrap();
    let builder = |lives: &Path| DataLoader::builder(hesitant(lives)).batch_size(4);
    let undisturbed = digest(builder(folder.path()).build().unwrap().iter().unwrap());
    let check = |victim: usize, delay| {
        let folder = tempfile::tempdir().unwrap();
        put_lives(folder.path(), &[(30, 1), (70, 1)]);
        let loader = builder(folder.path()).num_workers(4).hedge(true).on_warning(|_| {}).build().unwrap();
        let batches = loader.iter().unwrap();
        let pid = batches.worker_pids()[victim];
        let killer = thread::spawn(move || {
            thread::sleep(Duration::from_millis(delay));
            processes::try_signal(pid, Signal::SIGKILL)
        });
        assert_eq!(digest(batches), undisturbed, "worker {victim} killed after {delay} ms");
        killer.join().unwrap();
    };
    // At the same time: each loader waits 5 seconds at its end for a worker that hangs.
    thread::scope(|scope| {
        for (victim, delay) in [(0, 15), (0, 40), (2, 15), (2, 40)] {
            scope.spawn(move || check(victim, delay));
        }
    });
}

#[test]
fn the_last_batch_may_be_late_too() {
    let _watchdog = Watchdog::start();
    let folder = tempfile::tempdir().unwrap();
    let builder = || DataLoader::builder(hesitant(folder.path())).batch_size(4);
    let undisturbed = digest(builder().build().unwrap().iter().unwrap());
    put_lives(folder.path(), &[(99, 1)]);
    assert_eq!(digest(builder().num_workers(2).hedge(true).build().unwrap().iter().unwrap()), undisturbed);
}

/// Small samples but for numbers 0, which makes the next slots large, and 60, for which there is no room beside such a slot. Number 10 hangs
/// when it is tried first.
#[derive(Debug, Serialize, Deserialize)]
struct LargeAfterHang {
    lives: PathBuf,
}

impl Dataset for LargeAfterHang {
    type Sample = Vec<u8>;

    fn len(&self) -> usize {
        70
    }

    fn get(&self, index: usize, _cx: &mut SampleContext) -> anyhow::Result<Vec<u8>> {
        if index == 10 && take_life(&self.lives, index) {
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
fn a_slot_of_a_try_that_hangs_is_taken_from_it_when_memory_is_short() {
    let _watchdog = Watchdog::start();
    let folder = tempfile::tempdir().unwrap();
    put_lives(folder.path(), &[(10, 1)]);
    let loader = DataLoader::builder(LargeAfterHang { lives: folder.path().to_owned() }).num_workers(2);
    let loader = loader.hedge(true).shared_memory_limit(2304 << 10).timeout(Duration::from_secs(10));
    let loader = loader.on_warning(|_| {}).build().unwrap();
    let mut batches = loader.iter().unwrap();
    let bytes: Vec<u8> = batches.by_ref().map(|batch| batch.unwrap().as_slice()[0]).collect();
    assert_eq!(bytes, (0..70).collect::<Vec<_>>());
    assert_eq!(batches.report().restarts, 1);
}

#[test]
fn the_first_try_dies_while_nobody_waits() {
    let _watchdog = Watchdog::start();
    let folder = tempfile::tempdir().unwrap();
    let builder = || DataLoader::builder(hesitant(folder.path())).batch_size(4);
    let undisturbed = digest(builder().build().unwrap().iter().unwrap());
    put_lives(folder.path(), &[(30, 1)]);
    let loader = builder().num_workers(2).hedge(true).timeout(Duration::from_millis(40)).on_warning(|_| {});
    let loader = loader.build().unwrap();
    let mut batches = loader.iter().unwrap();
    let mut digest = Digest::new();
    let mut killed = false;
    while let Some(batch) = batches.next() {
        match batch {
            Ok(batch) => digest.add(&batches.last_batch().unwrap().indices, &batch),
            Err(Error::TimedOut { waiting_for, .. }) => {
                if !std::mem::replace(&mut killed, true) {
                    processes::try_signal(waiting_for.pid, Signal::SIGKILL);
                }
                thread::sleep(Duration::from_millis(100));
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!((digest.order(), digest.content()), undisturbed);
}
