//! Worker programs that are not the main program, and programs that are not worker programs.

use std::{io::ErrorKind, process::Command};

use loader_core::{Builder, Error, ExitStatus, WorkerProgram, WorkerStartError, kind::MapStyle, prelude::*};
use loader_tests::{
    Watchdog,
    datasets::{Large, Noise},
    digest,
    timing::{assert_soon, timed},
};
use serde::{Deserialize, Serialize};

const WORKER: &str = env!("CARGO_BIN_EXE_test-worker");

fn noise() -> Builder<MapStyle<Noise>> {
    DataLoader::builder(Noise { count: 30 }).batch_size(4).shuffle(true)
}

/// Each error names what the program lacks, or how it ended.
// PyTorch: P-02, X14
#[test]
fn a_program_that_cannot_serve_the_dataset_is_refused_soon() {
    let _watchdog = Watchdog::start();
    let exits = |code| WorkerProgram::new("sh").args(["-c", &format!("exit {code}")]);
    let refusal = |builder: Builder<MapStyle<Noise>>| {
        let (error, took) = timed(|| builder.num_workers(2).build().unwrap().iter().unwrap_err());
        assert_soon(took);
        let Error::WorkerNotStarted { source, .. } = error else { panic!("{error:?}") };
        source
    };
    let cases: [(_, &[&str]); 3] = [
        (noise().worker_program(WORKER).registered("voices"), &["`voices`", "large, noise"]),
        // The registered name belongs to another type.
        (noise().worker_program(WORKER).registered("large"), &["Large", "Noise"]),
        // A different build, so that functions cannot be sent.
        (noise().worker_program(WORKER), &["build ", "`registered`"]),
    ];
    for (builder, words) in cases {
        let error = refusal(builder);
        let WorkerStartError::Refused(reason) = &error else { panic!("{error:?}") };
        assert!(words.iter().all(|word| reason.contains(word)), "{words:?}: {reason}");
    }
    let error = refusal(noise().worker_program("/etc/passwd"));
    let WorkerStartError::NotSpawned { program, source } = &error else { panic!("{error:?}") };
    assert_eq!((program.as_str(), source.kind()), ("/etc/passwd", ErrorKind::PermissionDenied));
    // A name without a slash is looked up in PATH.
    for (program, code) in [("/bin/true".into(), 0), (exits(7), 7)] {
        let error = refusal(noise().worker_program(program));
        assert!(
            matches!(error, WorkerStartError::Ended(ExitStatus::Code(exited)) if exited == code),
            "{error:?}"
        );
    }
}

// PyTorch: A12
#[test]
fn a_missing_program_is_refused_by_build() {
    for program in ["no-such-program", "/nowhere/loader-worker"] {
        let error = noise().num_workers(1).worker_program(program).build().unwrap_err();
        assert!(
            matches!(&error, Error::WorkerProgramMissing { path, .. } if path.ends_with(program)),
            "{error:?}"
        );
        assert!(error.to_string().contains(program), "{error}");
    }
}

// PyTorch: A37
#[test]
fn a_worker_process_is_named_after_its_number() {
    let _watchdog = Watchdog::start();
    let batches = noise().num_workers(2).build().unwrap().iter().unwrap();
    for (worker, pid) in batches.worker_pids().into_iter().enumerate() {
        let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap();
        assert_eq!(name.trim(), format!("loader-wkr-{worker}"));
    }
}

// PyTorch: 48, A12, P-01
#[test]
fn a_registered_dataset_gives_the_same_batches() {
    let _watchdog = Watchdog::start();
    let there = noise().num_workers(2).worker_program(WORKER).registered("noise").build().unwrap();
    let here = noise().build().unwrap();
    assert_eq!(digest(there.iter().unwrap()).unwrap(), digest(here.iter().unwrap()).unwrap());
}

#[test]
fn functions_cannot_be_sent_to_a_registered_dataset() {
    let registered = || noise().num_workers(1).worker_program(WORKER).registered("noise");
    let mapped = DataLoader::builder(Noise { count: 30 }.map(|(number, ..), _| Ok(number)));
    let errors = [
        registered().collate(|samples| Ok(samples.len())).build().unwrap_err(),
        registered().worker_init(|_| Ok(())).build().unwrap_err(),
        mapped.num_workers(1).worker_program(WORKER).registered("noise").build().unwrap_err(),
    ];
    for error in errors {
        let Error::FunctionNotSendable { problem } = &error else { panic!("{error:?}") };
        assert!(problem.contains("`noise`"), "{problem}");
    }
}

/// Its sample is the command line of the worker.
#[derive(Serialize, Deserialize)]
struct Arguments;

impl Dataset for Arguments {
    type Sample = Vec<String>;

    fn len(&self) -> usize {
        1
    }

    fn get(&self, _index: usize, _cx: &mut SampleContext) -> anyhow::Result<Vec<String>> {
        Ok(std::env::args().collect())
    }
}

#[test]
fn a_worker_program_gets_its_arguments() {
    let _watchdog = Watchdog::start();
    // This very program: it serves any dataset without registration.
    let path = std::env::current_exe().unwrap();
    let program = WorkerProgram::new(&path).args(["-m", "package.worker"]);
    let builder = DataLoader::builder(Arguments).num_workers(1).worker_program(program);
    let loader = builder.collate(|mut samples| Ok(samples.remove(0))).build().unwrap();
    let arguments = loader.iter().unwrap().next().unwrap().unwrap();
    assert_eq!(arguments, [path.to_str().unwrap(), "-m", "package.worker"]);
}

#[test]
fn a_worker_program_started_by_hand_names_its_datasets() {
    let output = Command::new(WORKER).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("only a loader can start it") && text.contains("large, noise"), "{text}");
}

// PyTorch: X23
#[test]
fn a_program_that_a_worker_starts_does_not_become_a_worker() {
    let _watchdog = Watchdog::start();
    let builder = DataLoader::builder(Large { count: 1, bytes: 1 }).num_workers(1);
    let loader = builder.collate(|_| {
        // The program inherits the worker's environment.
        let output = Command::new(WORKER).output()?;
        Ok(output.status.code().unwrap_or(-1))
    });
    assert_eq!(loader.build().unwrap().iter().unwrap().next().unwrap().unwrap(), 2);
}
