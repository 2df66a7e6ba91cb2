//! A main process with its own signal handlers: `test-signals WAY`. It panics if a check fails.
#![allow(unsafe_code)] // for `sigaction`

use std::{
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    thread,
    time::Duration,
};

use loader_core::{Builder, Error, kind::MapStyle, prelude::*};
use loader_tests::{
    datasets::{Fault, Faulty, Large, Noise, Slow},
    digest, processes,
    timing::{assert_soon, timed},
    traces::Before,
};
use nix::{
    sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, kill, sigaction},
    unistd::getpid,
};

/// Number of signals that [`count`] has caught.
static CAUGHT: AtomicUsize = AtomicUsize::new(0);

extern "C" fn count(_signal: i32) {
    CAUGHT.fetch_add(1, Ordering::Relaxed);
}

/// Replaces the handler of `signal` by [`count`]. Interrupted system calls are not restarted.
fn handle(signal: Signal) {
    set(signal, SigHandler::Handler(count));
}

fn set(signal: Signal, handler: SigHandler) {
    // SAFETY: the only handler that is ever passed does nothing but add to an atomic.
    unsafe { sigaction(signal, &SigAction::new(handler, SaFlags::empty(), SigSet::empty())) }
        .expect("the signal can be handled");
}

fn caught() -> usize {
    CAUGHT.load(Ordering::Relaxed)
}

fn main() {
    loader_worker::init();
    let _watchdog = loader_tests::Watchdog::start();
    match std::env::args().nth(1).unwrap_or_default().as_str() {
        "handler-before" => handler_before(),
        "handler-after" => handler_after(),
        "broken-pipe" => broken_pipe(),
        "storm" => storm(),
        way => panic!("unknown way: {way}"),
    }
}

fn slow(count: usize) -> Builder<MapStyle<Slow>> {
    DataLoader::builder(Slow { count, delay: Duration::from_millis(2) }).num_workers(2)
}

/// Kills a worker, and checks that the loader soon reports it.
fn notice_a_death() {
    let mut batches = slow(100_000).on_worker_death(OnWorkerDeath::Fail).build().unwrap().iter().unwrap();
    batches.next().unwrap().unwrap();
    let victim = batches.worker_pids()[1];
    processes::signal(victim, Signal::SIGKILL);
    let (error, took) = timed(|| batches.find_map(Result::err).unwrap());
    assert!(matches!(error, Error::WorkerExited { worker: 1, .. }), "{error:?}");
    println!("noticed after {took:?}");
    assert_soon(took);
}

/// Kills a worker, which is replaced.
fn replace_a_worker() {
    let mut batches = slow(100).on_warning(|_| {}).build().unwrap().iter().unwrap();
    batches.next().unwrap().unwrap();
    processes::signal(batches.worker_pids()[1], Signal::SIGKILL);
    assert!(batches.map(|batch| batch.unwrap().as_slice()[0]).eq(1..100));
}

/// The loader's handler runs too, and calls the one that the program installed before.
fn handler_before() {
    handle(Signal::SIGCHLD);
    let before = Before::take();
    let at_first = caught();
    assert!(at_first > 0, "the handler runs when a worker ends");
    notice_a_death();
    assert!(caught() > at_first, "the handler still runs");
    before.assert_nothing_left();
}

/// The program replaces the loader's handler while workers run.
fn handler_after() {
    let before = Before::take();
    let mut batches = slow(20).build().unwrap().iter().unwrap();
    batches.next().unwrap().unwrap();
    handle(Signal::SIGCHLD);
    assert_eq!(batches.filter(Result::is_ok).count(), 19);
    assert!(caught() > 0, "the program's handler runs");
    notice_a_death();
    before.assert_nothing_left();
}

/// A broken pipe kills the program, as is usual for filters. The death of a worker must not cause one.
fn broken_pipe() {
    let before = Before::take();
    set(Signal::SIGPIPE, SigHandler::SigDfl);
    for _ in 0..20 {
        // Both workers sleep when they are killed. Main sends wake-ups to them.
        let dataset = Slow { count: 40, delay: Duration::ZERO };
        let builder = DataLoader::builder(dataset).num_workers(2).on_warning(|_| {});
        let mut batches = builder.build().unwrap().iter().unwrap();
        batches.next().unwrap().unwrap();
        thread::sleep(Duration::from_millis(20));
        batches.worker_pids().iter().for_each(|&pid| processes::signal(pid, Signal::SIGKILL));
        assert_eq!(batches.filter(Result::is_ok).count(), 39);
    }
    notice_a_death();
    before.assert_nothing_left();
}

/// Signals arrive all the time: in the main thread, and then, while that blocks them, in any other thread.
fn storm() {
    static OVER: AtomicBool = AtomicBool::new(false);
    const SIGNALS: [Signal; 2] = [Signal::SIGALRM, Signal::SIGUSR1];
    SIGNALS.into_iter().for_each(handle);
    let before = Before::take();
    let plain = || DataLoader::builder(Noise { count: 300 }).batch_size(3).shuffle(true);
    let expected = digest(plain().build().unwrap().iter().unwrap()).unwrap();
    let storm = thread::spawn(|| {
        SigSet::from_iter(SIGNALS).thread_block().unwrap();
        while !OVER.load(Ordering::Relaxed) {
            SIGNALS.into_iter().for_each(|signal| kill(getpid(), signal).unwrap());
            thread::sleep(Duration::from_micros(100));
        }
    });
    for is_blocked in [false, true] {
        if is_blocked {
            SigSet::from_iter(SIGNALS).thread_block().unwrap();
        } else {
            time_out();
            reserve_much();
        }
        let at_first = caught();
        for persistent in [false, true, false, true] {
            let loader = plain().num_workers(3).persistent_workers(persistent).build().unwrap();
            for _ in 0..2 {
                assert_eq!(digest(loader.epoch(0).unwrap()).unwrap(), expected);
            }
        }
        notice_a_death();
        replace_a_worker();
        let signals = caught() - at_first;
        println!("{signals} signals");
        assert!(signals > 200, "only {signals} signals");
    }
    OVER.store(true, Ordering::Relaxed);
    storm.join().unwrap();
    before.assert_nothing_left();
}

/// Loads batches so large that the system is interrupted while it reserves their memory.
fn reserve_much() {
    let dataset = Large { count: 4, bytes: 64 << 20 };
    let batches =
        DataLoader::builder(dataset).num_workers(1).prefetch_factor(1).build().unwrap().iter().unwrap();
    assert!(batches.map(|batch| batch.unwrap().as_slice().len()).eq([64 << 20; 4]));
}

/// Signals make a timeout neither shorter nor longer, and the drop that has to end a worker returns.
fn time_out() {
    const TIMEOUT: Duration = Duration::from_millis(300);
    let dataset = Faulty { count: 4, at: 0, fault: Fault::Hang };
    let loader = DataLoader::builder(dataset).num_workers(1).timeout(TIMEOUT).build().unwrap();
    let mut batches = loader.iter().unwrap();
    let (error, took) = timed(|| batches.next().unwrap().unwrap_err());
    assert!(matches!(error, Error::TimedOut { .. }), "{error:?}");
    assert!(took >= TIMEOUT, "{took:?}");
    assert_soon(took);
    // The worker sleeps until main sends SIGTERM.
    let ((), took) = timed(|| drop(batches));
    println!("dropped in {took:?}");
    assert!(took < Duration::from_secs(15), "{took:?}");
}
