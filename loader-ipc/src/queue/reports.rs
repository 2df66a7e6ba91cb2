//! The result queue: events from all workers to main, and notes from main's own threads.

use std::{
    collections::VecDeque,
    sync::{Arc, mpsc},
    thread,
    time::{Duration, Instant},
};

use super::{
    Wake, encode_frame, read_frame,
    wait::{Receive, must_wake, wait},
};
use crate::{
    atomic::AtomicU64,
    channel::{self, ReceiveError, SendError, Waker},
    control::ControlPage,
    fault::{self, Point},
    frame::{Event, Report},
    ring::{RingReader, RingWriter},
};

/// How long a worker waits before it looks again for room in its ring.
const ROOM_INTERVAL: Duration = Duration::from_micros(200);

/// A worker's end of the result queue.
#[derive(Debug)]
pub struct ReportSender {
    pub(super) ring: RingWriter,
    pub(super) wake: Waker,
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
    notes: mpsc::Receiver<Report>,
    /// Exits whose worker may have more to say.
    exits: VecDeque<Report>,
    frame: Vec<u8>,
}

/// The end of the result queue that main's own threads have.
#[derive(Debug, Clone)]
pub struct NoteSender {
    notes: mpsc::Sender<Report>,
    wake: channel::Sender<Wake>,
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
        if !must_wake(self.control.main_asleep()) {
            return Ok(());
        }
        fault::point(Point::WorkerWake);
        self.wake.wake()
    }
}

impl ReportReceiver {
    /// The result queue of workers whose parts are `readers`, by number. `wake` is the channel that they were given their ends
    /// of; `control` their control page.
    pub fn new(
        readers: Vec<ReportReader>,
        (sender, receiver): (channel::Sender<Wake>, channel::Receiver<Wake>),
        control: Arc<ControlPage>,
    ) -> (Self, NoteSender) {
        let (notes, noted) = mpsc::channel();
        let sender = NoteSender { notes, wake: sender };
        let (exits, frame) = (VecDeque::new(), Vec::new());
        (Self { readers, turn: 0, wake: receiver, control, notes: noted, exits, frame }, sender)
    }

    /// Waits for the next report until `deadline`, and at least looks once.
    ///
    /// # Errors
    /// [`ReportError`]; for a worker that wrote nonsense once, after which nothing more is read from it.
    pub fn receive(&mut self, deadline: Instant) -> Result<Report, ReportError> {
        wait(self, deadline)
    }

    /// Reads from another process in a worker's place: its new one. What the old one wrote and was not read is lost.
    pub fn replace(&mut self, worker: usize, reader: ReportReader) {
        self.readers[worker] = reader;
    }

    /// Reads nothing more from a worker: it writes what it should not.
    pub fn give_up(&mut self, worker: usize) {
        self.readers[worker].0.give_up();
    }

    /// A note that is due: an exit, when its worker has nothing more to say.
    fn next_note(&mut self) -> Option<Report> {
        while let Ok(note) = self.notes.try_recv() {
            match note {
                Report::Exited { .. } => self.exits.push_back(note),
                other => return Some(other),
            }
        }
        let said_all = |exit: &Report| match exit {
            Report::Exited { worker, .. } => self.readers[*worker].0.is_empty(),
            _ => true,
        };
        let place = self.exits.iter().position(said_all)?;
        self.exits.remove(place)
    }
}

impl NoteSender {
    /// Puts a note into the queue and wakes the receiver. Without a receiver, the note is dropped.
    pub fn send(&self, note: Report) {
        // Wakes main in any case: notes are rare, and a dead worker may have marked main as awake on the
        // control page without waking it.
        if self.notes.send(note).is_ok() {
            drop(self.wake.wake());
        }
    }

    /// What a new worker wakes main with.
    pub fn wake(&self) -> &channel::Sender<Wake> {
        &self.wake
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
        if let Some(note) = self.next_note() {
            return Ok(Some(note));
        }
        let workers = self.readers.len();
        for worker in (self.turn..workers).chain(0..self.turn) {
            let malformed = |problem| ReportError::Malformed { worker, problem };
            let read = read_frame::<Event>(&mut self.readers[worker].0, &mut self.frame);
            if let Some(event) = read.map_err(malformed)? {
                if let Err(problem) = event.check() {
                    self.give_up(worker);
                    return Err(malformed(problem.to_owned()));
                }
                self.turn = (worker + 1) % workers;
                return Ok(Some(Report::Event { worker, event }));
            }
        }
        Ok(None)
    }

    fn sleep(&mut self, deadline: Instant) -> Result<(), ReceiveError> {
        self.wake.receive(deadline)
    }

    fn asleep(&self) -> &AtomicU64 {
        self.control.main_asleep()
    }
}
