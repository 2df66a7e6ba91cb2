//! Ends: of iterators, of workers, of whole programs.

use std::{
    collections::BTreeSet,
    io::{BufRead, BufReader, Read},
    os::unix::process::ExitStatusExt,
    panic::{AssertUnwindSafe, catch_unwind},
    process::{Command, Stdio},
    sync::Mutex,
    time::{Duration, Instant},
};

use loader_core::{Error, ExitStatus, prelude::*, sampler::Epoch};
use loader_tests::{
    Watchdog,
    datasets::{Count, Noise},
    processes,
    ways::{WAYS, all},
};
use nix::sys::signal::{Signal, raise};
use serde::{Deserialize, Serialize};

/// As a bad pointer would end it.
#[derive(Serialize, Deserialize)]
struct Segfault;

impl Dataset for Segfault {
    type Sample = u8;

    fn len(&self) -> usize {
        2
    }

    fn get(&self, _index: usize, _cx: &mut SampleContext) -> anyhow::Result<u8> {
        // Rust's own handler lets the first one pass, to see whether it comes again.
        raise(Signal::SIGSEGV)?;
        raise(Signal::SIGSEGV)?;
        Ok(0)
    }
}

/// PyTorch's test of this is expected to fail now and then.
// PyTorch: 40, P-30, X09
#[test]
fn a_segmentation_fault_names_the_signal_each_time() {
    let _watchdog = Watchdog::start();
    for _ in 0..20 {
        let builder = DataLoader::builder(Segfault).num_workers(1).on_worker_death(OnWorkerDeath::Fail);
        let loader = builder.build().unwrap();
        let mut batches = loader.iter().unwrap();
        let pid = batches.worker_pids()[0];
        let error = batches.next().unwrap().unwrap_err();
        let Error::WorkerExited { exit, .. } = error else { panic!("{error:?}") };
        assert!(matches!(exit.status, ExitStatus::Signal { signal: 11, .. }), "{exit:?}");
        assert!(batches.next().is_none());
        assert!(!processes::exists(pid));
    }
}

// PyTorch: X01
#[test]
fn the_end_of_an_epoch_is_quick_and_no_worker_fails() {
    let _watchdog = Watchdog::start();
    for _ in 0..5 {
        // A worker that exits with an error makes `next` return an error here.
        let builder = DataLoader::builder(Noise { count: 40 }).num_workers(2);
        let loader = builder.on_worker_death(OnWorkerDeath::Fail).build().unwrap();
        let mut batches = loader.iter().unwrap();
        let pids = batches.worker_pids();
        (0..40).for_each(|_| drop(batches.next().unwrap().unwrap()));
        let started = Instant::now();
        assert!(batches.next().is_none());
        assert_eq!(batches.report().restarts, 0);
        drop(batches);
        // The promise is one second; a busy machine gets more.
        assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
        assert!(pids.iter().all(|&pid| !processes::exists(pid)));
    }
}

/// Far apart, so that no batch is a range and its indices must travel.
#[derive(Debug)]
struct Scattered;

const LARGE: usize = 10_000_000;

impl Sampler for Scattered {
    fn len(&self) -> usize {
        LARGE
    }

    fn indices(&self, _epoch: Epoch) -> Box<dyn Iterator<Item = usize> + Send> {
        Box::new((0..LARGE).map(|place| place * 7919 % LARGE))
    }
}

// PyTorch: 43, X15
#[test]
fn large_lists_of_indices_and_an_error_of_the_user() {
    let _watchdog = Watchdog::start();
    let loader = DataLoader::builder(Count(LARGE)).sampler(Scattered).batch_size(40_960).num_workers(2);
    let loader = loader.build().unwrap();
    let pids = Mutex::new(Vec::new());
    let started = Mutex::new(None);
    let failed = catch_unwind(AssertUnwindSafe(|| {
        let mut batches = loader.iter().unwrap();
        pids.lock().unwrap().extend(batches.worker_pids());
        let batch = batches.next().unwrap().unwrap();
        assert_eq!((batch.len(), batch.as_slice()[1]), (40_960, 7919));
        *started.lock().unwrap() = Some(Instant::now());
        panic!("an error of the user");
    }));
    assert_eq!(failed.unwrap_err().downcast_ref(), Some(&"an error of the user"));
    assert!(pids.into_inner().unwrap().iter().all(|&pid| !processes::exists(pid)));
    assert!(started.into_inner().unwrap().unwrap().elapsed() < Duration::from_secs(10));
}

// PyTorch: 79, X02
#[test]
fn left_in_the_middle() {
    let _watchdog = Watchdog::start();
    for way in WAYS {
        let loader = way.of(DataLoader::builder(Count(1000)).batch_size(2)).build().unwrap();
        let mut batches = loader.iter().unwrap();
        let pids = batches.worker_pids();
        assert_eq!(batches.by_ref().take(11).filter(Result::is_ok).count(), 11);
        let started = Instant::now();
        drop((batches, loader));
        assert!(pids.iter().all(|&pid| !processes::exists(pid)));
        assert!(started.elapsed() < Duration::from_secs(4), "{:?}", started.elapsed());
    }
}

