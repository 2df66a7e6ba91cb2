//! A main process that dies in any state, at any moment: soon nothing of its loaders is left.
//! `workers/ends.rs` has programs that end by themselves.

use std::{
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use loader_tests::{Watchdog, alone::Family, processes, timing::assert_soon};
use nix::sys::signal::Signal;

/// Maximum time that a worker outlives its main process. The loader promises 1 s.
const GONE: Duration = Duration::from_secs(5);

/// A main process that has printed the process ids of its workers.
struct Host {
    way: &'static str,
    family: Family,
    main: Child,
    workers: Vec<u32>,
}

impl Host {
    fn start(way: &'static str) -> Self {
        let family = Family::empty();
        let mut command = Command::new(env!("CARGO_BIN_EXE_test-host"));
        family.adopt(command.args([way, "3"]));
        // A thread reads the later lines of a host that prints more, so that the host neither waits nor
        // fails.
        let (reader, writer) = std::io::pipe().unwrap();
        let main = command.stdout(writer).stderr(Stdio::null()).spawn().unwrap();
        drop(command);
        let mut line = String::new();
        let mut lines = BufReader::new(reader);
        lines.read_line(&mut line).unwrap();
        thread::spawn(move || lines.lines().for_each(drop));
        let workers = serde_json::from_str(&line).unwrap();
        Self { way, family, main, workers }
    }

    /// Waits for the end of the main process, and checks that it ended by a signal and that nothing of it is
    /// left.
    fn assert_leaves_nothing(mut self) {
        let status = self.main.wait().unwrap();
        let took = self.family.assert_gone();
        println!("{}: gone after {took:?}", self.way);
        assert_soon(took);
        assert_eq!(status.code(), None, "{}", self.way);
    }
}

// PyTorch: P-02
#[test]
fn killed_while_it_starts_its_workers() {
    let _watchdog = Watchdog::start();
    for microseconds in (0..20_000).step_by(1500) {
        let family = Family::empty();
        let mut command = Command::new(env!("CARGO_BIN_EXE_test-host"));
        family.adopt(command.args(["wait", "4"]).stdout(Stdio::null()).stderr(Stdio::null()));
        let mut main = command.spawn().unwrap();
        thread::sleep(Duration::from_micros(microseconds));
        main.kill().unwrap();
        main.wait().unwrap();
        assert_soon(family.assert_gone());
        // A worker that main had begun to start may appear only now. It must end too.
        thread::sleep(Duration::from_millis(5));
        assert_soon(family.assert_gone());
    }
}

// PyTorch: 80, X04, N01, U06
#[test]
fn main_killed_in_any_state_leaves_nothing() {
    let _watchdog = Watchdog::start();
    for way in ["wait", "step", "hung", "rest"] {
        for delay in [0, 7, 40] {
            let mut host = Host::start(way);
            thread::sleep(Duration::from_millis(delay));
            host.main.kill().unwrap();
            host.assert_leaves_nothing();
        }
    }
}

// PyTorch: U06
#[test]
fn killed_while_workers_start_die_and_end() {
    let _watchdog = Watchdog::start();
    for way in ["churn", "dying"] {
        for delay in (0..40).step_by(3) {
            let mut host = Host::start(way);
            thread::sleep(Duration::from_micros(1137 * delay));
            host.main.kill().unwrap();
            host.assert_leaves_nothing();
        }
    }
}

#[test]
fn main_ended_by_another_signal_leaves_nothing() {
    let _watchdog = Watchdog::start();
    for signal in [Signal::SIGTERM, Signal::SIGHUP, Signal::SIGINT, Signal::SIGQUIT] {
        let host = Host::start("wait");
        processes::signal(host.main.id(), signal);
        host.assert_leaves_nothing();
    }
}

/// Main becomes another program, or a child of main lives on: a forked one, or a program that main started.
// PyTorch: X21
#[test]
fn workers_end_although_a_process_of_the_family_lives_on() {
    let _watchdog = Watchdog::start();
    for way in ["exec", "fork", "program"] {
        let mut host = Host::start(way);
        let took = processes::wait_until_gone(&host.workers, GONE);
        let left = host.family.running();
        // Not those of a second list: it may lack a process that executes a program at this moment.
        left.iter().for_each(|&pid| processes::signal(pid, Signal::SIGKILL));
        println!("{way}: gone after {:?}", took.expect("no worker is left"));
        assert_eq!(left.len(), 1, "{way}");
        host.main.wait().unwrap();
        host.family.assert_gone();
    }
}

/// A stopped process cannot end by itself, so it stays until it is continued.
#[test]
fn a_stopped_worker_ends_when_it_is_continued() {
    let _watchdog = Watchdog::start();
    let mut host = Host::start("stopped");
    // The worker that loads the first sample stops.
    let is_stopped = |pid: &u32| processes::state(*pid) == Some('T');
    let stopped = loop {
        match host.workers.iter().copied().find(is_stopped) {
            Some(pid) => break pid,
            None => thread::sleep(Duration::from_millis(1)),
        }
    };
    host.main.kill().unwrap();
    let others: Vec<u32> = host.workers.iter().copied().filter(|&pid| pid != stopped).collect();
    processes::wait_until_gone(&others, GONE).expect("the other workers end");
    processes::signal(stopped, Signal::SIGCONT);
    host.assert_leaves_nothing();
}
