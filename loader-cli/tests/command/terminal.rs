//! The progress bar on a terminal.

use std::{
    fs::{File, OpenOptions},
    io::Read,
    thread::{self, JoinHandle},
};

use nix::sys::signal::{Signal, kill};
use rustix::{
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
    termios::{Winsize, tcsetwinsize},
};

use crate::support::{PHOTOS, Running, command, pid, worker_pids};

/// Opens a terminal with `columns` columns. Returns the end that a program writes to, and a thread that
/// returns everything that was written.
fn terminal(columns: u16) -> (File, JoinHandle<String>) {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let name = ptsname(&master, Vec::new()).unwrap();
    let slave = OpenOptions::new().read(true).write(true).open(name.to_str().unwrap()).unwrap();
    tcsetwinsize(&slave, Winsize { ws_row: 24, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
    let mut master = File::from(master);
    let written = thread::spawn(move || {
        let mut bytes = Vec::new();
        // Reading fails when the other end is closed.
        drop(master.read_to_end(&mut bytes));
        String::from_utf8_lossy(&bytes).into_owned()
    });
    (slave, written)
}

#[test]
fn a_warning_is_not_overwritten_by_the_bar() {
    let (slave, written) = terminal(60);
    let options = ["--num-workers", "2", "--samples", "60", "--batch-size", "4", "--size", "32"];
    let mut command = command(&[&["run", PHOTOS, "--json", "--batches"], &options[..]].concat());
    command.env("TERM", "xterm").stderr(slave);
    let mut running = Running::start(command);
    let pids = worker_pids(&running.next_event());
    // After the second batch, which comes from worker 1, that worker is loading another one.
    running.next_event();
    running.next_event();
    kill(pid(pids[1]), Signal::SIGKILL).unwrap();
    running.finish().assert_status(0);

    let written = written.join().unwrap();
    assert!(written.contains("epoch 0 of 1 ["), "there was no bar: {written:?}");
    let (before, warning) = written.split_once("loader: warning: worker 1").expect("a warning");
    // The line of the bar is cleared before the warning, and the bar is drawn on a new line after it.
    let before = before.trim_end_matches("\u{1b}[1A");
    assert!(before.ends_with("\u{1b}[2K"), "{written:?}");
    assert!(warning.split_once("\r\n").unwrap().0.contains("another process takes its place"), "{written:?}");
}
