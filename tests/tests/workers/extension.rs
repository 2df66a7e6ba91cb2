//! A loader inside a shared library, such as an extension of an interpreter: the main program does not
//! contain the loader.

use std::{
    path::PathBuf,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use loader_tests::Watchdog;

/// Cargo builds the library, a dependency, beside the test program.
fn library() -> PathBuf {
    let library = std::env::current_exe().unwrap().with_file_name("libloader_tests_extension.so");
    assert!(library.exists(), "{} was not built", library.display());
    library
}

/// What a call of `function` in the library prints.
fn call(function: &str) -> (String, Duration) {
    let started = Instant::now();
    let mut command = Command::new(env!("CARGO_BIN_EXE_test-interpreter"));
    let output = command.arg(library()).arg(function).stdin(Stdio::null()).output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{}: {errors}", output.status);
    assert!(!errors.contains("a script of"), "the interpreter ran on the protocol: {errors}");
    (String::from_utf8(output.stdout).unwrap(), started.elapsed())
}

#[test]
fn init_in_a_library_is_refused_at_once() {
    let _watchdog = Watchdog::start();
    let (text, took) = call("train_after_init");
    assert!(text.starts_with("InitOutsideProgram: "), "{text}");
    assert!(text.contains("libloader_tests_extension.so") && text.contains("`worker_program`"), "{text}");
    assert!(took < Duration::from_secs(10), "it waited for a worker: {took:?}");
}

#[test]
fn a_library_loads_without_workers() {
    assert_eq!(call("train_without_workers").0, "sum 135\n");
}

#[test]
fn the_interpreter_with_arguments_is_a_worker_program_for_any_dataset() {
    let _watchdog = Watchdog::start();
    assert_eq!(call("train").0, "sum 135\n");
}

#[test]
fn the_interpreter_serves_a_composed_dataset_by_name() {
    let _watchdog = Watchdog::start();
    assert_eq!(call("train_registered").0, "sum 135\n");
}

#[test]
fn a_function_of_another_object_is_refused() {
    let _watchdog = Watchdog::start();
    let (text, _) = call("train_with_foreign_function");
    assert!(text.starts_with("FunctionNotSendable: "), "{text}");
    assert!(text.contains("test-interpreter") && text.contains("libloader_tests_extension.so"), "{text}");
}
