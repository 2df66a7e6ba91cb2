//! A main process with signal handlers of its own: `test-signals WAY`. It panics when something is not as it should be.
#![allow(unsafe_code)] // for `sigaction`, which only a test wants

use std::{
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

use loader_core::{Builder, Error, kind::MapStyle, prelude::*};
use loader_tests::{
    datasets::{Fault, Faulty, Large, Noise, Slow},
    digest, processes,
    traces::Before,
};
use nix::{
    sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, kill, sigaction},
    unistd::getpid,
};

/// How soon what happens at once must have happened on a busy machine.
const SOON: Duration = Duration::from_secs(5);

/// Signals that our handler has caught.
static CAUGHT: AtomicUsize = AtomicUsize::new(0);

extern "C" fn count(_signal: i32) {
    CAUGHT.fetch_add(1, Ordering::Relaxed);
}

/// Puts our handler in the place of whatever is there. Interrupted system calls are not restarted.
fn handle(signal: Signal) {
    set(signal, SigHandler::Handler(count));
}

fn set(signal: Signal, handler: SigHandler) {
    // SAFETY: the only handler that is ever passed adds to an atomic.
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
        way => panic!("no such way: {way}"),
    }
}

fn slow(count: usize) -> Builder<MapStyle<Slow>> {
    DataLoader::builder(Slow { count, delay: Duration::from_millis(2) }).num_workers(2)
}

/// Kills a worker and waits until the loader says so; gives how long that took.
fn notice_a_death() -> Duration {
    let mut batches = slow(100_000).on_worker_death(OnWorkerDeath::Fail).build().unwrap().iter().unwrap();
    batches.next().unwrap().unwrap();
    let victim = batches.worker_pids()[1];
    processes::signal(victim, Signal::SIGKILL);
    let killed = Instant::now();
    let error = batches.find_map(Result::err).unwrap();
    assert!(matches!(error, Error::WorkerExited { worker: 1, .. }), "{error:?}");
    let took = killed.elapsed();
    println!("noticed after {took:?}");
    took
}

/// Kills a worker, whose place another one takes.
fn replace_a_worker() {
    let mut batches = slow(100).on_warning(|_| {}).build().unwrap().iter().unwrap();
    batches.next().unwrap().unwrap();
    processes::signal(batches.worker_pids()[1], Signal::SIGKILL);
    assert!(batches.map(|batch| batch.unwrap().as_slice()[0]).eq(1..100));
}

/// The program's handler was there first: the loader's runs too, and passes the signal on.
fn handler_before() {
    handle(Signal::SIGCHLD);
    let before = Before::take();
    let at_first = caught();
    assert!(at_first > 0, "the handler has seen the end of a worker");
    assert!(notice_a_death() < SOON);
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
    assert!(notice_a_death() < SOON);
    before.assert_nothing_left();
}

/// The program wants to die of a broken pipe, as filters do; a worker that dies must not bring that about.
fn broken_pipe() {
    let before = Before::take();
    set(Signal::SIGPIPE, SigHandler::SigDfl);
    for _ in 0..20 {
        // Both workers sleep when they are killed, and main wakes them.
        let dataset = Slow { count: 40, delay: Duration::ZERO };
        let builder = DataLoader::builder(dataset).num_workers(2).on_warning(|_| {});
        let mut batches = builder.build().unwrap().iter().unwrap();
        batches.next().unwrap().unwrap();
        thread::sleep(Duration::from_millis(20));
        batches.worker_pids().iter().for_each(|&pid| processes::signal(pid, Signal::SIGKILL));
        // Others take their places.
        assert_eq!(batches.filter(Result::is_ok).count(), 39);
    }
    assert!(notice_a_death() < SOON);
    before.assert_nothing_left();
}

/// Signals all the time, to the main thread, then, while that blocks them, to any other.
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
            wait_in_vain();
            reserve_much();
        }
        let at_first = caught();
        // Starts, epochs, ends.
        for stays in [false, true, false, true] {
            let loader = plain().num_workers(3).persistent_workers(stays).build().unwrap();
            for _ in 0..2 {
                assert_eq!(digest(loader.epoch(0).unwrap()).unwrap(), expected);
            }
        }
        assert!(notice_a_death() < SOON);
        replace_a_worker();
        let signals = caught() - at_first;
        println!("{signals} signals");
        assert!(signals > 200, "{signals} signals are no storm");
    }
    OVER.store(true, Ordering::Relaxed);
    storm.join().unwrap();
    before.assert_nothing_left();
}

/// Memory of a size that takes the system longer than from one signal to the next.
fn reserve_much() {
    let dataset = Large { count: 4, bytes: 64 << 20 };
    let started = Instant::now();
    let batches =
        DataLoader::builder(dataset).num_workers(1).prefetch_factor(1).build().unwrap().iter().unwrap();
    assert!(batches.map(|batch| batch.unwrap().as_slice().len()).eq([64 << 20; 4]));
    println!("loaded in {:?}", started.elapsed());
}

/// A timeout is neither cut short nor made longer, and an end that takes long comes.
fn wait_in_vain() {
    const TIMEOUT: Duration = Duration::from_millis(300);
    let dataset = Faulty { count: 4, at: 0, fault: Fault::Hang };
    let loader = DataLoader::builder(dataset).num_workers(1).timeout(TIMEOUT).build().unwrap();
    let mut batches = loader.iter().unwrap();
    let asked = Instant::now();
    let error = batches.next().unwrap().unwrap_err();
    assert!(matches!(error, Error::TimedOut { .. }), "{error:?}");
    assert!((TIMEOUT..SOON).contains(&asked.elapsed()), "{:?}", asked.elapsed());
    // It sleeps until SIGTERM comes.
    let dropped = Instant::now();
    drop(batches);
    println!("dropped in {:?}", dropped.elapsed());
    assert!(dropped.elapsed() < 3 * SOON);
}
