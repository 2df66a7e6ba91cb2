//! The façade over ipc-channel: what the loader needs of it, without its traps.
//!
//! - A message never exceeds [`MAX_MESSAGE`], checked before sending. Above one packet (about 200 KiB) ipc-channel splits a message,
//!   and then a killed sender looks like a closed channel and a stopped one blocks every receiver.
//! - Receiving has a deadline; a signal does not end it.
//! - A receiver that is gone is an error, whatever the program does with SIGPIPE.
//! - No channels and no memory travel inside messages.
//! - `send` may block while the channel is full (about 270 small messages): whoever sends must not wait for the receiver in
//!   any other way, and what is outstanding stays far below that.

use std::{
    fmt,
    fs::File,
    io,
    marker::PhantomData,
    time::{Duration, Instant},
};

use ipc_channel::{
    IpcError, TryRecvError,
    ipc::{self, IpcReceiver, IpcSender},
};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::DeserializeOwned};

use crate::{
    codec::{self, CodecError},
    held::without_sigpipe,
};

/// Largest message in bytes: far below what one packet takes.
pub const MAX_MESSAGE: usize = 4 * 1024;

/// Makes a channel of `T`s.
///
/// # Errors
/// When the system is out of descriptors.
pub fn channel<T>() -> io::Result<(Sender<T>, Receiver<T>)> {
    let (sender, receiver) = ipc::channel()?;
    Ok((Sender { inner: sender, message: PhantomData }, Receiver { inner: receiver, message: PhantomData }))
}

/// Makes a channel and throws it away, so that ipc-channel measures its socket buffers now. It does so once per process, and panics
/// for ever after if there is no descriptor left at that moment.
///
/// # Errors
/// When the process is out of descriptors.
pub fn warm_up() -> io::Result<()> {
    // Room for the channel, the probe, and what ipc-channel duplicates on the way.
    let room = (0..8).map(|_| File::open("/dev/null")).collect::<io::Result<Vec<_>>>()?;
    drop(room);
    let (sender, receiver) = channel::<u8>()?;
    sender.send(&0).map_err(io::Error::other)?;
    receiver.receive(Instant::now()).map(drop).map_err(io::Error::other)
}

/// The sending end; clones share one channel. Itself sendable to another process, once, at start-up.
#[derive(Serialize, Deserialize)]
#[serde(bound = "")]
pub struct Sender<T> {
    inner: IpcSender<Packet>,
    message: PhantomData<fn(T)>,
}

/// The receiving end. Itself sendable to another process, once, at start-up; it then no longer works here.
#[derive(Serialize, Deserialize)]
#[serde(bound = "")]
pub struct Receiver<T> {
    inner: IpcReceiver<Packet>,
    message: PhantomData<fn() -> T>,
}

/// Why a message was not sent.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// The message exceeds its limit: a defect of the loader, not of the peer.
    #[error("a message of {len} bytes exceeds the limit")]
    TooLarge {
        /// Size of the message in bytes.
        len: usize,
    },
    /// The receiver is gone.
    #[error("the receiving process is gone")]
    Closed,
    /// The message cannot be encoded.
    #[error("the message cannot be encoded: {0}")]
    Codec(#[from] CodecError),
    /// The system refused.
    #[error("the message cannot be sent: {0}")]
    Io(#[from] io::Error),
}

/// Why no message was received.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReceiveError {
    /// The deadline passed.
    #[error("no message within the deadline")]
    TimedOut,
    /// Every sender is gone. Cross-check with the senders' liveness before believing it.
    #[error("every sender is gone")]
    Closed,
    /// What came is no such message.
    #[error("a message cannot be decoded: {0}")]
    Malformed(String),
    /// The system refused.
    #[error("the channel cannot be read: {0}")]
    Io(#[from] io::Error),
}

impl<T: Serialize> Sender<T> {
    /// Sends one message; blocks while the channel is full.
    ///
    /// # Errors
    /// [`SendError`]; the message was then not sent.
    pub fn send(&self, message: &T) -> Result<(), SendError> {
        let bytes = codec::encode(message)?;
        if bytes.len() > MAX_MESSAGE {
            return Err(SendError::TooLarge { len: bytes.len() });
        }
        without_sigpipe(|| self.inner.send(Packet(bytes))).map_err(|error| match error {
            IpcError::Disconnected => SendError::Closed,
            IpcError::Io(error) if is_closed(&error) => SendError::Closed,
            IpcError::Io(error) => SendError::Io(error),
            IpcError::SerializationError(error) => SendError::Io(io::Error::other(error)),
        })
    }
}

impl<T: DeserializeOwned> Receiver<T> {
    /// Waits asleep for the next message until `deadline`, and at least looks once.
    ///
    /// # Errors
    /// [`ReceiveError`].
    ///
    /// # Implementation notes
    /// ipc-channel cuts a wait to whole milliseconds and ends it on any signal; both are undone here.
    pub fn receive(&self, deadline: Instant) -> Result<T, ReceiveError> {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            // Rounded up: a cut one would spin through the last millisecond.
            let wait = if left.is_zero() { left } else { left.max(Duration::from_millis(1)) };
            match self.inner.try_recv_timeout(wait) {
                Ok(Packet(bytes)) => {
                    return codec::decode(&bytes).map_err(|error| ReceiveError::Malformed(error.to_string()));
                }
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

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), message: PhantomData }
    }
}

