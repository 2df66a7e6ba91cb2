//! Every way in which a worker process can end: main replaces it and nothing is lost, or the error says how
//! it ended.

use std::{
    fs::{self, File},
    io::Write,
    path::{Path, PathBuf},
    process::{self, Command},
    time::Duration,
};

use loader_core::{Error, ExitStatus, Warning, WorkerState, prelude::*};
use loader_tests::{
    Watchdog,
    alone::alone,
    datasets::{Fault, Faulty, Flaky, put_tokens},
    processes, skipped,
    timing::{assert_soon, timed},
    traces::Before,
};
use nix::sys::signal::Signal;

use crate::{noise_digest, with_warnings};

/// Faults that end a worker, each with the exit statuses that it may have.
const ENDS: [(Fault, &[ExitStatus]); 15] = [
    (Fault::Kill, &[by(Signal::SIGKILL)]),
    (Fault::Signal(Signal::SIGSEGV as i32), &[by(Signal::SIGSEGV)]),
    (Fault::Signal(Signal::SIGBUS as i32), &[by(Signal::SIGBUS)]),
    (Fault::Signal(Signal::SIGILL as i32), &[by(Signal::SIGILL)]),
    (Fault::ReachTimer, &[by(Signal::SIGALRM)]),
    (Fault::Signal(Signal::SIGTERM as i32), &[by(Signal::SIGTERM)]),
    // From another process, these do not end a worker.
    (Fault::Signal(Signal::SIGQUIT as i32), &[by(Signal::SIGQUIT)]),
    (Fault::SignalToProcess(Signal::SIGINT as i32), &[by(Signal::SIGINT)]),
    (Fault::Abort, &[by(Signal::SIGABRT)]),
    (Fault::Exit(0), &[ExitStatus::Code(0)]),
    (Fault::Exit(3), &[ExitStatus::Code(3)]),
    // Rust's guard aborts, but it is not installed in a worker that begins before `main`, as in tests.
    (Fault::StackOverflow, &[by(Signal::SIGABRT), by(Signal::SIGSEGV)]),
    (Fault::PanicTwice, &[by(Signal::SIGABRT)]),
    (Fault::PanicInC, &[by(Signal::SIGABRT)]),
    (Fault::FailToAllocate, &[by(Signal::SIGABRT)]),
];

/// A limit that takes a second to reach.
const CPU_LIMIT: (Fault, &[ExitStatus]) = (Fault::ReachCpuLimit, &[by(Signal::SIGXCPU)]);

const fn by(signal: Signal) -> ExitStatus {
    ExitStatus::Signal { signal: signal as i32, core_dumped: false }
}

/// Returns `status` as if no core had been dumped, because that depends on the machine.
fn without_core(status: ExitStatus) -> ExitStatus {
    match status {
        ExitStatus::Signal { signal, .. } => ExitStatus::Signal { signal, core_dumped: false },
        status => status,
    }
}

/// Loads an epoch in which three samples have `fault` once. Workers join the control group `group`. Checks
/// that the epoch is equal to an undisturbed one, and returns the exit status of each worker that was
/// replaced.
fn load_with_faults(fault: Fault, workers: usize, group: Option<&Path>) -> Vec<ExitStatus> {
    let folder = tempfile::tempdir().unwrap();
    put_tokens(folder.path(), &[(3, 1), (90, 1), (160, 1)]);
    let dataset = Flaky { count: 200, fault, tokens: folder.path().to_owned() };
    let builder = DataLoader::builder(dataset).batch_size(4).shuffle(true).num_workers(workers);
    let builder = builder.worker_init_with(group.map(Path::to_owned), |group: &Option<PathBuf>, _| {
        group
            .iter()
            .try_for_each(|group| fs::write(group.join("cgroup.procs"), process::id().to_string()))?;
        Ok(())
    });
    let (builder, warnings) = with_warnings(builder);
    let mut batches = builder.build().unwrap().epoch(0).unwrap();
    let (mut digest, mut longest) = (BatchDigest::new(), Duration::ZERO);
    while let (Some(batch), took) = timed(|| batches.next()) {
        digest.add(&batches.last_batch().unwrap().indices, &batch.unwrap());
        longest = longest.max(took);
    }
    println!("{fault:?}: the longest wait took {longest:?}");
    assert_soon(longest);
    assert_eq!((digest.order(), digest.content()), noise_digest(200, 0), "{fault:?}");
    let status = |warning| match warning {
        Warning::WorkerReplaced { exit, .. } => without_core(exit.status),
        other => panic!("{fault:?}: {other:?}"),
    };
    let statuses: Vec<ExitStatus> = warnings.try_iter().map(status).collect();
    assert_eq!(batches.report().restarts, statuses.len() as u64, "{fault:?}");
    statuses
}

