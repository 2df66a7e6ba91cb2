//! The result queue: events from all workers to main, and notes from main's own threads.

use std::{
    collections::VecDeque,
    sync::{Arc, mpsc},
    thread,
    time::{Duration, Instant},
};

use super::{
    FrameError, Wake, encode_frame, read_frame,
    wait::{Receive, must_wake, wait},
};
use crate::{
    atomic::AtomicU64,
    channel::{self, ReceiveError, SendError, Waker},
    control::ControlPage,
    fault::{self, Point},
    frame::{Event, Report},
    ring::{InvalidFrame, RingReader, RingWriter},
    violation::ProtocolViolation,
};

/// Time after which a worker looks again for room in its ring.
const ROOM_INTERVAL: Duration = Duration::from_micros(200);

/// A worker's end of the result queue.
#[derive(Debug)]
pub struct ReportSender {
    pub(super) ring: RingWriter,
    pub(super) wake: Waker,
    pub(super) control: Arc<ControlPage>,
    pub(super) frame: Vec<u8>,
}

/// Main's end of one worker's ring of the result queue.
#[derive(Debug)]
pub struct ReportReader(pub(super) RingReader);

/// Main's end of the result queue.
#[derive(Debug)]
pub struct ReportReceiver {
    /// One for each worker, by number.
    readers: Vec<ReportReader>,
    /// The worker whose ring is read next, so that all workers take turns.
    turn: usize,
    wake: channel::Receiver<Wake>,
    control: Arc<ControlPage>,
    notes: mpsc::Receiver<Report>,
    /// Exits of workers whose rings may still hold events.
    exits: VecDeque<Report>,
    frame: Vec<u8>,
}

/// The end of the result queue for threads of the main process.
#[derive(Debug, Clone)]
pub struct NoteSender {
    notes: mpsc::Sender<Report>,
    wake: channel::Sender<Wake>,
}

impl ReportSender {
    /// Sends an event. Waits while the ring is full, until main reads; the watchdog ends the process if main
    /// is gone.
    ///
    /// # Errors
    /// [`SendError`]. The event was not sent, or, with `Closed`, no process reads it.
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
    /// Makes the result queue from the workers' `readers`, by worker number. The workers wake main over
    /// `sender`'s channel, and `control` is their control page.
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

    /// Waits for the next report until `deadline`; looks at least once.
    ///
    /// # Errors
    /// [`ReportError`]. A worker whose ring is invalid is reported once; nothing more is read from it.
    pub fn receive(&mut self, deadline: Instant) -> Result<Report, ReportError> {
        wait(self, deadline)
    }

    /// Reads a worker's events from the ring of its new process. Drops what the old process, if any, had sent
    /// and main has not read. `worker` is at most the number of workers so far.
    pub fn replace(&mut self, worker: usize, reader: ReportReader) {
        match self.readers.get_mut(worker) {
            Some(old) => *old = reader,
            None => self.readers.push(reader),
        }
    }

    /// Reads nothing more from a worker, because it broke the protocol.
    pub fn stop_reading(&mut self, worker: usize) {
        self.readers[worker].0.stop_reading();
    }

    /// Returns a note that is due. The exit of a worker is due when its ring is empty.
    fn next_note(&mut self) -> Option<Report> {
        while let Ok(note) = self.notes.try_recv() {
            match note {
                Report::Exited { .. } => self.exits.push_back(note),
                other => return Some(other),
            }
        }
        let is_due = |exit: &Report| match exit {
            Report::Exited { worker, .. } => self.readers[*worker].0.is_empty(),
            _ => true,
        };
        let position = self.exits.iter().position(is_due)?;
        self.exits.remove(position)
    }
}

impl NoteSender {
    /// Puts a note into the queue and wakes main. If the receiver is gone, the note is dropped.
    pub fn send(&self, note: Report) {
        // Main is woken even if it is marked as awake: a worker that was killed may have marked it so without
        // waking it. Notes are rare, so this costs little.
        if self.notes.send(note).is_ok() {
            drop(self.wake.wake());
        }
    }

    /// Returns the channel with which a new worker wakes main.
    pub fn wake(&self) -> &channel::Sender<Wake> {
        &self.wake
    }
}

/// Why no report was received.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReportError {
    /// The deadline has passed.
    #[error("no report within the deadline")]
    TimedOut,
    /// A worker wrote an invalid frame or event.
    #[error("worker {worker} broke the protocol: {violation}")]
    Misbehaved {
        /// Number of the worker.
        worker: usize,
        /// The rule that it broke.
        violation: ProtocolViolation,
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

impl From<FrameError> for ProtocolViolation {
    fn from(error: FrameError) -> Self {
        match error {
            FrameError::Invalid(InvalidFrame) => Self::InvalidFrame,
            FrameError::Undecodable(error) => Self::UndecodableEvent { reason: error.to_string() },
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
            let misbehaved = |violation| ReportError::Misbehaved { worker, violation };
            let read = read_frame::<Event>(&mut self.readers[worker].0, &mut self.frame);
            if let Some(event) = read.map_err(|error| misbehaved(error.into()))? {
                if let Err(violation) = event.check() {
                    self.stop_reading(worker);
                    return Err(misbehaved(violation));
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
