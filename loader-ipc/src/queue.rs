//! The façade over ipc-channel: what the loader needs of it, without its traps.
//!
//! - A frame never exceeds [`MAX_FRAME`], checked before sending. Above one packet (about 200 KiB) ipc-channel splits a message,
//!   and then a killed sender looks like a closed queue and a stopped one blocks every receiver.
//! - Receiving has a deadline; a signal does not end it.
//! - No channels and no memory travel inside frames.
//! - `send` may block while the queue is full (about 270 small frames): whoever sends must not wait for the receiver in
//!   any other way, and what is outstanding stays far below that.

use std::{
    fmt,
    fs::File,
    io,
    marker::PhantomData,
    thread,
    time::{Duration, Instant},
};

use ipc_channel::{
    IpcError, TryRecvError,
    ipc::{self, IpcReceiver, IpcSender},
};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::DeserializeOwned};

use crate::codec::{self, CodecError};

/// Largest frame in bytes: a third of what one packet takes.
pub const MAX_FRAME: usize = 64 * 1024;

/// How long a receiver looks again and again before it sleeps.
const LOOKING: Duration = Duration::from_micros(20);

/// Makes a queue of `T`s.
///
/// # Errors
/// When the system is out of descriptors.
pub fn queue<T>() -> io::Result<(Sender<T>, Receiver<T>)> {
    let (sender, receiver) = ipc::channel()?;
    Ok((Sender { inner: sender, frame: PhantomData }, Receiver { inner: receiver, frame: PhantomData }))
}

/// Makes a queue and throws it away, so that ipc-channel measures its socket buffers now. It does so once per process, and panics
/// for ever after if there is no descriptor left at that moment.
///
/// # Errors
/// When the process is out of descriptors.
pub fn warm_up() -> io::Result<()> {
    // Room for the queue, the probe, and what ipc-channel duplicates on the way.
    let room = (0..8).map(|_| File::open("/dev/null")).collect::<io::Result<Vec<_>>>()?;
    drop(room);
    let (sender, receiver) = queue::<u8>()?;
    sender.send(&0).map_err(io::Error::other)?;
    receiver.receive(Instant::now()).map(drop).map_err(io::Error::other)
}

/// The sending end; clones share one queue. Itself sendable to another process, once, at start-up.
#[derive(Serialize, Deserialize)]
#[serde(bound = "")]
pub struct Sender<T> {
    inner: IpcSender<Packet>,
    frame: PhantomData<fn(T)>,
}

/// The receiving end. Itself sendable to another process, once, at start-up; it then no longer works here.
#[derive(Serialize, Deserialize)]
#[serde(bound = "")]
pub struct Receiver<T> {
    inner: IpcReceiver<Packet>,
    frame: PhantomData<fn() -> T>,
}

