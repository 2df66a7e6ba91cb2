//! A test that hangs must fail.

use std::{
    process,
    sync::mpsc::{self, RecvTimeoutError, Sender},
    thread,
    time::Duration,
};

/// Aborts the test process if it is not dropped in time.
#[derive(Debug)]
pub struct Watchdog {
    _end: Sender<()>,
}

impl Watchdog {
    /// Starts the clock; a minute is far more than any test here takes.
    pub fn start() -> Self {
        let name = thread::current().name().unwrap_or("?").to_owned();
        let (end, ended) = mpsc::channel();
        thread::spawn(move || {
            if ended.recv_timeout(Duration::from_secs(60)) == Err(RecvTimeoutError::Timeout) {
                eprintln!("the test {name} hangs");
                process::abort();
            }
        });
        Self { _end: end }
    }
}
