//! Workers that are killed from outside at any moment: while they start, load and end, one by one and all at once.

use std::{
    process,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

use loader_core::{Builder, Error, collate::Batch, kind::DatasetKind, prelude::*};
use loader_tests::{
    alone::alone,
    datasets::{Counting, Fault, Large, Mortal, Noise, Slow},
    digest, processes,
    timing::{assert_soon, timed},
    traces::Before,
};
use nix::sys::signal::Signal;

use crate::worker_deaths::{noise, undisturbed};

/// Sends SIGKILL to a process, which may be gone.
pub(crate) fn shoot(pid: u32) {
    processes::try_signal(pid, Signal::SIGKILL);
}

/// Ends a hunt, also when what it is for panics.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Kills at most `most` workers of this process, one every `pause`, while `action` runs; returns its result
/// and the number of kills. `action` can ask for the number of kills so far.
fn hunting<T>(pause: Duration, most: usize, action: impl FnOnce(&dyn Fn() -> usize) -> T) -> (T, usize) {
    let (over, killed) = (AtomicBool::new(false), AtomicUsize::new(0));
    let is_worker = |pid: &u32| {
        processes::is_running(*pid) && processes::command_line(*pid).starts_with("loader-worker-")
    };
    let outcome = thread::scope(|scope| {
        scope.spawn(|| {
            let mut kills = 0;
            while !over.load(Ordering::Relaxed) && kills < most {
                let mut workers = processes::children(process::id());
                workers.retain(is_worker);
                let victim = workers.get(kills % workers.len().max(1));
                if victim.is_some_and(|&pid| processes::try_signal(pid, Signal::SIGKILL)) {
                    kills += 1;
                    killed.store(kills, Ordering::Relaxed);
                }
                thread::sleep(pause);
            }
        });
        let _over = Over(&over);
        action(&|| killed.load(Ordering::Relaxed))
    });
    println!("{killed:?} workers were killed");
    (outcome, killed.into_inner())
}

/// Runs `action` again and again until `kills` workers were killed, one every `pause`.
pub(crate) fn hunted_until(kills: usize, pause: Duration, mut action: impl FnMut()) {
    hunting(pause, kills, |killed| {
        while killed() < kills {
            action();
        }
    });
}

/// All batches of two epochs while workers are killed again and again, and of an undisturbed run.
fn assert_same_when_hunted<K, C, W, B>(
    build: impl Fn() -> Builder<K, C, W>,
    finish: impl Fn(Builder<K, C, W>) -> Result<DataLoader<B>, Error>,
) where
    K: DatasetKind,
    B: Batch,
{
    let load = |loader: &DataLoader<B>| [0, 1].map(|epoch| digest(loader.epoch(epoch).unwrap()).unwrap());
    let expected = load(&finish(build()).unwrap());
    for stays in [false, true] {
        let builder = build().max_worker_deaths(1000).persistent_workers(stays);
        let loader = finish(builder.on_warning(|_| {})).unwrap();
        hunted_until(30, Duration::from_millis(7), || {
            assert_eq!(load(&loader), expected, "stays: {stays}");
        });
    }
}

#[test]
fn again_and_again_with_small_batches() {
    alone(|| {
        let before = Before::take();
        assert_same_when_hunted(|| noise(3000).num_workers(2), |builder| builder.build());
        before.assert_nothing_left();
    });
}

#[test]
fn again_and_again_with_batches_that_need_larger_slots() {
    alone(|| {
        let before = Before::take();
        let build = || DataLoader::builder(Large { count: 400, bytes: 300_000 }).batch_size(2).num_workers(2);
        assert_same_when_hunted(build, |builder| builder.build());
        before.assert_nothing_left();
    });
}

#[test]
fn again_and_again_with_long_lists_of_indices() {
    alone(|| {
        let before = Before::take();
        let build =
            || DataLoader::builder(Noise { count: 14_000 }).batch_size(700).shuffle(true).num_workers(2);
        assert_same_when_hunted(build, |builder| builder.build());
        before.assert_nothing_left();
    });
}

#[test]
fn again_and_again_with_streams() {
    alone(|| {
        let before = Before::take();
        let build = || DataLoader::stream(Counting { count: 4000 }).batch_size(4).shards(5).num_workers(2);
        assert_same_when_hunted(build, |builder| builder.build());
        let counting = || Mortal { count: 1500, fault: Fault::Hang, lives: "/nowhere".into() };
        let build = || DataLoader::stream(counting()).snapshots().batch_size(4).shards(3).num_workers(2);
        assert_same_when_hunted(build, |builder| builder.build());
        before.assert_nothing_left();
    });
}

#[test]
fn again_and_again_with_batches_in_any_order_that_are_held() {
    alone(|| {
        let before = Before::take();
        let builder = DataLoader::builder(Large { count: 200, bytes: 50_000 }).num_workers(2).in_order(false);
        let loader = builder.max_worker_deaths(1000).on_warning(|_| {}).build().unwrap();
        hunted_until(20, Duration::from_millis(5), || {
            let mut held: Vec<Tensor<u8>> = loader.iter().unwrap().map(Result::unwrap).collect();
            held.sort_unstable_by_key(|batch| batch.as_slice()[0]);
            assert_eq!(held.len(), 200);
            for (index, batch) in held.iter().enumerate() {
                assert!(batch.as_slice().iter().all(|&byte| byte == index as u8), "batch {index}");
            }
        });
        drop(loader);
        before.assert_nothing_left();
    });
}

#[test]
fn while_they_start() {
    alone(|| {
        let before = Before::take();
        let expected = undisturbed(40, 0);
        let loader = noise(40).num_workers(2).on_warning(|_| {}).build().unwrap();
        let (mut right, mut refused) = (0, 0);
        // On an idle machine ten epochs end within the longest pause.
        for (pause, min_kills, min_right) in
            [(200, 1, 0), (1000, 1, 0), (3000, 1, 0), (9000, 1, 0), (100_000, 0, 5)]
        {
            let before = right;
            let rounds = |_: &dyn Fn() -> usize| {
                for _ in 0..10 {
                    let (outcome, took) = timed(|| loader.epoch(0).and_then(digest));
                    assert_soon(took);
                    match outcome {
                        Ok(digest) => {
                            assert_eq!(digest, expected);
                            right += 1;
                        }
                        Err(Error::WorkerNotStarted { .. } | Error::WorkerExited { .. }) => refused += 1,
                        Err(error) => panic!("{error:?}"),
                    }
                }
            };
            let ((), kills) = hunting(Duration::from_micros(pause), usize::MAX, rounds);
            println!("a kill every {pause} us: {kills} kills, {} of 10 epochs are right", right - before);
            assert!(kills >= min_kills && right - before >= min_right);
        }
        println!("{right} epochs are right, {refused} were refused");
        assert!(refused > 0, "no kill hit a worker that starts");
        assert_eq!(digest(loader.epoch(0).unwrap()).unwrap(), expected);
        drop(loader);
        before.assert_nothing_left();
    });
}

/// Rust's handler ignores the first SIGSEGV that another process sends, so the signal interrupts a system
/// call and does not end the worker.
#[test]
fn one_sigsegv_while_they_start() {
    alone(|| {
        let before = Before::take();
        let expected = undisturbed(40, 0);
        let builder = noise(40).num_workers(2).worker_program(env!("CARGO_BIN_EXE_test-worker"));
        let loader = builder.registered("noise").on_warning(|_| {}).build().unwrap();
        let hits = AtomicUsize::new(0);
        for round in 0..100 {
            let over = AtomicBool::new(false);
            let found = thread::scope(|scope| {
                scope.spawn(|| {
                    while !over.load(Ordering::Relaxed) {
                        if let Some(&pid) = processes::children(process::id()).first() {
                            thread::sleep(Duration::from_micros(60 * round));
                            let hit = processes::try_signal(pid, Signal::SIGSEGV);
                            hits.fetch_add(usize::from(hit), Ordering::Relaxed);
                            return;
                        }
                    }
                });
                let _over = Over(&over);
                loader.epoch(0).and_then(digest)
            });
            assert_eq!(found.unwrap_or_else(|error| panic!("round {round}: {error}")), expected);
        }
        println!("{hits:?} workers were hit");
        assert!(hits.into_inner() > 50);
        drop(loader);
        before.assert_nothing_left();
    });
}

#[test]
fn at_the_sentinel() {
    alone(|| {
        let before = Before::take();
        for (stays, in_order) in [(false, true), (false, false), (true, true)] {
            let dataset = Slow { count: 20, delay: Duration::ZERO };
            let builder = DataLoader::builder(dataset).num_workers(2).persistent_workers(stays);
            let loader = builder.in_order(in_order).on_warning(|_| {}).build().unwrap();
            for round in 0..10 {
                let mut batches = loader.iter().unwrap();
                for _ in 0..20 {
                    batches.next().unwrap().unwrap();
                }
                thread::sleep(Duration::from_micros(200 * round));
                batches.worker_pids().into_iter().for_each(shoot);
                let (end, took) = timed(|| batches.next());
                assert!(end.is_none(), "{end:?}");
                assert_soon(took);
            }
        }
        before.assert_nothing_left();
    });
}

#[test]
fn all_at_once() {
    alone(|| {
        let before = Before::take();
        let mut batches = noise(2000).num_workers(4).on_warning(|_| {}).build().unwrap().epoch(0).unwrap();
        let mut content = Digest::new();
        let mut number = 0;
        while let Some(batch) = batches.next() {
            content.add(&batches.last_batch().unwrap().indices, &batch.unwrap());
            if number % 150 == 0 && number < 450 {
                let pids = batches.worker_pids();
                pids.iter().for_each(|&pid| shoot(pid));
                // Nobody is left to load anything.
                processes::wait_until_gone(&pids, Duration::from_secs(5)).unwrap();
            }
            number += 1;
        }
        assert_eq!((content.order(), content.content()), undisturbed(2000, 0));
        assert_eq!(batches.report().restarts, 12);
        drop(batches);
        before.assert_nothing_left();
    });
}

#[test]
fn and_the_iterator_is_dropped_before_another_has_come() {
    alone(|| {
        let before = Before::take();
        let loader = noise(4000).num_workers(2).on_warning(|_| {}).build().unwrap();
        for round in 0..30 {
            let mut batches = loader.iter().unwrap();
            batches.next().unwrap().unwrap();
            batches.worker_pids().into_iter().for_each(shoot);
            let started = Instant::now();
            // Long enough that it is noticed, and another one is on its way.
            while started.elapsed() < Duration::from_micros(400 * round) {
                batches.next().unwrap().unwrap();
            }
            let ((), took) = timed(|| drop(batches));
            assert_soon(took);
        }
        drop(loader);
        before.assert_nothing_left();
    });
}
