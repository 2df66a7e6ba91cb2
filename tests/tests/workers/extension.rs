//! A loader inside a shared library, such as an extension of an interpreter: the main program does not
//! contain the loader.

use std::{
    path::PathBuf,
    process::{Command, Stdio},
    time::Duration,
};

use loader_tests::{
    Watchdog,
    timing::{assert_soon, timed},
};

/// Cargo builds the library, a dependency, into the folder of the test program.
fn library() -> PathBuf {
    let library = std::env::current_exe().unwrap().with_file_name("libloader_tests_extension.so");
    assert!(library.exists(), "{} was not built", library.display());
    library
}

/// Calls `function` in the library. Returns what it printed and how long it took.
fn call(function: &str) -> (String, Duration) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_test-interpreter"));
    command.arg(library()).arg(function).stdin(Stdio::null());
    let (output, took) = timed(|| command.output().unwrap());
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{}: {errors}", output.status);
    assert!(!errors.contains("a script of"), "a worker ran as an interpreter: {errors}");
    (String::from_utf8(output.stdout).unwrap(), took)
}

#[test]
fn a_library_without_a_worker_program_is_refused_soon() {
    let _watchdog = Watchdog::start();
    for function in ["train_after_init", "train_without_init"] {
        let (text, took) = call(function);
        assert!(text.starts_with("InitOutsideProgram: "), "{function}: {text}");
        let names = text.contains("libloader_tests_extension.so") && text.contains("`worker_program`");
        assert!(names, "{function}: {text}");
        assert_soon(took);
    }
}

/// Without workers, and with the interpreter as worker program: for any dataset, and for a composed one by
/// its name.
#[test]
fn a_library_loads_the_same_with_the_interpreter_as_worker_program() {
    let _watchdog = Watchdog::start();
    for function in ["train_without_workers", "train", "train_registered"] {
        assert_eq!(call(function).0, "sum 135\n", "{function}");
    }
}

#[test]
fn a_function_of_another_library_is_refused() {
    let _watchdog = Watchdog::start();
    let (text, _) = call("train_with_foreign_function");
    assert!(text.starts_with("FunctionNotSendable: "), "{text}");
    assert!(text.contains("test-interpreter") && text.contains("libloader_tests_extension.so"), "{text}");
}
