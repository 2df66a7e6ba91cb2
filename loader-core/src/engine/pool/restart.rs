//! Starts one worker again, on a thread of its own.
//!
//! Alternative considered: main starts the new process itself when it learns of the death, which takes less
//! code. Rejected because a program that loads large libraries takes a second to answer. Meanwhile main could
//! not return the batches of other workers, and `timeout` would not apply. With a thread, main never waits
//! for the start, but the attempt must be cancelled if the pool shuts down meanwhile.

use std::{
    io,
    sync::{Arc, Mutex, PoisonError},
    thread::{self, JoinHandle},
    time::Duration,
};

use loader_ipc::{
    frame::Report,
    patience::{Awaited, Patience},
    process::WorkerProcess,
    queue::NoteSender,
};
use nix::sys::signal::Signal;

use super::start::{Greeted, Starter};
use crate::error::Error;

/// Maximum time for the thread to notice that its worker was killed.
const STOP_DEADLINE: Duration = Duration::from_secs(5);

/// An attempt to start a worker that is in progress, or that has ended and whose result main has not taken.
#[derive(Debug)]
pub(super) struct Restart {
    worker: usize,
    thread: JoinHandle<Result<Greeted, Error>>,
    attempt: Arc<Mutex<Attempt>>,
}

#[derive(Debug, Default)]
struct Attempt {
    process: Option<Arc<WorkerProcess>>,
    is_called_off: bool,
}

/// Reports to main, when it is dropped, that an attempt has ended.
struct ReportOnDrop {
    notes: NoteSender,
    worker: usize,
}

impl Drop for ReportOnDrop {
    fn drop(&mut self) {
        self.notes.send(Report::Started { worker: self.worker });
    }
}

impl Restart {
    /// Begins to start another process for `worker`, after `pause`. After [`Report::Started`],
    /// [`finish`](Self::finish) returns at once.
    pub(super) fn begin(
        worker: usize,
        starter: Arc<Starter>,
        notes: NoteSender,
        pause: Duration,
    ) -> Result<Self, Error> {
        let attempt = Arc::new(Mutex::new(Attempt::default()));
        let ours = Arc::clone(&attempt);
        let thread = thread::Builder::new().name("loader-restart".into()).spawn(move || {
            // Sends the report when the thread ends, even by a panic, because main waits for it.
            let told = ReportOnDrop { notes, worker };
            thread::sleep(pause);
            let attempt = || ours.lock().unwrap_or_else(PoisonError::into_inner);
            let mut look = |_: Duration, _: &Awaited| attempt().is_called_off;
            starter.start_one(worker, told.notes.wake(), &mut Patience::with(&mut look), |process| {
                let mut attempt = attempt();
                attempt.process = Some(Arc::clone(process));
                !attempt.is_called_off
            })
        });
        let thread = thread.map_err(|source| Error::System { what: "starting a thread", source })?;
        Ok(Self { worker, thread, attempt })
    }

    /// Returns the worker, or the error that the attempt ended with. Waits for the thread.
    pub(super) fn finish(self) -> Result<Greeted, Error> {
        let worker = self.worker;
        self.thread.join().unwrap_or_else(|_| {
            let source = io::Error::other(format!("the thread that started worker {worker} panicked"));
            Err(Error::System { what: "starting a worker again", source })
        })
    }

    /// Cancels the attempt: kills the worker's process. [`forget`](Self::forget) must follow.
    pub(super) fn cancel(&self) {
        let mut attempt = self.attempt.lock().unwrap_or_else(PoisonError::into_inner);
        attempt.is_called_off = true;
        if let Some(process) = &attempt.process {
            process.signal(Signal::SIGKILL);
        }
    }

    /// Waits for the thread of a cancelled attempt until a deadline, and ends the worker if it started.
    pub(super) fn forget(self) {
        let mut patience = Patience::new(STOP_DEADLINE);
        while !self.thread.is_finished() {
            // The host may have stopped the thread. The worker's process was killed nevertheless.
            if patience.is_over() {
                return;
            }
            patience.step(|_| thread::sleep(Duration::from_micros(200)));
        }
        if let Ok(greeted) = self.finish() {
            greeted.end();
        }
    }
}
