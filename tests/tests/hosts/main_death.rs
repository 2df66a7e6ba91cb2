//! A main process that dies while it starts its workers, that forks, or whose workers print without end. Its
//! later deaths are in `main_deaths.rs`.

use std::{
    io::{BufRead, BufReader},
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use loader_tests::{Watchdog, processes};
use nix::sys::signal::Signal;

/// The promise is one second; a busy machine gets more before the test fails.
const DEADLINE: Duration = Duration::from_secs(5);

// PyTorch: P-02
#[test]
fn killed_while_it_starts_its_workers() {
    let _watchdog = Watchdog::start();
    for microseconds in (0..20_000).step_by(1500) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_test-host"));
        let tag = format!("{}-{microseconds}", std::process::id());
        let folder = tempfile::tempdir().unwrap();
        command.env("LOADER_TEST_TAG", &tag).env("TMPDIR", folder.path());
        command.args(["wait", "4"]).stdout(Stdio::null()).stderr(Stdio::null());
        let mut host = command.spawn().unwrap();
        thread::sleep(Duration::from_micros(microseconds));
        host.kill().unwrap();
        host.wait().unwrap();
        if let Err(left) = processes::wait_until_gone(&tagged(&tag), DEADLINE) {
            left.iter().for_each(|&pid| _ = processes::try_signal(pid, Signal::SIGKILL));
            panic!("workers {left:?} are left");
        }
        assert!(tagged(&tag).is_empty(), "a worker appeared afterwards");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "a socket is left");
    }
}

/// What a main process prints that ends well.
fn output(way: &str, workers: &str) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_test-host"));
    let host = command.args([way, workers]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // Nobody reads its standard error until it has ended.
    let mut host = host;
    let mut text = String::new();
    BufReader::new(host.stdout.take().unwrap()).read_line(&mut text).unwrap();
    assert!(host.wait().unwrap().success());
    text.trim().to_owned()
}

#[test]
fn workers_that_print_without_end_hide_no_death_and_hold_nothing_up() {
    let _watchdog = Watchdog::start();
    assert_eq!(output("chatty", "2"), "true true");
}

// PyTorch: X21, N14, U33
#[test]
fn a_forked_child_leaves_its_parents_batches_and_workers_alone() {
    let _watchdog = Watchdog::start();
    assert_eq!(output("fork-load", "2"), "true true 15");
}

/// Processes whose environment has the tag.
fn tagged(tag: &str) -> Vec<u32> {
    processes::with_variable(&format!("LOADER_TEST_TAG={tag}"))
}
