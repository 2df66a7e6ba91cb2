//! Main processes that treat signals, children and descriptors in their own way.

use std::{
    io::Read,
    process::Command,
    thread,
    time::{Duration, Instant},
};

use loader_core::{Error, ExitStatus, prelude::*};
use loader_tests::{
    Watchdog,
    alone::{Family, alone, alone_under},
    datasets::{Noise, Slow},
    digest, processes,
    timing::assert_noticed,
    traces::Before,
};
use nix::sys::{
    signal::{SigSet, Signal},
    wait::waitpid,
};

/// Loads an epoch in which every worker dies, which must be right, and lets a worker die where none takes its place, which must be
/// noticed; gives the status that is told.
fn load_and_lose_workers() -> ExitStatus {
    let build = |workers| {
        let builder = DataLoader::builder(Noise { count: 400 }).shuffle(true).num_workers(workers);
        builder.on_warning(|_| {}).build().unwrap()
    };
    let mut batches = build(2).iter().unwrap();
    let mut content = Digest::new();
    while let Some(batch) = batches.next() {
        content.add(&batches.last_batch().unwrap().indices, &batch.unwrap());
        if batches.report().batches == 50 {
            batches.worker_pids().iter().for_each(|&pid| processes::signal(pid, Signal::SIGKILL));
        }
    }
    assert_eq!(batches.report().restarts, 2);
    assert_eq!((content.order(), content.content()), digest(build(0).iter().unwrap()).unwrap());

    let dataset = Slow { count: 100_000, delay: Duration::from_millis(2) };
    let builder = DataLoader::builder(dataset).num_workers(2).on_worker_death(OnWorkerDeath::Fail);
    let mut batches = builder.build().unwrap().iter().unwrap();
    batches.next().unwrap().unwrap();
    processes::signal(batches.worker_pids()[0], Signal::SIGKILL);
    let killed = Instant::now();
    let error = batches.find_map(Result::err).unwrap();
    let took = killed.elapsed();
    println!("noticed after {took:?}");
    assert_noticed(took);
    let Error::WorkerExited { worker: 0, exit, .. } = error else { panic!("{error:?}") };
    exit.status
}

const KILLED: ExitStatus = ExitStatus::Signal { signal: 9, core_dumped: false };

#[test]
fn nothing_odd() {
    alone(|| {
        let before = Before::take();
        assert_eq!(load_and_lose_workers(), KILLED);
        before.assert_nothing_left();
    });
}

#[test]
fn sigchld_is_ignored() {
    alone_under(&["env", "--ignore-signal=CHLD"], || {
        let before = Before::take();
        assert_eq!(load_and_lose_workers(), ExitStatus::Unknown, "the kernel has reaped it");
        before.assert_nothing_left();
    });
}

#[test]
fn every_signal_is_blocked() {
    alone(|| {
        // The reaper's thread inherits it.
        SigSet::all().thread_block().unwrap();
        let before = Before::take();
        assert_eq!(load_and_lose_workers(), KILLED);
        before.assert_nothing_left();
    });
}

#[test]
fn a_thread_reaps_every_child() {
    alone(|| {
        thread::spawn(|| {
            loop {
                if waitpid(None, None).is_err() {
                    // There is none at the moment.
                    thread::sleep(Duration::from_micros(50));
                }
            }
        });
        let before = Before::take();
        for _ in 0..5 {
            let status = load_and_lose_workers();
            assert!([KILLED, ExitStatus::Unknown].contains(&status), "{status:?}");
        }
        before.assert_nothing_left();
    });
}

#[test]
fn standard_input_is_closed_and_the_number_given_away() {
    alone(|| {
        let before = Before::take();
        nix::unistd::close(0).unwrap();
        // Among what the loader opens is now descriptor 0.
        assert_eq!(load_and_lose_workers(), KILLED);
        before.assert_nothing_left();
    });
}

#[test]
fn started_without_standard_streams() {
    alone_under(&["sh", "-c", "exec \"$@\" <&- >&- 2>&-", "sh"], || {
        let before = Before::take();
        assert_eq!(load_and_lose_workers(), KILLED);
        before.assert_nothing_left();
    });
}

#[test]
fn its_folder_is_gone() {
    alone(|| {
        let before = Before::take();
        let folder = tempfile::tempdir().unwrap();
        std::env::set_current_dir(folder.path()).unwrap();
        drop(folder);
        assert_eq!(load_and_lose_workers(), KILLED);
        before.assert_nothing_left();
    });
}

/// Runs a main process with handlers of its own.
fn with_handlers(way: &str) {
    let _watchdog = Watchdog::start();
    let status = Family::empty().watch(Command::new(env!("CARGO_BIN_EXE_test-signals")).arg(way));
    assert!(status.success(), "{way}: {status}");
}

#[test]
fn it_had_a_sigchld_handler_before() {
    with_handlers("handler-before");
}

#[test]
fn it_replaces_the_sigchld_handler() {
    with_handlers("handler-after");
}

#[test]
fn it_dies_of_broken_pipes() {
    with_handlers("broken-pipe");
}

#[test]
fn signals_come_all_the_time() {
    with_handlers("storm");
}

#[test]
fn signals_come_to_the_workers_all_the_time() {
    alone(|| {
        let before = Before::take();
        let dataset = Slow { count: 400, delay: Duration::from_millis(1) };
        let batches = DataLoader::builder(dataset).num_workers(2).build().unwrap().iter().unwrap();
        let pids = batches.worker_pids();
        let storm = thread::spawn(move || {
            let mut signals = 0;
            // What a terminal and its user send; a worker ignores it, or stops and goes on.
            while pids.iter().any(|&pid| processes::is_running(pid)) {
                for signal in [Signal::SIGINT, Signal::SIGWINCH, Signal::SIGSTOP, Signal::SIGCONT] {
                    for &pid in &pids {
                        let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid.cast_signed()), signal);
                        signals += 1;
                    }
                }
                thread::sleep(Duration::from_micros(200));
            }
            signals
        });
        assert!(batches.map(|batch| batch.unwrap().as_slice()[0]).eq(0..400));
        let signals = storm.join().unwrap();
        println!("{signals} signals");
        assert!(signals > 400);
        before.assert_nothing_left();
    });
}

// PyTorch: U15
#[test]
fn nothing_of_a_running_loader_has_a_name() {
    alone(|| {
        let dataset = Slow { count: 1000, delay: Duration::from_millis(1) };
        let mut batches = DataLoader::builder(dataset).num_workers(2).build().unwrap().iter().unwrap();
        batches.next().unwrap().unwrap();
        for pid in batches.worker_pids().into_iter().chain([std::process::id()]) {
            let mut maps = String::new();
            std::fs::File::open(format!("/proc/{pid}/maps")).unwrap().read_to_string(&mut maps).unwrap();
            assert!(maps.contains("/memfd:loader-") && !maps.contains("/dev/shm"), "{maps}");
        }
        assert_eq!(
            std::fs::read_dir(std::env::temp_dir()).unwrap().count(),
            0,
            "the sockets are gone already"
        );
    });
}
