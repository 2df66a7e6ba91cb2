//! The progress bar and the workers below it, on a terminal.

use std::{
    fs::{File, OpenOptions},
    io::Read,
    thread::{self, JoinHandle},
    time::Duration,
};

use nix::sys::signal::{Signal, kill};
use rustix::{
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
    termios::{Winsize, tcsetwinsize},
};

use crate::support::{PHOTOS, Running, command, pid, worker_pids};

pub(crate) const ROWS: u16 = 24;

/// Opens a terminal with `columns` columns. Returns the end that a program writes to, and a thread that
/// returns each screen that was seen. The last one is what is left at the end.
pub(crate) fn terminal(columns: u16) -> (File, JoinHandle<Vec<String>>) {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let name = ptsname(&master, Vec::new()).unwrap();
    let slave = OpenOptions::new().read(true).write(true).open(name.to_str().unwrap()).unwrap();
    tcsetwinsize(&slave, Winsize { ws_row: ROWS, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
    let mut master = File::from(master);
    let seen = thread::spawn(move || {
        let mut parser = vt100::Parser::new(ROWS, columns, 0);
        let (mut bytes, mut screens) = ([0; 256], Vec::new());
        // Reading fails when the other end is closed.
        while let Ok(count @ 1..) = master.read(&mut bytes) {
            parser.process(&bytes[..count]);
            let rows = parser.screen().rows(0, columns).map(|row| row.trim_end().to_owned());
            screens.push(rows.collect::<Vec<_>>().join("\n").trim_end().to_owned());
        }
        screens
    });
    (slave, seen)
}

/// Starts a run with small batches on a terminal with `columns` columns. Returns it, its workers, and the screens.
fn start(columns: u16, workers: &str, samples: &str) -> (Running, Vec<u32>, JoinHandle<Vec<String>>) {
    let (slave, seen) = terminal(columns);
    let options = ["--num-workers", workers, "--samples", samples, "--batch-size", "4", "--size", "32"];
    let mut command = command(&[&["run", PHOTOS, "--json", "--batches"], &options[..]].concat());
    command.env("TERM", "xterm").stderr(slave);
    let mut running = Running::start(command);
    let pids = worker_pids(&running.next_event());
    (running, pids, seen)
}

/// True if one screen has all of these texts.
fn any_has(screens: &[String], texts: &[&str]) -> bool {
    screens.iter().any(|screen| texts.iter().all(|text| screen.contains(text)))
}

#[test]
fn each_worker_has_a_line_below_the_bar_and_nothing_is_left() {
    let (running, _, seen) = start(70, "2", "100");
    running.finish().assert_status(0);
    let screens = seen.join().unwrap();
    let parts = [
        "epoch 0 of 1 [",
        "/25, 00:",
        " samples/s, ",
        " % waiting, ",
        " ready\n",
        "worker 0: ",
        "worker 1: ",
    ];
    assert!(any_has(&screens, &parts), "{screens:#?}");
    assert!(any_has(&screens, &["worker 0: fetching sample "]), "{screens:#?}");
    // The last lines of a picture are those of the bottleneck. `--nocapture` shows a picture.
    let ends = |screen: &&String| screen.ends_with(" %") || screen.ends_with(" help");
    let picture = screens.iter().rev().find(|screen| screen.contains("worker 1: fetching") && ends(screen));
    println!("{}", picture.unwrap_or_else(|| panic!("no bottleneck in {screens:#?}")));
    let left = screens.last().unwrap();
    assert!(!left.contains('[') && !left.contains("worker 0"), "{left}");
}

#[test]
fn many_workers_are_counted() {
    let (running, _, seen) = start(50, "10", "200");
    running.finish().assert_status(0);
    let screens = seen.join().unwrap();
    assert!(any_has(&screens, &["10 workers: ", "longest: worker "]), "{screens:#?}");
    assert!(screens.iter().all(|screen| screen.lines().count() < 12), "{screens:#?}");
}

#[test]
fn the_view_goes_on_while_the_run_waits() {
    let (mut running, pids, seen) = start(70, "1", "100");
    running.next_event();
    kill(pid(pids[0]), Signal::SIGSTOP).unwrap();
    thread::sleep(Duration::from_millis(2500));
    kill(pid(pids[0]), Signal::SIGCONT).unwrap();
    running.finish().assert_status(0);
    let screens = seen.join().unwrap();
    assert!(any_has(&screens, &["no batch for 1.", "worker 0: "]), "{screens:#?}");
}

#[test]
fn nothing_is_left_after_sigint() {
    let (mut running, pids, seen) = start(70, "2", "100000");
    running.next_event();
    running.signal(Signal::SIGINT);
    running.finish().assert_status(130);
    crate::support::assert_gone(&pids);
    let screens = seen.join().unwrap();
    assert!(any_has(&screens, &["epoch 0 of 1 ["]), "{screens:#?}");
    let left = screens.last().unwrap();
    assert!(!left.contains('[') && !left.contains("worker 0"), "{left}");
}

#[test]
fn a_warning_is_not_overwritten_by_the_bar() {
    let (mut running, pids, seen) = start(60, "2", "100");
    // After the second batch, which comes from worker 1, that worker is loading another one.
    running.next_event();
    running.next_event();
    kill(pid(pids[1]), Signal::SIGKILL).unwrap();
    running.finish().assert_status(0);

    let screens = seen.join().unwrap();
    // The warning is longer than a line.
    let left: String = screens.last().unwrap().split_whitespace().collect();
    assert!(
        left.contains("loader:warning:worker1") && left.contains("anotherprocesstakesitsplace"),
        "{left}"
    );
    assert!(any_has(&screens, &["loader: warning: worker 1", "epoch 0 of 1 ["]), "{screens:#?}");
    assert!(any_has(&screens, &["restarted once"]), "{screens:#?}");
}