/// Why a frame was not sent.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// The frame exceeds [`MAX_FRAME`]: a defect of the loader, not of the peer.
    #[error("a frame of {len} bytes exceeds the limit of {MAX_FRAME}")]
    TooLarge {
        /// Size of the frame in bytes.
        len: usize,
    },
    /// The receiver is gone.
    #[error("the receiving process is gone")]
    Closed,
    /// The frame cannot be encoded.
    #[error("the frame cannot be encoded: {0}")]
    Codec(#[from] CodecError),
    /// The system refused.
    #[error("the frame cannot be sent: {0}")]
    Io(#[from] io::Error),
}

/// Why no frame was received.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReceiveError {
    /// The deadline passed.
    #[error("no frame within the deadline")]
    TimedOut,
    /// Every sender is gone. Cross-check with the senders' liveness before believing it.
    #[error("every sender is gone")]
    Closed,
    /// What came is no such frame.
    #[error("a frame cannot be decoded: {0}")]
    Malformed(String),
    /// The system refused.
    #[error("the queue cannot be read: {0}")]
    Io(#[from] io::Error),
}

impl<T: Serialize> Sender<T> {
    /// Sends one frame; blocks while the queue is full.
    ///
    /// # Errors
    /// [`SendError`]; the frame was then not sent.
    pub fn send(&self, frame: &T) -> Result<(), SendError> {
        let bytes = codec::encode(frame)?;
        if bytes.len() > MAX_FRAME {
            return Err(SendError::TooLarge { len: bytes.len() });
        }
        self.inner.send(Packet(bytes)).map_err(|error| match error {
            IpcError::Disconnected => SendError::Closed,
            IpcError::Io(error) if is_closed(&error) => SendError::Closed,
            IpcError::Io(error) => SendError::Io(error),
            IpcError::SerializationError(error) => SendError::Io(io::Error::other(error)),
        })
    }
}

impl<T: DeserializeOwned> Receiver<T> {
    /// Waits for the next frame until `deadline`, and at least looks once.
    ///
    /// # Errors
    /// [`ReceiveError`].
    ///
    /// # Implementation notes
    /// `poll`, then `recvmsg`. It first looks for 20 us before it sleeps, giving way to others in between: a sleeping
    /// processor takes longer to wake than a small batch takes to load. ipc-channel cuts a wait to whole milliseconds and ends it
    /// on any signal; both are undone here.
    pub fn receive(&self, deadline: Instant) -> Result<T, ReceiveError> {
        let mut started = None;
        let mut wait = Duration::ZERO;
        loop {
            let received = self.inner.try_recv_timeout(wait);
            match received {
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
            let now = Instant::now();
            let Some(left) = deadline.checked_duration_since(now).filter(|left| !left.is_zero()) else {
                return Err(ReceiveError::TimedOut);
            };
            wait = if now - *started.get_or_insert(now) < LOOKING {
                thread::yield_now();
                Duration::ZERO
            } else {
                // Rounded up: a cut one would spin through the last millisecond.
                left.max(Duration::from_millis(1))
            };
        }
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), frame: PhantomData }
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

/// One frame's bytes, written as bytes: as a plain `Vec<u8>` serde would take them one by one.
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
                f.write_str("the bytes of a frame")
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
    fn frames_arrive_in_order_then_the_queue_is_closed() {
        let (sender, receiver) = queue::<(u32, String)>().unwrap();
        sender.send(&(1, "one".into())).unwrap();
        sender.send(&(2, "two".into())).unwrap();
        assert_eq!(receiver.receive(soon()).unwrap(), (1, "one".to_owned()));
        assert_eq!(receiver.receive(soon()).unwrap(), (2, "two".to_owned()));
        drop(sender);
        assert!(matches!(receiver.receive(soon()), Err(ReceiveError::Closed)));
    }

    #[test]
    fn a_deadline_in_the_past_still_looks_once() {
        let (sender, receiver) = queue::<u8>().unwrap();
        assert!(matches!(receiver.receive(Instant::now()), Err(ReceiveError::TimedOut)));
        sender.send(&7).unwrap();
        assert_eq!(receiver.receive(Instant::now()).unwrap(), 7);
    }

    #[test]
    fn a_frame_over_the_limit_is_refused_before_it_is_sent() {
        let (sender, receiver) = queue::<Vec<u8>>().unwrap();
        assert!(matches!(sender.send(&vec![0; MAX_FRAME]), Err(SendError::TooLarge { .. })));
        assert!(matches!(receiver.receive(Instant::now()), Err(ReceiveError::TimedOut)));
    }

    #[test]
    fn a_gone_receiver_is_an_error_not_a_signal() {
        let (sender, receiver) = queue::<u8>().unwrap();
        drop(receiver);
        assert!(matches!(sender.send(&1), Err(SendError::Closed)));
    }

    #[test]
    fn garbage_is_an_error() {
        let (sender, receiver) = queue::<Vec<u64>>().unwrap();
        sender.inner.send(Packet(vec![255; 20])).unwrap();
        assert!(matches!(receiver.receive(soon()), Err(ReceiveError::Malformed(_))));
    }
}
