//! Programs that end in every way, and workers that end by a segmentation fault.

use std::{
    io::{BufRead, BufReader, Read},
    os::unix::process::ExitStatusExt,
    process::{Command, Stdio},
};

use loader_core::{Error, ExitStatus, prelude::*};
use loader_tests::{Watchdog, alone::Family, processes, timing::assert_soon};
use nix::sys::signal::{Signal, raise};
use serde::{Deserialize, Serialize};

/// Raises SIGSEGV in the worker.
#[derive(Serialize, Deserialize)]
struct Segfault;

impl Dataset for Segfault {
    type Sample = u8;

    fn len(&self) -> usize {
        2
    }

    fn get(&self, _index: usize, _cx: &mut SampleContext) -> anyhow::Result<u8> {
        // Rust's handler returns from the first one, so that a real fault would occur again.
        raise(Signal::SIGSEGV)?;
        raise(Signal::SIGSEGV)?;
        Ok(0)
    }
}

/// PyTorch's own test of this fails now and then.
// PyTorch: 40, P-30, X09
#[test]
fn a_segmentation_fault_is_reported_as_its_signal_every_time() {
    let _watchdog = Watchdog::start();
    for _ in 0..20 {
        let builder = DataLoader::builder(Segfault).num_workers(1).on_worker_death(OnWorkerDeath::Fail);
        let mut batches = builder.build().unwrap().iter().unwrap();
        let pids = batches.worker_pids();
        let error = batches.next().unwrap().unwrap_err();
        let Error::WorkerExited { exit, .. } = error else { panic!("{error:?}") };
        assert!(matches!(exit.status, ExitStatus::Signal { signal: 11, .. }), "{exit:?}");
        assert!(batches.next().is_none());
        assert!(!processes::any_exists(&pids));
    }
}

/// How a script ended.
struct Ended {
    code: Option<i32>,
    signal: Option<i32>,
    errors: String,
}

/// What the script trains with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Script {
    kind: &'static str,
    workers: usize,
    persistent: bool,
    /// True if the script leaks its iterator.
    leaks: bool,
}

impl Script {
    /// Runs the script, which ends in the given way, and checks that none of its workers or files is left.
    fn run(self, way: &str) -> Ended {
        let Self { kind, workers, persistent, leaks } = self;
        let family = Family::empty();
        let mut command = Command::new(env!("CARGO_BIN_EXE_test-script"));
        command.args([kind, &workers.to_string(), &persistent.to_string(), &leaks.to_string(), way]);
        family.adopt(command.stdout(Stdio::piped()).stderr(Stdio::piped()));
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let mut errors = String::new();
        child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
        let status = child.wait().unwrap();
        // If main ended without cleaning up, its workers notice it and exit.
        assert_soon(family.assert_gone());
        let pids: Vec<u32> = serde_json::from_str(&line).unwrap_or_else(|_| panic!("{way}: {errors}"));
        assert_eq!(pids.len(), workers);
        Ended { code: status.code(), signal: status.signal(), errors }
    }
}

/// PyTorch's test leaves out killed workers.
// PyTorch: 80, X03, X04, X05
#[test]
fn a_program_may_end_in_any_way() {
    let _watchdog = Watchdog::start();
    let ends = [
        ("none", Some(0), None, ""),
        ("main-panics", Some(101), None, "the training step panics"),
        ("main-exits", Some(7), None, ""),
        ("main-aborts", None, Some(6), ""),
        ("main-is-killed", None, Some(9), ""),
        ("worker-fails", Some(1), None, "the disk is on fire"),
        ("worker-is-killed", Some(1), None, "SIGKILL (9)"),
    ];
    for kind in ["map", "stream"] {
        for (workers, persistent, leaks) in
            [(0, false, false), (2, false, true), (2, true, false), (2, false, false)]
        {
            let script = Script { kind, workers, persistent, leaks };
            for (way, code, signal, text) in ends {
                if way == "worker-is-killed" && workers == 0 {
                    continue;
                }
                let ended = script.run(way);
                let what = format!("{script:?}, {way}: {}", ended.errors);
                assert_eq!((ended.code, ended.signal), (code, signal), "{what}");
                assert!(ended.errors.contains(text), "{what}");
                if way == "none" {
                    let is_expected = |line: &str| line.starts_with("loader: warning: num_workers is");
                    assert!(ended.errors.lines().all(is_expected), "{what}");
                }
            }
        }
    }
}

// PyTorch: 107, P-05, U32
#[test]
fn a_program_that_leaves_an_epoch_early_ends_in_silence() {
    let _watchdog = Watchdog::start();
    for (persistent, leaks) in [(false, false), (false, true), (true, false), (true, true)] {
        let script = Script { kind: "map", workers: 1, persistent, leaks };
        let Ended { code, errors, .. } = script.run("early");
        assert_eq!((code, errors.as_str()), (Some(0), ""), "{script:?}");
    }
}
