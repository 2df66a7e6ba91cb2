//! Workers that are killed from outside at any moment: while they start, load or end, one after the other or
//! all at once.

use std::{
    process,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

use loader_core::{Error, prelude::*};
use loader_tests::{
    alone::alone,
    datasets::{Large, Slow},
    digest, processes,
    timing::{assert_noticed, assert_soon, timed},
    traces::Before,
};
use nix::sys::signal::Signal;

use crate::{noise, noise_digest};

/// Sends SIGKILL to a process, which may have ended.
pub(crate) fn kill(pid: u32) {
    processes::try_signal(pid, Signal::SIGKILL);
}

/// Sets its flag when it is dropped, even if the test panics.
struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Kills at most `max` workers of this process, one every `pause`, while `action` runs; returns its result
/// and the number of kills. `action` can ask for the number of kills so far.
fn while_killing<T>(pause: Duration, max: usize, action: impl FnOnce(&dyn Fn() -> usize) -> T) -> (T, usize) {
    let (is_over, killed) = (AtomicBool::new(false), AtomicUsize::new(0));
    let is_worker = |pid: &u32| {
        processes::is_running(*pid) && processes::command_line(*pid).starts_with("loader-worker-")
    };
    let outcome = thread::scope(|scope| {
        scope.spawn(|| {
            let mut kills = 0;
            while !is_over.load(Ordering::Relaxed) && kills < max {
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
        let _end = SetOnDrop(&is_over);
        action(&|| killed.load(Ordering::Relaxed))
    });
    println!("{killed:?} workers were killed");
    (outcome, killed.into_inner())
}

/// Repeats `action` until `kills` workers were killed, one every `pause`.
pub(crate) fn kill_until(kills: usize, pause: Duration, mut action: impl FnMut()) {
    while_killing(pause, kills, |killed| {
        while killed() < kills {
            action();
        }
    });
}

#[test]
fn batches_in_any_order_outlive_their_workers_and_their_loader() {
    alone(|| {
        let before = Before::take();
        let builder = DataLoader::builder(Large { count: 200, bytes: 50_000 }).num_workers(2).in_order(false);
        let loader = builder.max_worker_deaths(1000).on_warning(|_| {}).build().unwrap();
        let mut held: Vec<Tensor<u8>> = Vec::new();
        let check = |held: &[Tensor<u8>]| {
            assert_eq!(held.len(), 200);
            for (index, batch) in held.iter().enumerate() {
                assert!(batch.as_slice().iter().all(|&byte| byte == index as u8), "batch {index}");
            }
        };
        kill_until(20, Duration::from_millis(5), || {
            held = loader.iter().unwrap().map(Result::unwrap).collect();
            held.sort_unstable_by_key(|batch| batch.as_slice()[0]);
            check(&held);
        });
        drop(loader);
        check(&held);
        drop(held);
        before.assert_nothing_left();
    });
}

#[test]
fn a_start_whose_workers_are_killed_is_retried_or_an_error() {
    alone(|| {
        let before = Before::take();
        let expected = noise_digest(40, 0);
        let builder = noise(40).num_workers(2).max_worker_deaths(4).on_warning(|_| {});
        let loader = builder.build().unwrap();
        let (mut complete, mut refused) = (0, 0);
        // On an idle machine ten epochs end within the longest pause.
        for (pause, min_kills, min_complete) in
            [(200, 1, 0), (1000, 1, 0), (3000, 1, 0), (9000, 1, 0), (100_000, 0, 5)]
        {
            let before = complete;
            let load_ten = |_: &dyn Fn() -> usize| {
                for _ in 0..10 {
                    let (outcome, took) = timed(|| loader.epoch(0).and_then(digest));
                    assert_soon(took);
                    match outcome {
                        Ok(digest) => {
                            assert_eq!(digest, expected);
                            complete += 1;
                        }
                        Err(Error::WorkerNotStarted { .. } | Error::WorkerExited { .. }) => refused += 1,
                        Err(error) => panic!("{error:?}"),
                    }
                }
            };
            let ((), kills) = while_killing(Duration::from_micros(pause), usize::MAX, load_ten);
            println!("a kill every {pause} us: {kills} kills, {} of 10 epochs complete", complete - before);
            assert!(kills >= min_kills && complete - before >= min_complete);
        }
        println!("{complete} epochs are complete, {refused} ended with an error");
        assert!(refused > 0, "no kill hit a worker that starts");
        assert_eq!(digest(loader.epoch(0).unwrap()).unwrap(), expected);
        drop(loader);
        before.assert_nothing_left();
    });
}

/// Rust's handler ignores the first SIGSEGV that another process sends, so the signal interrupts a system
/// call and does not end the worker.
#[test]
fn a_start_survives_an_interrupted_system_call() {
    alone(|| {
        let before = Before::take();
        let expected = noise_digest(40, 0);
        let builder = noise(40).num_workers(2).worker_program(env!("CARGO_BIN_EXE_test-worker"));
        let loader = builder.registered("noise").on_warning(|_| {}).build().unwrap();
        let hits = AtomicUsize::new(0);
        for round in 0..100 {
            let is_over = AtomicBool::new(false);
            let outcome = thread::scope(|scope| {
                scope.spawn(|| {
                    while !is_over.load(Ordering::Relaxed) {
                        if let Some(&pid) = processes::children(process::id()).first() {
                            thread::sleep(Duration::from_micros(25 * round));
                            let was_hit = processes::try_signal(pid, Signal::SIGSEGV);
                            hits.fetch_add(usize::from(was_hit), Ordering::Relaxed);
                            return;
                        }
                    }
                });
                let _end = SetOnDrop(&is_over);
                loader.epoch(0).and_then(digest)
            });
            assert_eq!(outcome.unwrap_or_else(|error| panic!("round {round}: {error}")), expected);
        }
        println!("{hits:?} workers were hit");
        // The first worker of a fast machine is gone before the late signals.
        assert!(hits.into_inner() > 25);
        drop(loader);
        before.assert_nothing_left();
    });
}

#[test]
fn workers_killed_at_the_end_of_the_epoch_do_not_disturb_it() {
    alone(|| {
        let before = Before::take();
        for (persistent, in_order) in [(false, true), (false, false), (true, true)] {
            let dataset = Slow { count: 20, delay: Duration::ZERO };
            let builder = DataLoader::builder(dataset).num_workers(2).persistent_workers(persistent);
            let loader = builder.in_order(in_order).on_warning(|_| {}).build().unwrap();
            for round in 0..10 {
                let mut batches = loader.iter().unwrap();
                for _ in 0..20 {
                    batches.next().unwrap().unwrap();
                }
                // A worker that has received the sentinel ends meanwhile.
                thread::sleep(Duration::from_micros(200 * round));
                batches.worker_pids().into_iter().for_each(kill);
                let (end, took) = timed(|| batches.next());
                assert!(end.is_none(), "{end:?}");
                assert_soon(took);
            }
        }
        before.assert_nothing_left();
    });
}

#[test]
fn all_workers_killed_at_once_are_replaced() {
    alone(|| {
        let before = Before::take();
        let mut batches = noise(2000).num_workers(4).on_warning(|_| {}).build().unwrap().epoch(0).unwrap();
        let mut content = BatchDigest::new();
        let mut number = 0;
        while let Some(batch) = batches.next() {
            content.add(&batches.last_batch().unwrap().indices, &batch.unwrap());
            if number % 150 == 0 && number < 450 {
                let pids = batches.worker_pids();
                pids.iter().for_each(|&pid| kill(pid));
                processes::wait_until_gone(&pids, Duration::from_secs(5)).unwrap();
            }
            number += 1;
        }
        assert_eq!((content.order(), content.content()), noise_digest(2000, 0));
        assert_eq!(batches.report().restarts, 12);
        drop(batches);
        before.assert_nothing_left();
    });
}

#[test]
fn an_iterator_is_dropped_while_its_workers_are_replaced() {
    alone(|| {
        let before = Before::take();
        for persistent in [false, true] {
            let builder = noise(1000).num_workers(2).persistent_workers(persistent);
            let loader = builder.on_warning(|_| {}).build().unwrap();
            for round in 0..30 {
                let mut batches = loader.iter().unwrap();
                batches.next().unwrap().unwrap();
                batches.worker_pids().into_iter().for_each(kill);
                let started = Instant::now();
                // In later rounds main has noticed the deaths, and new workers are starting.
                while started.elapsed() < Duration::from_micros(400 * round) {
                    batches.next().unwrap().unwrap();
                }
                let ((), took) = timed(|| drop(batches));
                assert_soon(took);
            }
            assert_eq!(digest(loader.epoch(3).unwrap()).unwrap(), noise_digest(1000, 3));
        }
        before.assert_nothing_left();
    });
}

// PyTorch: P-06, P-22, P-28
#[test]
fn a_killed_worker_is_noticed_within_100_ms() {
    alone(|| {
        let before = Before::take();
        for handle_sigchld in [true, false] {
            let mut took = [(); 3].map(|()| time_to_notice_a_kill(handle_sigchld));
            took.sort_unstable();
            println!("noticed after {took:?}, handle_sigchld: {handle_sigchld}");
            assert_noticed(took[1]);
        }
        before.assert_nothing_left();
    });
}

fn time_to_notice_a_kill(handle_sigchld: bool) -> Duration {
    // Neither a batch nor the end of the other worker can wake main, because both are stuck in a sample.
    let dataset = Slow { count: 10, delay: Duration::from_secs(20) };
    let builder = DataLoader::builder(dataset).num_workers(2).handle_sigchld(handle_sigchld);
    let loader = builder.on_worker_death(OnWorkerDeath::Fail).build().unwrap();
    let mut batches = loader.iter().unwrap();
    let pids = batches.worker_pids();
    let victim = pids[1];
    let killer = thread::spawn(move || {
        thread::sleep(Duration::from_millis(200));
        processes::signal(victim, Signal::SIGKILL);
        Instant::now()
    });
    let error = batches.next().unwrap().unwrap_err();
    let noticed = Instant::now();
    assert!(matches!(error, Error::WorkerExited { worker: 1, .. }), "{error:?}");
    // Otherwise the drop would wait for the other worker's sample.
    kill(pids[0]);
    noticed.saturating_duration_since(killer.join().unwrap())
}
