//! Workers that die: noticed at once, named, and nothing left.

use std::time::{Duration, Instant};

use loader_core::{Error, ExitStatus, prelude::*};
use loader_tests::{
    Watchdog,
    datasets::{Fault, Faulty, Slow},
    processes,
};
use nix::sys::signal::Signal;

loader_worker::init_before_main!();

/// The error of an epoch in which a worker dies of `fault`.
fn death(fault: Fault) -> Error {
    let dataset = Faulty { count: 100, at: 20, fault };
    let loader = DataLoader::builder(dataset).batch_size(4).num_workers(2).build().unwrap();
    let mut batches = loader.iter().unwrap();
    let pids = batches.worker_pids();
    let error = batches.by_ref().find_map(Result::err).unwrap();
    assert!(error.ends_iteration());
    assert!(batches.next().is_none(), "the iterator is at its end");
    assert!(pids.iter().all(|&pid| !processes::exists(pid)), "no process is left");
    let Error::WorkerExited { worker, pid, .. } = &error else { panic!("{error:?}") };
    assert_eq!(pids[*worker], *pid);
    error
}

fn status(error: &Error) -> ExitStatus {
    let Error::WorkerExited { status, .. } = error else { panic!("{error:?}") };
    *status
}

#[test]
fn sigkill() {
    let _watchdog = Watchdog::start();
    let error = death(Fault::Kill);
    assert_eq!(status(&error), ExitStatus::Signal { signal: 9, core_dumped: false });
    let text = error.to_string();
    assert!(text.contains("killed by SIGKILL (9) while fetching sample 20 of batch 5"), "{text}");
}

#[test]
fn abort() {
    let _watchdog = Watchdog::start();
    assert!(matches!(status(&death(Fault::Abort)), ExitStatus::Signal { signal: 6, .. }));
}

#[test]
fn stack_overflow() {
    let _watchdog = Watchdog::start();
    // SIGABRT from Rust's guard; SIGSEGV where the worker began before `main`, as in tests, and the guard is not up.
    assert!(matches!(status(&death(Fault::StackOverflow)), ExitStatus::Signal { signal: 6 | 11, .. }));
}

#[test]
fn an_early_exit_even_with_code_0() {
    let _watchdog = Watchdog::start();
    assert_eq!(status(&death(Fault::Exit(0))), ExitStatus::Code(0));
    assert_eq!(status(&death(Fault::Exit(3))), ExitStatus::Code(3));
}

#[test]
fn a_killed_worker_is_noticed_within_100_ms() {
    let _watchdog = Watchdog::start();
    for handle_sigchld in [true, false] {
        // The other worker is stuck too: neither its batch nor its end can bring the error.
        let dataset = Slow { count: 10, delay: Duration::from_secs(20) };
        let builder = DataLoader::builder(dataset).num_workers(2).handle_sigchld(handle_sigchld);
        let loader = builder.build().unwrap();
        let mut batches = loader.iter().unwrap();
        let victim = batches.worker_pids()[1];
        let killer = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(200));
            processes::signal(victim, Signal::SIGKILL);
            Instant::now()
        });
        let error = batches.next().unwrap().unwrap_err();
        let killed = killer.join().unwrap();
        assert!(matches!(error, Error::WorkerExited { worker: 1, .. }), "{error:?}");
        // Generous: a test must not fail on a busy machine.
        assert!(killed.elapsed() < Duration::from_secs(1), "it took {:?}", killed.elapsed());
    }
}

#[test]
fn an_idle_worker_that_dies_is_noticed_too() {
    let _watchdog = Watchdog::start();
    let dataset = Slow { count: 1000, delay: Duration::from_millis(1) };
    let loader = DataLoader::builder(dataset).num_workers(2).prefetch_factor(1).build().unwrap();
    let mut batches = loader.iter().unwrap();
    batches.next().unwrap().unwrap();
    std::thread::sleep(Duration::from_millis(50));
    processes::signal(batches.worker_pids()[0], Signal::SIGKILL);
    let error = batches.find_map(Result::err).unwrap();
    assert!(matches!(error, Error::WorkerExited { worker: 0, .. }), "{error:?}");
}

#[test]
fn batches_held_when_their_worker_dies_stay_valid() {
    let _watchdog = Watchdog::start();
    let dataset = Faulty { count: 100, at: 20, fault: Fault::Kill };
    let loader = DataLoader::builder(dataset).batch_size(4).num_workers(2).build().unwrap();
    let held: Vec<Tensor<u64>> = loader.iter().unwrap().filter_map(Result::ok).collect();
    assert!(!held.is_empty());
    assert!(held.iter().flat_map(|batch| batch.as_slice()).copied().eq(0..4 * held.len() as u64));
}

#[test]
fn the_loader_works_on_after_a_death() {
    let _watchdog = Watchdog::start();
    let dataset = Slow { count: 20, delay: Duration::from_millis(2) };
    let loader = DataLoader::builder(dataset).num_workers(2).build().unwrap();
    let mut batches = loader.iter().unwrap();
    processes::signal(batches.worker_pids()[0], Signal::SIGKILL);
    assert!(batches.any(|batch| batch.is_err()));
    assert_eq!(loader.iter().unwrap().filter(Result::is_ok).count(), 20);
}