// PyTorch: 40, 80, P-25, P-27, P-30, P-43, X09, X10, N03, U08
#[test]
fn a_worker_that_ends_in_any_way_is_replaced_and_nothing_is_lost() {
    alone(|| {
        let before = Before::take();
        for (fault, expected) in ENDS {
            // Such a panic prints a backtrace, which takes long in a debug build.
            let is_slow = matches!(fault, Fault::PanicTwice | Fault::PanicInC);
            for workers in if is_slow { 2..=2 } else { 1..=3 } {
                let statuses = load_with_faults(fault, workers, None);
                let is_expected = |status| expected.contains(status);
                assert!(statuses.len() == 3 && statuses.iter().all(is_expected), "{fault:?}: {statuses:?}");
            }
        }
        before.assert_nothing_left();
    });
}

#[test]
fn a_worker_that_closes_every_descriptor_loses_nothing() {
    alone(|| {
        let before = Before::take();
        // The worker may continue with the slots that it has mapped, until its watchdog ends it.
        let statuses = load_with_faults(Fault::CloseDescriptors, 2, None);
        assert!(statuses.len() <= 3, "{statuses:?}");
        before.assert_nothing_left();
    });
}

// PyTorch: U07
#[test]
fn a_worker_that_the_kernel_kills_for_its_memory_is_replaced() {
    alone(|| {
        let Some(group) = small_group() else {
            return skipped("this user cannot make a control group that limits memory");
        };
        let before = Before::take();
        let statuses = load_with_faults(Fault::UseMemory, 2, Some(&group));
        assert_eq!(statuses, [by(Signal::SIGKILL); 3]);
        before.assert_nothing_left();
        fs::remove_dir(group).unwrap();
    });
}

/// Makes a control group whose processes may use 64 MiB. Returns `None` if this user cannot make one.
fn small_group() -> Option<PathBuf> {
    let name = format!("loader-tests-{}", process::id());
    let limits = [("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")];
    limits.into_iter().find_map(|(groups, limit)| {
        let group = Path::new(groups).join(&name);
        fs::create_dir(&group).ok()?;
        // The file must exist already: in an ordinary folder, a new file would limit nothing.
        let limited = File::options().write(true).open(group.join(limit));
        match limited.and_then(|mut file| file.write_all(b"64M")) {
            Ok(()) => Some(group),
            Err(_) => fs::remove_dir(group).map_or(None, |()| None),
        }
    })
}

// PyTorch: P-23, P-25, P-26, X06, X09, N02, U07
#[test]
fn without_replacement_the_error_says_how_the_worker_ended() {
    alone(|| {
        let before = Before::take();
        for (fault, expected) in ENDS.into_iter().chain([CPU_LIMIT]) {
            let builder =
                DataLoader::builder(Faulty { count: 100, at: 20, fault }).batch_size(4).num_workers(2);
            let loader = builder.on_worker_death(OnWorkerDeath::Fail).build().unwrap();
            let mut batches = loader.iter().unwrap();
            let pids = batches.worker_pids();
            let error = batches.by_ref().find_map(Result::err).unwrap();
            assert!(error.ends_iteration() && batches.next().is_none(), "{error:?}");
            assert!(pids.iter().all(|&pid| !processes::exists(pid)), "{fault:?}: a worker still exists");
            let Error::WorkerExited { worker, pid, exit, doing, .. } = error else { panic!("{error:?}") };
            assert_eq!((pids[worker], &exit.cause), (pid, &None), "{fault:?}");
            assert!(expected.contains(&without_core(exit.status)), "{fault:?}: {exit:?}");
            assert_eq!((doing.state, doing.batch, doing.index), (WorkerState::Fetching, 5, 20), "{fault:?}");
        }
        before.assert_nothing_left();
    });
}

#[test]
fn panics_that_abort_a_worker_are_printed() {
    let mut command = Command::new(std::env::current_exe().unwrap());
    let (_, module) = module_path!().split_once("::").unwrap();
    let test = format!("{module}::panics_that_abort");
    command.args([&test, "--exact", "--ignored", "--nocapture"]);
    let output = command.env("RUST_BACKTRACE", "0").output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    let count = |is_it: &dyn Fn(&str) -> bool| text.lines().filter(|line| is_it(line)).count();
    for message in ["the first panic", "the panic in a destructor", "the panic in a C function"] {
        let is_it = |line: &str| line.starts_with("[worker 0] ") && line.contains(message);
        assert_eq!(count(&is_it), 1, "{message}: {text}");
    }
    // Rust's own panics about them are in other files.
    let in_file = |line: &str| line.contains("panicked at") && line.contains("tests/src/datasets/fault.rs:");
    assert_eq!(count(&in_file), 3, "{text}");
}

#[test]
#[ignore = "panics_that_abort_a_worker_are_printed runs it"]
fn panics_that_abort() {
    let _watchdog = Watchdog::start();
    for fault in [Fault::PanicTwice, Fault::PanicInC] {
        let folder = tempfile::tempdir().unwrap();
        put_tokens(folder.path(), &[(5, 1)]);
        let dataset = Flaky { count: 8, fault, tokens: folder.path().to_owned() };
        let builder = DataLoader::builder(dataset).batch_size(4).num_workers(1).on_warning(|_| {});
        assert!(builder.build().unwrap().iter().unwrap().all(|batch| batch.is_ok()));
    }
}
