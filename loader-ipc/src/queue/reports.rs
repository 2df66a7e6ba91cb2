//! The result queue: events from all workers to main, and exits from main's reaper.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use super::{
    Wake, encode_frame, read_frame,
    wait::{Receive, must_wake, wait},
};
use crate::{
    channel::{self, ReceiveError, SendError},
    control::ControlPage,
    frame::{Event, ExitStatus, Report},
    ring::{RingReader, RingWriter},
};

/// How long a worker waits before it looks again for room in its ring.
const ROOM_INTERVAL: Duration = Duration::from_micros(200);

/// A worker's end of the result queue.
#[derive(Debug)]
pub struct ReportSender {
    pub(super) ring: RingWriter,
    pub(super) wake: channel::Sender<Wake>,
    pub(super) control: Arc<ControlPage>,
    pub(super) frame: Vec<u8>,
}

/// Main's end of one worker's part of the result queue.
#[derive(Debug)]
pub struct ReportReader(pub(super) RingReader);

/// Main's end of the result queue.
#[derive(Debug)]
pub struct ReportReceiver {
    /// By worker.
    readers: Vec<ReportReader>,
    /// The worker to look at first: each one gets its turn.
    turn: usize,
    wake: channel::Receiver<Wake>,
    control: Arc<ControlPage>,
    /// The reaper has sent something.
    has_exits: Arc<AtomicBool>,
    exits: VecDeque<(usize, Event)>,
    frame: Vec<u8>,
}

/// The reaper's end of the result queue.
#[derive(Debug)]
pub struct ExitSender {
    wake: channel::Sender<Wake>,
    has_exits: Arc<AtomicBool>,
}

impl ReportSender {
    /// Sends a report. Waits while the ring is full, until main reads: the watchdog is what notices a dead main.
    ///
    /// # Errors
    /// [`SendError`]; the report was then not sent, or, with `Closed`, there is nobody to read it.
    pub fn send(&mut self, event: &Event) -> Result<(), SendError> {
        encode_frame(event, &mut self.frame)?;
        while !self.ring.write(&self.frame) {
            thread::sleep(ROOM_INTERVAL);
        }
        if must_wake(self.control.main_asleep()) { self.wake.send(&Wake::Report) } else { Ok(()) }
    }
}

impl ReportReceiver {
    /// The result queue of workers whose parts are `readers`, by number. `wake` is the channel that they were given the sending end
    /// of; `control` their control page.
    pub fn new(
        readers: Vec<ReportReader>,
        (sender, receiver): (channel::Sender<Wake>, channel::Receiver<Wake>),
        control: Arc<ControlPage>,
    ) -> (Self, ExitSender) {
        let has_exits = Arc::new(AtomicBool::new(false));
        let exits = ExitSender { wake: sender, has_exits: Arc::clone(&has_exits) };
        let (exits_of, frame) = (VecDeque::new(), Vec::new());
        let this = Self { readers, turn: 0, wake: receiver, control, has_exits, exits: exits_of, frame };
        (this, exits)
    }

    /// Waits for the next report until `deadline`, and at least looks once.
    ///
    /// # Errors
    /// [`ReportError`]; for a worker that wrote nonsense once, after which nothing more is read from it.
    pub fn receive(&mut self, deadline: Instant) -> Result<Report, ReportError> {
        wait(self, deadline)
    }

    /// Puts an exit that the reaper did not send behind what the worker had sent.
    pub fn note_exit(&mut self, worker: usize, pid: u32, status: ExitStatus) {
        self.exits.push_back((worker, Event::Exited { pid, status }));
    }

    /// An exit whose worker has nothing more to say.
    fn next_exit(&mut self) -> Option<Report> {
        // Acquire: pairs with the Release in `ExitSender::send`; only the hint hangs on it.
        if self.has_exits.swap(false, Ordering::Acquire) {
            // An error ends this too, but comes again when there is nothing else: the reaper closes its end behind the last exit.
            while let Ok(wake) = self.wake.receive(Instant::now()) {
                self.note(wake);
            }
        }
        let said_all = |&(worker, _): &(usize, Event)| self.readers[worker].0.is_empty();
        let place = self.exits.iter().position(said_all);
        let exit = place.and_then(|place| self.exits.remove(place));
        exit.map(|(worker, event)| Report { worker, event })
    }

    fn note(&mut self, wake: Wake) {
        if let Wake::Exited { worker, pid, status } = wake {
            let worker = worker as usize;
            // Another number can only come from a worker that writes what it should not.
            if worker < self.readers.len() {
                self.note_exit(worker, pid, status);
            }
        }
    }
}

impl ExitSender {
    /// Says that a worker has ended. What it had sent is reported before.
    ///
    /// # Errors
    /// [`SendError`]; nobody is interested then.
    pub fn send(&self, worker: u32, pid: u32, status: ExitStatus) -> Result<(), SendError> {
        let sent = self.wake.send(&Wake::Exited { worker, pid, status });
        // Release: main, which may be too busy to sleep, finds the exit when it sees this.
        self.has_exits.store(true, Ordering::Release);
        sent
    }
}

/// Why no report was received.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReportError {
    /// The deadline passed.
    #[error("no report within the deadline")]
    TimedOut,
    /// A worker wrote what is no report.
    #[error("worker {worker} wrote nonsense: {problem}")]
    Malformed {
        /// The worker.
        worker: usize,
        /// What is wrong with it.
        problem: String,
    },
    /// The channel that wakes main failed.
    #[error(transparent)]
    Channel(ReceiveError),
}

impl From<ReceiveError> for ReportError {
    fn from(error: ReceiveError) -> Self {
        match error {
            ReceiveError::TimedOut => Self::TimedOut,
            error => Self::Channel(error),
        }
    }
}

impl Receive for ReportReceiver {
    type Frame = Report;
    type Error = ReportError;

    fn look(&mut self) -> Result<Option<Report>, ReportError> {
        if let Some(exit) = self.next_exit() {
            return Ok(Some(exit));
        }
        let workers = self.readers.len();
        for worker in (self.turn..workers).chain(0..self.turn) {
            let read = read_frame(&mut self.readers[worker].0, &mut self.frame);
            if let Some(event) = read.map_err(|problem| ReportError::Malformed { worker, problem })? {
                self.turn = (worker + 1) % workers;
                return Ok(Some(Report { worker, event }));
            }
        }
        Ok(None)
    }

    fn sleep(&mut self, deadline: Instant) -> Result<(), ReceiveError> {
        let wake = self.wake.receive(deadline)?;
        self.note(wake);
        Ok(())
    }

    fn asleep(&self) -> &AtomicU64 {
        self.control.main_asleep()
    }
}