impl<T> fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender").finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for Receiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receiver").finish_non_exhaustive()
    }
}

/// A blocked sender is woken with ECONNRESET when the receiver closes; later ones get EPIPE.
fn is_closed(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
}

/// One message's bytes, written as bytes: as a plain `Vec<u8>` serde would take them one by one.
struct Packet(Vec<u8>);

impl Serialize for Packet {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.0)
    }
}

impl<'de> Deserialize<'de> for Packet {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Bytes;
        impl serde::de::Visitor<'_> for Bytes {
            type Value = Packet;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the bytes of a message")
            }

            fn visit_bytes<E: serde::de::Error>(self, bytes: &[u8]) -> Result<Packet, E> {
                Ok(Packet(bytes.to_vec()))
            }

            fn visit_byte_buf<E: serde::de::Error>(self, bytes: Vec<u8>) -> Result<Packet, E> {
                Ok(Packet(bytes))
            }
        }
        deserializer.deserialize_bytes(Bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(5)
    }

    #[test]
    fn messages_arrive_in_order_then_the_channel_is_closed() {
        let (sender, receiver) = channel::<(u32, String)>().unwrap();
        sender.send(&(1, "one".into())).unwrap();
        sender.send(&(2, "two".into())).unwrap();
        assert_eq!(receiver.receive(soon()).unwrap(), (1, "one".to_owned()));
        assert_eq!(receiver.receive(soon()).unwrap(), (2, "two".to_owned()));
        drop(sender);
        assert!(matches!(receiver.receive(soon()), Err(ReceiveError::Closed)));
    }

    #[test]
    fn a_deadline_in_the_past_still_looks_once() {
        let (sender, receiver) = channel::<u8>().unwrap();
        assert!(matches!(receiver.receive(Instant::now()), Err(ReceiveError::TimedOut)));
        sender.send(&7).unwrap();
        assert_eq!(receiver.receive(Instant::now()).unwrap(), 7);
    }

    #[test]
    fn a_message_over_the_limit_is_refused_before_it_is_sent() {
        let (sender, receiver) = channel::<Vec<u8>>().unwrap();
        assert!(matches!(sender.send(&vec![0; MAX_MESSAGE]), Err(SendError::TooLarge { .. })));
        assert!(matches!(receiver.receive(Instant::now()), Err(ReceiveError::TimedOut)));
    }

    #[test]
    fn a_gone_receiver_is_an_error_not_a_signal() {
        let (sender, receiver) = channel::<u8>().unwrap();
        drop(receiver);
        assert!(matches!(sender.send(&1), Err(SendError::Closed)));
    }

    #[test]
    fn garbage_is_an_error() {
        let (sender, receiver) = channel::<Vec<u64>>().unwrap();
        sender.inner.send(Packet(vec![255; 20])).unwrap();
        assert!(matches!(receiver.receive(soon()), Err(ReceiveError::Malformed(_))));
    }
}
