//! A main process that ends in any way, at any moment: a second later nothing of its loaders is left.

use std::{
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use loader_tests::{Watchdog, alone::Family, processes, timing::assert_soon};
use nix::sys::signal::Signal;

/// How long a worker may outlive its main process: a second is promised.
const GONE: Duration = Duration::from_secs(5);

/// A main process that was started and has printed who its workers are.
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
        // Nobody reads what comes behind the first line: a churning one must not wait for that, nor die of it.
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

    /// Waits for the end of the main process, and checks that nothing of it is left.
    fn assert_leaves_nothing(mut self) -> Option<i32> {
        let status = self.main.wait().unwrap();
        let took = self.family.assert_gone();
        println!("{}: gone after {took:?}", self.way);
        assert_soon(took);
        status.code()
    }

    /// Checks that one process lives on and no worker does, and then that the former was all that is left.
    fn assert_leaves_one(self) {
        let took = processes::wait_until_gone(&self.workers, GONE);
        let left = self.family.running();
        self.family.kill();
        println!("{}: gone after {:?}", self.way, took.expect("no worker is left"));
        assert_eq!(left.len(), 1, "{}", self.way);
        self.assert_leaves_nothing();
    }
}

// PyTorch: 80, X04, N01, U06
#[test]
fn killed_in_any_state_and_at_any_moment() {
    let _watchdog = Watchdog::start();
    for way in ["wait", "step", "hung", "rest", "churn"] {
        for delay in [0, 7, 40] {
            let mut host = Host::start(way);
            thread::sleep(Duration::from_millis(delay));
            host.main.kill().unwrap();
            assert_eq!(host.assert_leaves_nothing(), None);
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
fn ended_by_other_signals() {
    let _watchdog = Watchdog::start();
    for signal in [Signal::SIGTERM, Signal::SIGHUP, Signal::SIGINT, Signal::SIGQUIT] {
        let host = Host::start("wait");
        processes::signal(host.main.id(), signal);
        assert_eq!(host.assert_leaves_nothing(), None, "{signal}");
    }
}

// PyTorch: 80, X05
#[test]
fn ended_by_itself() {
    let _watchdog = Watchdog::start();
    let ends =
        [("exit", Some(3)), ("abort", None), ("panic", Some(101)), ("return", Some(0)), ("leak", Some(0))];
    for (way, code) in ends {
        assert_eq!(Host::start(way).assert_leaves_nothing(), code, "{way}");
    }
}

#[test]
fn it_becomes_another_program() {
    let _watchdog = Watchdog::start();
    Host::start("exec").assert_leaves_one();
}

// PyTorch: X21
#[test]
fn a_forked_child_outlives_it() {
    let _watchdog = Watchdog::start();
    Host::start("fork").assert_leaves_one();
}

#[test]
fn a_program_that_it_started_outlives_it() {
    let _watchdog = Watchdog::start();
    Host::start("program").assert_leaves_one();
}

/// A stopped process can do nothing, not even end; what nobody continues stays until somebody does.
#[test]
fn stopped_workers_end_when_they_are_continued() {
    let _watchdog = Watchdog::start();
    let mut host = Host::start("stopped");
    // The one that has the first sample.
    let is_stopped = |pid: &u32| processes::state(*pid) == Some('T');
    let stopped = loop {
        match host.workers.iter().copied().find(is_stopped) {
            Some(pid) => break pid,
            None => thread::sleep(Duration::from_millis(1)),
        }
    };
    host.main.kill().unwrap();
    let others: Vec<u32> = host.workers.iter().copied().filter(|&pid| pid != stopped).collect();
    processes::wait_until_gone(&others, GONE).expect("the others end at once");
    processes::signal(stopped, Signal::SIGCONT);
    host.assert_leaves_nothing();
}
