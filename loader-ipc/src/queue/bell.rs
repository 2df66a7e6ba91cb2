//! The channel that wakes a worker: ipc-channel, behind what the loader needs of it, without its traps.
//!
//! - Only main sends, and so the worker may believe what comes: lengths, and that the rest of a message follows.
//! - A message is a number: far below the packet (about 200 KiB) above which ipc-channel splits a message, so that a killed sender looks
//!   like a closed channel.
//! - Receiving has a deadline; a signal does not end it.
//! - `send` blocks while the channel is full (about 270 small messages); `bells.rs` sees to it that it never is.

use std::{
    io,
    time::{Duration, Instant},
};

use ipc_channel::{
    IpcError, TryRecvError,
    ipc::{self, IpcReceiver, IpcSender},
};

use crate::{
    channel::{ReceiveError, SendError},
    held::without_sigpipe,
};

/// Main's end.
#[derive(Debug)]
pub struct Ringer(IpcSender<u64>);

/// The worker's end.
#[derive(Debug)]
pub struct Ear(IpcReceiver<u64>);

/// Makes a bell; the worker's end is still what can be sent to it.
pub(crate) fn bell() -> io::Result<(Ringer, IpcReceiver<u64>)> {
    let (sender, receiver) = ipc::channel()?;
    Ok((Ringer(sender), receiver))
}

/// Makes a bell, rings it and throws it away.
pub(crate) fn try_one() -> io::Result<()> {
    let (ringer, ear) = bell()?;
    ringer.ring(0).map_err(io::Error::other)?;
    Ear::new(ear).hear(Instant::now()).map(drop).map_err(io::Error::other)
}

impl Ringer {
    /// Rings; blocks while the channel is full.
    pub(super) fn ring(&self, number: u64) -> Result<(), SendError> {
        without_sigpipe(|| self.0.send(number)).map_err(|error| match error {
            IpcError::Disconnected => SendError::Closed,
            IpcError::Io(error) if is_closed(&error) => SendError::Closed,
            IpcError::Io(error) => SendError::Io(error),
            IpcError::SerializationError(error) => SendError::Io(io::Error::other(error)),
        })
    }
}

impl Ear {
    pub(crate) fn new(receiver: IpcReceiver<u64>) -> Self {
        Self(receiver)
    }

    /// Waits asleep for the next bell until `deadline`, and at least looks once; gives its number.
    ///
    /// ipc-channel cuts a wait to whole milliseconds and ends it on any signal; both are undone here.
    pub(super) fn hear(&self, deadline: Instant) -> Result<u64, ReceiveError> {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            // Rounded up: a cut one would spin through the last millisecond.
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

/// A blocked sender is woken with ECONNRESET when the receiver closes; later ones get EPIPE.
fn is_closed(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(5)
    }

    #[test]
    fn bells_are_heard_in_order_then_the_channel_is_closed() {
        let (ringer, ear) = bell().unwrap();
        let ear = Ear::new(ear);
        assert!(matches!(ear.hear(Instant::now()), Err(ReceiveError::TimedOut)));
        ringer.ring(1).unwrap();
        ringer.ring(2).unwrap();
        assert_eq!(ear.hear(Instant::now()).unwrap(), 1);
        assert_eq!(ear.hear(soon()).unwrap(), 2);
        drop(ringer);
        assert!(matches!(ear.hear(soon()), Err(ReceiveError::Closed)));
    }

    #[test]
    fn a_gone_worker_is_an_error() {
        let (ringer, ear) = bell().unwrap();
        drop(ear);
        assert!(matches!(ringer.ring(1), Err(SendError::Closed)));
    }
}
