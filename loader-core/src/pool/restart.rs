//! Starting one worker again, on a thread of its own.
//!
//! Two ways were weighed. Main could start the new process itself when it hears of the death: a few lines, but a program that loads large
//! libraries takes a second to answer, and meanwhile the batches of the other workers would lie there, and `timeout` would not count.
//! With a thread main waits for nobody; the price is that the attempt must be called off when the pool is shut down meanwhile.

use std::{
    io,
    sync::{Arc, Mutex, PoisonError},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use loader_ipc::{frame::Report, process::WorkerProcess, queue::NoteSender};
use nix::sys::signal::Signal;

use super::start::{Greeted, Starter};
use crate::error::Error;

/// How long a thread may take to see that its worker was killed.
const STOP_DEADLINE: Duration = Duration::from_secs(5);

/// An attempt that is under way, or over and not yet looked at.
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

/// Tells main that an attempt is over.
struct Told {
    notes: NoteSender,
    worker: usize,
}

impl Drop for Told {
    fn drop(&mut self) {
        self.notes.send(Report::Started { worker: self.worker });
    }
}

impl Restart {
    /// Starts a worker in the place of the one that had the number. [`Report::Started`] says that [`finish`](Self::finish) will not wait.
    pub(super) fn begin(
        worker: usize,
        starter: Arc<Starter>,
        notes: NoteSender,
        pause: Duration,
    ) -> Result<Self, Error> {
        let attempt = Arc::new(Mutex::new(Attempt::default()));
        let ours = Arc::clone(&attempt);
        let thread = thread::Builder::new().name("loader-restart".into()).spawn(move || {
            // Sent at the end of all, a panic included: main waits for it.
            let told = Told { notes, worker };
            thread::sleep(pause);
            starter.start_one(worker, told.notes.wake(), |process| {
                let mut attempt = ours.lock().unwrap_or_else(PoisonError::into_inner);
                attempt.process = Some(Arc::clone(process));
                !attempt.is_called_off
            })
        });
        let thread = thread.map_err(|source| Error::System { what: "starting a thread", source })?;
        Ok(Self { worker, thread, attempt })
    }

    /// The worker, or why there is none.
    pub(super) fn finish(self) -> Result<Greeted, Error> {
        let worker = self.worker;
        self.thread.join().unwrap_or_else(|_| {
            let source = io::Error::other(format!("the thread that started worker {worker} panicked"));
            Err(Error::System { what: "starting a worker again", source })
        })
    }

    /// Nobody wants the worker any more: kills its process. [`forget`](Self::forget) follows.
    pub(super) fn call_off(&self) {
        let mut attempt = self.attempt.lock().unwrap_or_else(PoisonError::into_inner);
        attempt.is_called_off = true;
        if let Some(process) = &attempt.process {
            process.signal(Signal::SIGKILL);
        }
    }

    /// Waits for the thread of an attempt that was called off, and leaves no process.
    pub(super) fn forget(self) {
        let deadline = Instant::now() + STOP_DEADLINE;
        while !self.thread.is_finished() {
            // A host that stops its own threads: the process is dead all the same.
            if Instant::now() >= deadline {
                return;
            }
            thread::sleep(Duration::from_micros(200));
        }
        if let Ok(greeted) = self.finish() {
            greeted.end();
        }
    }
}
