//! The task queue: orders from main to one worker, and whose a task is.

use std::{io, sync::Arc, time::Instant};

use super::{
    ASLEEP, CLAIMS, HEARD,
    bell::{Ear, Ringer},
    bells::{Bells, note_heard},
    claims::Claims,
    encode_frame, read_frame,
    wait::{Receive, wait},
};
use crate::{
    atomic::AtomicU64,
    channel::{ReceiveError, SendError},
    frame::{MOST_UNANSWERED, Order},
    ring::{RingReader, RingWriter},
    sys::SharedWords,
};

/// Main's end of a worker's task queue.
#[derive(Debug)]
pub struct OrderSender {
    pub(super) ring: RingWriter,
    pub(super) memory: Arc<SharedWords>,
    pub(super) bell: Ringer,
    pub(super) bells: Bells,
    pub(super) frame: Vec<u8>,
}

/// A worker's end of its task queue. `None` is the sentinel.
#[derive(Debug)]
pub struct OrderReceiver {
    pub(super) ring: RingReader,
    pub(super) memory: Arc<SharedWords>,
    pub(super) bell: Ear,
    pub(super) frame: Vec<u8>,
}

impl OrderSender {
    /// Sends an order, or the sentinel. Never waits: what is unanswered is kept so small ([`MOST_UNANSWERED`]) that it fits,
    /// and a worker that does not hear its bell is rung for once.
    ///
    /// # Errors
    /// [`SendError`]; that there is no room is a defect of the loader. The frame was then not sent.
    pub fn send(&mut self, order: &Option<Order>) -> Result<(), SendError> {
        encode_frame(order, &mut self.frame)?;
        if let Some(Order::Task(task)) = order {
            Claims::new(&self.memory, CLAIMS).open(task.claim);
        }
        if !self.ring.write(&self.frame) {
            let problem = format!("more than {MOST_UNANSWERED} tasks do not fit");
            return Err(SendError::Io(io::Error::other(problem)));
        }
        let words = self.memory.words();
        self.bells.next(&words[ASLEEP], &words[HEARD]).map_or(Ok(()), |number| self.bell.ring(number))
    }

    /// Takes back the task that was sent with `claim`. False when the worker has begun it.
    pub fn withdraw(&self, claim: u32) -> bool {
        Claims::new(&self.memory, CLAIMS).withdraw(claim)
    }
}

impl OrderReceiver {
    /// Waits for the next order until `deadline`, and at least looks once.
    ///
    /// # Errors
    /// [`ReceiveError`]; `Closed` when main has dropped its end, after the last order.
    pub fn receive(&mut self, deadline: Instant) -> Result<Option<Order>, ReceiveError> {
        wait(self, deadline)
    }

    /// Begins the task that came with `claim`. False when main has withdrawn it.
    pub fn begin(&self, claim: u32) -> bool {
        Claims::new(&self.memory, CLAIMS).begin(claim)
    }
}

impl Receive for OrderReceiver {
    type Frame = Option<Order>;
    type Error = ReceiveError;

    fn look(&mut self) -> Result<Option<Self::Frame>, ReceiveError> {
        read_frame(&mut self.ring, &mut self.frame).map_err(ReceiveError::Malformed)
    }

    fn sleep(&mut self, deadline: Instant) -> Result<(), ReceiveError> {
        let number = self.bell.hear(deadline)?;
        note_heard(&self.memory.words()[HEARD], number);
        Ok(())
    }

    fn asleep(&self) -> &AtomicU64 {
        &self.memory.words()[ASLEEP]
    }
}
