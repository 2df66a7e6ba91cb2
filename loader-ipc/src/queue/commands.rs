//! The index queue: commands from main to one worker, and the claims of the tasks among them.

use std::{io, sync::Arc, time::Instant};

use super::{
    ASLEEP, CLAIMS, RECEIVED_WAKEUP,
    claims::Claims,
    encode_frame, read_frame,
    wait::{Receive, wait},
    wakeup_channel::{WakeupReceiver, WakeupSender},
    wakeup_gate::{WakeupGate, note_received},
};
use crate::{
    atomic::AtomicU64,
    channel::{ReceiveError, SendError},
    frame::{Command, MAX_UNANSWERED},
    ring::{RingReader, RingWriter},
    sys::SharedWords,
};

/// Main's end of a worker's index queue.
#[derive(Debug)]
pub struct CommandSender {
    pub(super) ring: RingWriter,
    pub(super) memory: Arc<SharedWords>,
    pub(super) wakeups: WakeupSender,
    pub(super) gate: WakeupGate,
    pub(super) frame: Vec<u8>,
}

/// A worker's end of its index queue. `None` is the sentinel.
#[derive(Debug)]
pub struct CommandReceiver {
    pub(super) ring: RingReader,
    pub(super) memory: Arc<SharedWords>,
    pub(super) wakeups: WakeupReceiver,
    pub(super) frame: Vec<u8>,
}

impl CommandSender {
    /// Sends a command, or the sentinel. Never blocks: at most [`MAX_UNANSWERED`] tasks are unanswered,
    /// which fit the ring, and the wake-up channel holds at most one wake-up (`wakeup_gate.rs`).
    ///
    /// # Errors
    /// [`SendError`]; a ring without room is a defect of the loader. The command was then not sent.
    pub fn send(&mut self, command: &Option<Command>) -> Result<(), SendError> {
        encode_frame(command, &mut self.frame)?;
        if let Some(Command::Task(task)) = command {
            Claims::new(&self.memory, CLAIMS).open(task.claim);
        }
        if !self.ring.write(&self.frame) {
            let problem = format!(
                "the index queue is full, although at most {MAX_UNANSWERED} tasks may be unanswered; this is a defect of the loader"
            );
            return Err(SendError::Io(io::Error::other(problem)));
        }
        let words = self.memory.words();
        self.gate
            .next(&words[ASLEEP], &words[RECEIVED_WAKEUP])
            .map_or(Ok(()), |number| self.wakeups.send(number))
    }

    /// Withdraws the task that was sent with `claim`. False if the worker has begun it.
    pub fn withdraw(&self, claim: u32) -> bool {
        Claims::new(&self.memory, CLAIMS).withdraw(claim)
    }
}

impl CommandReceiver {
    /// Waits for the next command until `deadline`; looks at least once.
    ///
    /// # Errors
    /// [`ReceiveError`]; `Closed` if main has dropped its end, after the last command.
    pub fn receive(&mut self, deadline: Instant) -> Result<Option<Command>, ReceiveError> {
        wait(self, deadline)
    }

    /// Begins the task that came with `claim`. False if main has withdrawn it.
    pub fn begin(&self, claim: u32) -> bool {
        Claims::new(&self.memory, CLAIMS).begin(claim)
    }
}

impl Receive for CommandReceiver {
    type Frame = Option<Command>;
    type Error = ReceiveError;

    fn look(&mut self) -> Result<Option<Self::Frame>, ReceiveError> {
        read_frame(&mut self.ring, &mut self.frame)
            .map_err(|error| ReceiveError::Malformed(error.to_string()))
    }

    fn sleep(&mut self, deadline: Instant) -> Result<(), ReceiveError> {
        let number = self.wakeups.receive(deadline)?;
        note_received(&self.memory.words()[RECEIVED_WAKEUP], number);
        Ok(())
    }

    fn asleep(&self) -> &AtomicU64 {
        &self.memory.words()[ASLEEP]
    }
}