// PyTorch: X02, N11
#[test]
fn dropped_on_another_thread() {
    let _watchdog = Watchdog::start();
    for way in WAYS {
        let loader = way.of(DataLoader::builder(Count(1000)).batch_size(2)).build().unwrap();
        let mut batches = loader.iter().unwrap();
        let pids = batches.worker_pids();
        let held = batches.next().unwrap().unwrap();
        std::thread::spawn(move || drop((batches, loader))).join().unwrap();
        assert!(pids.iter().all(|&pid| !processes::exists(pid)));
        assert_eq!(held.as_slice(), [0, 1]);
    }
}

/// What became of a script.
struct Ended {
    code: Option<i32>,
    signal: Option<i32>,
    errors: String,
}

fn script(kind: &str, workers: usize, stays: bool, hold: bool, way: &str) -> Ended {
    let mut command = Command::new(env!("CARGO_BIN_EXE_test-script"));
    command.args([kind, &workers.to_string(), &stays.to_string(), &hold.to_string(), way]);
    command.env_remove("RUST_BACKTRACE").env_remove("SCRIPT_KILLS");
    if way == "worker-kill" {
        command.env("SCRIPT_KILLS", "1");
    }
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let mut errors = String::new();
    child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
    let status = child.wait().unwrap();
    let pids: Vec<u32> = serde_json::from_str(&line).unwrap_or_else(|_| panic!("{way}: {errors}"));
    assert_eq!(pids.len(), workers);
    // A main process that ends badly leaves it to the workers, which have a second.
    if let Err(left) = processes::wait_until_gone(&pids, Duration::from_secs(5)) {
        panic!("{kind}, {workers} workers, {way}: {left:?} are left");
    }
    Ended { code: status.code(), signal: status.signal(), errors }
}

/// Datasets of both kinds, with workers and without, that stay or do not, the iterator held to the end or not, and everything that can
/// go wrong. PyTorch leaves out the kills with workers.
// PyTorch: 80, X03, X04, X05
#[test]
fn proper_exit() {
    let _watchdog = Watchdog::start();
    let ways = ["none", "loader-error", "loader-exit", "loader-kill", "worker-error", "worker-kill"];
    let mut combinations = BTreeSet::new();
    for kind in ["map", "stream"] {
        for way in ways {
            combinations.extend([(kind, 0, false, false, way), (kind, 2, false, true, way)]);
            combinations.extend([(kind, 2, true, false, way), (kind, 2, false, false, way)]);
        }
    }
    for (kind, workers, stays, hold, way) in combinations {
        if way == "worker-kill" && workers == 0 {
            continue;
        }
        let Ended { code, signal, errors } = script(kind, workers, stays, hold, way);
        let what = format!("{kind}, {workers} workers, stays {stays}, hold {hold}, {way}: {errors}");
        let (expected_code, expected_signal, text) = match way {
            "none" => (Some(0), None, ""),
            "loader-error" => (Some(101), None, "Error loader"),
            "loader-exit" => (Some(7), None, ""),
            "loader-kill" => (None, Some(9), ""),
            "worker-error" => (Some(1), None, "the disk is on fire"),
            _ => (Some(1), None, "killed by SIGKILL (9)"),
        };
        assert_eq!((code, signal), (expected_code, expected_signal), "{what}");
        assert!(errors.contains(text), "{what}");
        if way == "none" {
            let others = errors.lines().filter(|line| !line.starts_with("loader: warning: num_workers is"));
            assert_eq!(others.count(), 0, "{what}");
        }
    }
}

// PyTorch: 107, P-05, U32
#[test]
fn a_script_that_leaves_early_ends_well_and_in_silence() {
    let _watchdog = Watchdog::start();
    for (stays, hold) in [(false, false), (true, false), (true, true)] {
        let Ended { code, errors, .. } = script("map", 1, stays, hold, "early-exit");
        assert_eq!((code, errors.as_str()), (Some(0), ""), "stays {stays}");
    }
}

/// Where a process may have a hundred files open, 200 small batches that are held are too many: a descriptor each. That is said.
// PyTorch: 32, 105, P-24
#[test]
fn too_many_open_files() {
    let _watchdog = Watchdog::start();
    for stays in [false, true] {
        let Ended { code, errors, .. } = script("map", 1, stays, false, "descriptors");
        assert!(code == Some(0) || errors.contains("open files"), "{errors}");
    }
}

/// A loader made on one thread, its iterator on a second, used on a third.
// PyTorch: P-28, N12
#[test]
fn any_thread_may_build_iterate_and_drop() {
    let _watchdog = Watchdog::start();
    for way in WAYS {
        let loader =
            std::thread::spawn(move || way.of(DataLoader::builder(Count(30)).batch_size(4)).build().unwrap())
                .join()
                .unwrap();
        let batches = std::thread::scope(|scope| scope.spawn(|| loader.iter().unwrap()).join().unwrap());
        let there = std::thread::spawn(move || all(batches).len()).join().unwrap();
        assert_eq!(there, 8);
    }
}
