//! The channel that carries main's wake-ups to one worker. It wraps ipc-channel.
//!
//! - Only main sends, so the worker may trust the lengths in a message, and that the rest of a message
//!   follows.
//! - A message is one number. It is far smaller than the packet (about 200 KiB) above which ipc-channel
//!   splits a message; a sender that is killed between the parts of a message looks like a closed channel.
//! - Receiving has a deadline, and a signal does not end it.
//! - Sending blocks while the channel is full (at about 270 small messages). `wakeup_gate.rs` keeps at most
//!   one message in it.

use std::{
    fs::File,
    io, mem,
    sync::Arc,
    time::{Duration, Instant},
};

use ipc_channel::{
    IpcError, TryRecvError,
    ipc::{self, IpcReceiver, IpcSender},
};

use rustix::net::sockopt::set_socket_linger;

use crate::{
    advice::permitted,
    channel::{ReceiveError, SendError},
    held_fd::HeldFd,
    lifeline::Lifeline,
    signals::without_sigpipe,
};

/// Main's end of a wake-up channel.
#[derive(Debug)]
pub struct WakeupSender {
    /// `None` only while it is dropped.
    sender: Option<IpcSender<u64>>,
    /// A descriptor that was made at about the same time. The sender checks it in place of its own socket, whose number
    /// ipc-channel does not tell, to notice that the program has closed the loader's descriptors.
    witness: Arc<HeldFd>,
}

/// The worker's end of a wake-up channel.
#[derive(Debug)]
pub struct WakeupReceiver(IpcReceiver<u64>);

/// Makes a wake-up channel. The sender checks `witness` in place of its own socket, which was made at about the same
/// time. The worker's end is returned in the form that can be sent to the worker.
pub(crate) fn wakeup_channel(witness: &Arc<HeldFd>) -> io::Result<(WakeupSender, IpcReceiver<u64>)> {
    let (sender, receiver) = ipc::channel()?;
    Ok((WakeupSender { sender: Some(sender), witness: Arc::clone(witness) }, receiver))
}

/// Makes a wake-up channel and drops it, so that ipc-channel measures the size of its socket buffers now. It
/// does so once per process, and if no descriptor is left at that moment, it panics in every later use.
///
/// # Errors
/// If the process is out of descriptors, or a sandbox forbids a call that ipc-channel makes here or in a worker.
pub fn warm_up() -> io::Result<()> {
    // Checks that there are descriptors for the channel, the probe, and what ipc-channel duplicates.
    let room = (0..8).map(|_| File::open("/")).collect::<io::Result<Vec<_>>>()?;
    drop(room);
    check_sandbox()?;
    try_one()
}

/// Tries a call that ipc-channel makes in a worker when main connects to it. If a sandbox forbids the call there, main
/// would see no more than the worker's end.
fn check_sandbox() -> io::Result<()> {
    let (socket, _) = Lifeline::pair()?;
    permitted("setsockopt", set_socket_linger(&socket, Some(Duration::from_secs(1))))
}

/// Makes a wake-up channel, sends and receives one wake-up, and drops the channel.
fn try_one() -> io::Result<()> {
    let witness = Arc::new(HeldFd::new(File::open("/")?.into()));
    let (sender, receiver) = wakeup_channel(&witness)?;
    sender.send(0).map_err(io::Error::other)?;
    WakeupReceiver::new(receiver).receive(Instant::now()).map(drop).map_err(io::Error::other)
}

impl WakeupSender {
    /// Sends `number` to the worker. Blocks while the channel is full.
    pub(super) fn send(&self, number: u64) -> Result<(), SendError> {
        self.witness.get().map_err(SendError::Io)?;
        let sender = self.sender.as_ref().expect("only `drop` takes it");
        without_sigpipe(|| sender.send(number)).map_err(|error| match error {
            IpcError::Disconnected => SendError::Closed,
            IpcError::Io(error) if is_closed(&error) => SendError::Closed,
            IpcError::Io(error) => SendError::Io(error),
            IpcError::SerializationError(error) => SendError::Io(io::Error::other(error)),
        })
    }
}

impl Drop for WakeupSender {
    fn drop(&mut self) {
        let sender = self.sender.take();
        if !self.witness.is_same_file() {
            mem::forget(sender);
        }
    }
}

impl WakeupReceiver {
    pub(crate) fn new(receiver: IpcReceiver<u64>) -> Self {
        Self(receiver)
    }

    /// Sleeps until a message arrives and returns its number; waits until `deadline`, and looks at least
    /// once.
    ///
    /// ipc-channel rounds a wait down to whole milliseconds and ends it at any signal. This method corrects
    /// both.
    pub(super) fn receive(&self, deadline: Instant) -> Result<u64, ReceiveError> {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            // At least 1 ms: a shorter wait is rounded down to 0, and the loop would spin through the last
            // millisecond.
            let wait = if left.is_zero() { left } else { left.max(Duration::from_millis(1)) };
            match self.0.try_recv_timeout(wait) {
                Ok(number) => return Ok(number),
                Err(TryRecvError::IpcError(IpcError::Io(error)))
                    if error.kind() == io::ErrorKind::Interrupted => {}
                Err(TryRecvError::Empty) => {}
                Err(TryRecvError::IpcError(IpcError::Disconnected)) => return Err(ReceiveError::Closed),
                Err(TryRecvError::IpcError(IpcError::Io(error))) => {
                    return Err(if is_closed(&error) { ReceiveError::Closed } else { error.into() });
                }
                Err(TryRecvError::IpcError(IpcError::SerializationError(error))) => {
                    return Err(ReceiveError::Malformed(error.to_string()));
                }
            }
            if left.is_zero() {
                return Err(ReceiveError::TimedOut);
            }
        }
    }
}

/// True if the error means that the receiver is closed: ECONNRESET ends a send that is blocked at that
/// moment, EPIPE every later one.
fn is_closed(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn channel() -> (WakeupSender, IpcReceiver<u64>) {
        let witness = Arc::new(HeldFd::new(File::open("/").unwrap().into()));
        wakeup_channel(&witness).unwrap()
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(5)
    }

    #[test]
    fn wake_ups_arrive_in_order_then_the_channel_is_closed() {
        let (sender, receiver) = channel();
        let receiver = WakeupReceiver::new(receiver);
        assert!(matches!(receiver.receive(Instant::now()), Err(ReceiveError::TimedOut)));
        sender.send(1).unwrap();
        sender.send(2).unwrap();
        assert_eq!(receiver.receive(Instant::now()).unwrap(), 1);
        assert_eq!(receiver.receive(soon()).unwrap(), 2);
        drop(sender);
        assert!(matches!(receiver.receive(soon()), Err(ReceiveError::Closed)));
    }

    #[test]
    fn sending_to_a_worker_that_is_gone_is_an_error() {
        let (sender, receiver) = channel();
        drop(receiver);
        assert!(matches!(sender.send(1), Err(SendError::Closed)));
    }
}
