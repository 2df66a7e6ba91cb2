//! Main processes that treat signals, children and descriptors in their own way.

use std::{
    io::Read,
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use loader_core::{Error, ExitStatus, prelude::*};
use loader_tests::{
    Watchdog,
    alone::{Family, alone, alone_under},
    datasets::{Noise, Slow},
    digest, processes,
    timing::{assert_noticed, timed},
    traces::Before,
};
use nix::sys::{
    signal::{SigSet, Signal},
    wait::waitpid,
};

const KILLED: ExitStatus = ExitStatus::Signal { signal: 9, core_dumped: false };

/// Loads an epoch in which every worker is killed once, and checks that it is complete. Then kills a worker
/// that is not replaced, and checks that main notices it. Returns the exit status that the error has.
fn load_and_lose_workers() -> ExitStatus {
    let build = |workers| {
        let builder = DataLoader::builder(Noise { count: 400 }).shuffle(true).num_workers(workers);
        builder.on_warning(|_| {}).build().unwrap()
    };
    let mut batches = build(2).iter().unwrap();
    let mut content = BatchDigest::new();
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
    let (error, took) = timed(|| batches.find_map(Result::err).unwrap());
    println!("noticed after {took:?}");
    assert_noticed(took);
    let Error::WorkerExited { worker: 0, exit, .. } = error else { panic!("{error:?}") };
    exit.status
}

/// Runs `prepare` after a first epoch. Then every worker that is killed must be reported as killed, and
/// nothing may be left.
fn lose_workers_after(prepare: impl FnOnce()) {
    let before = Before::take();
    prepare();
    assert_eq!(load_and_lose_workers(), KILLED);
    before.assert_nothing_left();
}

#[test]
fn workers_are_replaced_although_sigchld_is_ignored() {
    alone_under(&["env", "--ignore-signal=CHLD"], || {
        let before = Before::take();
        // The kernel reaps the worker.
        assert_eq!(load_and_lose_workers(), ExitStatus::Unknown);
        before.assert_nothing_left();
    });
}

#[test]
fn workers_are_replaced_although_every_signal_is_blocked() {
    alone(|| {
        // The reaper's thread, which the first epoch starts, inherits it.
        SigSet::all().thread_block().unwrap();
        lose_workers_after(|| {});
    });
}

#[test]
fn a_thread_reaps_every_child() {
    alone(|| {
        thread::spawn(|| {
            loop {
                if waitpid(None, None).is_err() {
                    // There is no child at the moment.
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

/// The next descriptor that the loader opens is then number 0.
#[test]
fn workers_are_replaced_although_standard_input_is_closed() {
    alone(|| lose_workers_after(|| nix::unistd::close(0).unwrap()));
}

#[test]
fn workers_are_replaced_without_standard_streams() {
    alone_under(&["sh", "-c", "exec \"$@\" <&- >&- 2>&-", "sh"], || lose_workers_after(|| {}));
}

#[test]
fn workers_are_replaced_in_a_removed_folder() {
    alone(|| {
        lose_workers_after(|| {
            let folder = tempfile::tempdir().unwrap();
            std::env::set_current_dir(folder.path()).unwrap();
        });
    });
}

/// Runs `test-signals`, which checks everything itself.
fn with_handlers(way: &str) {
    let _watchdog = Watchdog::start();
    let status = Family::empty().watch(Command::new(env!("CARGO_BIN_EXE_test-signals")).arg(way));
    assert!(status.success(), "{way}: {status}");
}

#[test]
fn a_sigchld_handler_was_there_before() {
    with_handlers("handler-before");
}

#[test]
fn main_replaces_the_sigchld_handler() {
    with_handlers("handler-after");
}

#[test]
fn broken_pipes_are_deadly() {
    with_handlers("broken-pipe");
}

#[test]
fn signals_come_all_the_time() {
    with_handlers("storm");
}

/// The test does not read the standard error of a main process whose worker prints without end.
#[test]
fn a_worker_that_prints_without_end_blocks_nothing() {
    let _watchdog = Watchdog::start();
    let mut command = Command::new(env!("CARGO_BIN_EXE_test-host"));
    let mut host =
        command.args(["chatty", "2"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut text = String::new();
    host.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    assert!(host.wait().unwrap().success());
    assert_eq!(text, "true true\n");
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
            // Signals that a terminal and its user send. A worker ignores them, or stops and continues.
            while pids.iter().any(|&pid| processes::is_running(pid)) {
                for signal in [Signal::SIGINT, Signal::SIGWINCH, Signal::SIGSTOP, Signal::SIGCONT] {
                    for &pid in &pids {
                        processes::try_signal(pid, signal);
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
fn a_running_loader_has_no_files_or_named_memory() {
    alone(|| {
        let dataset = Slow { count: 1000, delay: Duration::from_millis(1) };
        let mut batches = DataLoader::builder(dataset).num_workers(2).build().unwrap().iter().unwrap();
        batches.next().unwrap().unwrap();
        for pid in batches.worker_pids().into_iter().chain([std::process::id()]) {
            let mut maps = String::new();
            std::fs::File::open(format!("/proc/{pid}/maps")).unwrap().read_to_string(&mut maps).unwrap();
            assert!(maps.contains("/memfd:loader-") && !maps.contains("/dev/shm"), "{maps}");
        }
        let files = std::fs::read_dir(std::env::temp_dir()).unwrap().count();
        assert_eq!(files, 0, "the sockets are gone already");
    });
}
