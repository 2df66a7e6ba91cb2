//! Worker programs that are not the main program, and programs that are no worker programs at all.

use std::{path::Path, process::Command, time::Instant};

use loader_core::{Builder, Error, WorkerProgram, kind::MapStyle, prelude::*};
use loader_tests::{
    Watchdog,
    datasets::{Large, Noise},
    digest,
};
use serde::{Deserialize, Serialize};

const WORKER: &str = env!("CARGO_BIN_EXE_test-worker");

fn noise() -> Builder<MapStyle<Noise>> {
    DataLoader::builder(Noise { count: 30 }).batch_size(4).shuffle(true)
}

/// The error of starting workers.
fn refused<C, W>(builder: Builder<MapStyle<Noise>, C, W>) -> String
where
    C: loader_core::collate::Collate<(u64, [f32; 3], String)>,
    W: loader_core::kind::WorkerInit,
{
    let started = Instant::now();
    let error = builder.num_workers(2).build().unwrap().iter().expect_err("it must be refused");
    assert!(matches!(error, Error::WorkerNotStarted { .. }), "{error:?}");
    assert!(started.elapsed().as_secs() < 10, "it took {:?}", started.elapsed());
    error.to_string()
}

// PyTorch: A37
#[test]
fn a_worker_is_named_in_lists_of_processes() {
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
fn a_dataset_that_is_not_registered() {
    let _watchdog = Watchdog::start();
    let text = refused(noise().worker_program(WORKER).registered("voices"));
    assert!(text.contains("knows no dataset `voices`; it knows large, noise"), "{text}");
}

#[test]
fn a_name_that_means_another_type() {
    let _watchdog = Watchdog::start();
    let text = refused(noise().worker_program(WORKER).registered("large"));
    assert!(text.contains("Large") && text.contains("Noise"), "both types are named: {text}");
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
        assert!(matches!(error, Error::FunctionNotSendable { .. }), "{error:?}");
        let text = error.to_string();
        assert!(text.contains("`noise`") && text.contains("write a type that does the same"), "{text}");
    }
}

/// What a worker was started as.
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
    // The same build under another path: any dataset is served, without registration.
    let path = std::env::current_exe().unwrap();
    let program = WorkerProgram::new(&path).args(["-m", "package.worker"]);
    let builder = DataLoader::builder(Arguments).num_workers(1).worker_program(program);
    let loader = builder.collate(|mut samples| Ok(samples.remove(0))).build().unwrap();
    let arguments = loader.iter().unwrap().next().unwrap().unwrap();
    assert_eq!(arguments, [path.to_str().unwrap(), "-m", "package.worker"]);
}

#[test]
fn a_worker_program_without_a_slash_is_looked_up_in_path() {
    let _watchdog = Watchdog::start();
    let text = refused(noise().worker_program(WorkerProgram::new("sh").args(["-c", "exit 7"])));
    assert!(text.contains("exited with code 7 before it answered"), "{text}");
    let error = noise().num_workers(1).worker_program("no-such-program").build().unwrap_err();
    assert!(matches!(error, Error::WorkerProgramMissing { .. }), "{error:?}");
}

#[test]
fn a_program_of_another_build() {
    let _watchdog = Watchdog::start();
    let text = refused(noise().worker_program(WORKER));
    assert!(
        text.contains("the functions are of build ") && text.contains("this program is build "),
        "{text}"
    );
    assert!(text.contains("`registered`"), "it says the way out: {text}");
}

// PyTorch: A12
#[test]
fn a_program_that_is_not_there() {
    let error = noise().num_workers(1).worker_program("/nowhere/loader-worker").build().unwrap_err();
    assert!(matches!(error, Error::WorkerProgramMissing { .. }), "{error:?}");
    assert!(error.to_string().contains("/nowhere/loader-worker"), "{error}");
}

// PyTorch: P-02, X14
#[test]
fn a_program_that_cannot_be_started() {
    let _watchdog = Watchdog::start();
    let text = refused(noise().worker_program("/etc/passwd"));
    assert!(text.contains("ermission denied") && text.contains("/etc/passwd"), "{text}");
}

#[test]
fn a_program_that_is_no_worker_program() {
    let _watchdog = Watchdog::start();
    let text = refused(noise().worker_program("/bin/true"));
    assert!(text.contains("exited with code 0 before it answered"), "{text}");
    assert!(text.contains("is it a worker program?"), "{text}");
}

#[test]
fn a_worker_program_started_by_hand_says_what_it_is() {
    let output = Command::new(WORKER).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("worker program") && text.contains("large, noise"), "{text}");
}

// PyTorch: X23
#[test]
fn a_program_that_a_worker_starts_is_not_taken_for_a_worker() {
    let _watchdog = Watchdog::start();
    let builder = DataLoader::builder(Large { count: 1, bytes: 1 }).num_workers(1);
    let loader = builder.collate(|_| {
        // It inherits the worker's environment.
        let output = Command::new(Path::new(env!("CARGO_BIN_EXE_test-worker"))).output()?;
        Ok(output.status.code().unwrap_or(-1))
    });
    assert_eq!(loader.build().unwrap().iter().unwrap().next().unwrap().unwrap(), 2);
}
