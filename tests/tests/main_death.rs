//! A main process that dies in any way leaves no worker after a second.

use std::{
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use loader_tests::{Watchdog, processes};
use nix::sys::signal::Signal;

/// The promise is one second; a busy machine gets more before the test fails.
const DEADLINE: Duration = Duration::from_secs(5);

/// Starts a main process that will die in the given way; gives it with the pids of its workers.
fn host(way: &str) -> (Child, Vec<u32>) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_test-host"));
    let mut host = command.args([way, "3"]).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(host.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let workers: Vec<u32> = serde_json::from_str(&line).unwrap();
    assert_eq!(workers.len(), 3);
    (host, workers)
}

fn assert_gone(way: &str, workers: &[u32]) {
    if let Err(left) = processes::wait_until_gone(workers, DEADLINE) {
        left.iter().for_each(|&pid| processes::signal(pid, Signal::SIGKILL));
        panic!("{way}: workers {left:?} are left");
    }
}

#[test]
fn killed_at_any_moment() {
    let _watchdog = Watchdog::start();
    for way in ["wait", "step", "hung"] {
        for delay in [0, 3, 50] {
            let (mut host, workers) = host(way);
            thread::sleep(Duration::from_millis(delay));
            host.kill().unwrap();
            host.wait().unwrap();
            assert_gone(way, &workers);
        }
    }
}

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
        let workers = tagged(&tag);
        assert_gone("at the start", &workers);
        assert!(tagged(&tag).is_empty(), "a worker appeared afterwards");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "a socket is left");
    }
}

#[test]
fn ended_by_itself() {
    let _watchdog = Watchdog::start();
    for (way, code) in
        [("exit", Some(3)), ("abort", None), ("panic", Some(101)), ("return", Some(0)), ("leak", Some(0))]
    {
        let (mut host, workers) = host(way);
        assert_eq!(host.wait().unwrap().code(), code, "{way}");
        assert_gone(way, &workers);
    }
}

#[test]
fn replaced_by_another_program() {
    let _watchdog = Watchdog::start();
    let (mut host, workers) = host("exec");
    assert_gone("exec", &workers);
    assert!(host.try_wait().unwrap().is_none(), "the other program runs");
    host.kill().unwrap();
    host.wait().unwrap();
}

#[test]
fn outlived_by_a_forked_child_that_has_its_descriptors() {
    let _watchdog = Watchdog::start();
    let (mut host, workers) = host("fork");
    host.wait().unwrap();
    assert_gone("fork", &workers);
    // The forked child sleeps on; it carries the host's program and arguments.
    for pid in running_hosts("fork") {
        processes::signal(pid, Signal::SIGKILL);
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

#[test]
fn a_forked_child_leaves_its_parents_batches_and_workers_alone() {
    let _watchdog = Watchdog::start();
    assert_eq!(output("fork-load", "2"), "true true 15");
}

/// Processes whose environment has the tag.
fn tagged(tag: &str) -> Vec<u32> {
    processes::with_variable(&format!("LOADER_TEST_TAG={tag}"))
}

fn running_hosts(way: &str) -> Vec<u32> {
    let is_host = |line: &str| line.contains("test-host") && line.contains(way);
    processes::all().filter(|&pid| is_host(&processes::command_line(pid))).collect()
}
