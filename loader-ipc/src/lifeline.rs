//! The lifeline: the socket pair of main and one worker. It carries the bootstrap and descriptors, and its
//! end means that the other process is gone.
//!
//! A message is one packet: eight magic bytes, the number of the protocol, an encoded body, and at most
//! [`MAX_FDS`] descriptors.

use std::{
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    net::{
        AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
        SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown, SocketFlags, SocketType, recvmsg,
        sendmsg, shutdown, socketpair,
    },
};
use serde::{Serialize, de::DeserializeOwned};

use crate::{advice::permitted, codec, held_fd::HeldFd, observed::Halt};

/// Number of this protocol. Main and worker must have the same.
pub const PROTOCOL: u32 = 10;
/// Maximum number of descriptors in one message.
pub const MAX_FDS: usize = 64;

const MAGIC: [u8; 8] = *b"LOADER\x00\x01";
const HEADER: usize = MAGIC.len() + size_of::<u32>();
const MAX_MESSAGE: usize = 64 * 1024;
/// Maximum length of a [pause](Until::pause).
pub(crate) const PAUSE: Duration = Duration::from_millis(10);

/// One end of a lifeline.
#[derive(Debug)]
pub struct Lifeline {
    /// Shared with the wake-up channel, which cannot check its own descriptor.
    socket: Arc<HeldFd>,
}

/// Why a message was not sent or received.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LifelineError {
    /// The other process is gone.
    #[error("the other process is gone")]
    Closed,
    /// The deadline has passed.
    #[error("no message within the deadline")]
    TimedOut,
    /// The caller has ended the wait.
    #[error("the wait for a message was interrupted")]
    Interrupted,
    /// The other process cannot continue.
    #[error("the other process does not answer: {0}")]
    Halted(Halt),
    /// The first bytes of the message are not those of the loader's protocol.
    #[error("the other process does not use the loader's protocol (the first bytes are {0:02x?})")]
    UnknownMagic(Vec<u8>),
    /// The message is of another version of the protocol.
    #[error(
        "the other process uses protocol {theirs}, this process {PROTOCOL}; build both from the same release"
    )]
    OtherProtocol {
        /// Number of the other process's protocol.
        theirs: u32,
    },
    /// The message is too long, truncated, or not what was expected here.
    #[error("malformed message: {0}")]
    Malformed(String),
    /// A system call failed.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// What limits a wait for descriptors: a time, or a [`Patience`](crate::patience::Patience).
pub trait Until {
    /// Polls until a descriptor is ready; looks at least once. A signal does not end the wait.
    ///
    /// # Errors
    /// Why the wait has ended before, or an error of `poll` other than EINTR.
    fn poll(&mut self, fds: &mut [PollFd<'_>]) -> Result<(), LifelineError>;

    /// Pauses for at most 10 ms, for what no descriptor shows.
    ///
    /// # Errors
    /// Why the wait has ended.
    fn pause(&mut self) -> Result<(), LifelineError>;
}

impl Until for Instant {
    fn poll(&mut self, fds: &mut [PollFd<'_>]) -> Result<(), LifelineError> {
        if poll_until(fds, *self)? { Ok(()) } else { Err(LifelineError::TimedOut) }
    }

    fn pause(&mut self) -> Result<(), LifelineError> {
        let left = self.saturating_duration_since(Self::now());
        thread::sleep(PAUSE.min(left));
        if left.is_zero() { Err(LifelineError::TimedOut) } else { Ok(()) }
    }
}

impl Lifeline {
    /// Makes a pair: main's end, and the end that becomes the worker's standard input.
    ///
    /// # Errors
    /// If the process is out of descriptors.
    pub fn pair() -> io::Result<(Self, OwnedFd)> {
        let made = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
        let (ours, theirs) = permitted("socketpair", made)?;
        Ok((Self::from_socket(ours), theirs))
    }

    /// Wraps an end that this process has inherited.
    pub fn from_socket(socket: OwnedFd) -> Self {
        Self { socket: Arc::new(HeldFd::new(socket)) }
    }

    /// Returns the socket. The wake-up channel checks it in place of its own, which was made at about the same time.
    pub(crate) fn socket(&self) -> &Arc<HeldFd> {
        &self.socket
    }

    /// True if the other end is closed: the other process has ended, or executes another program.
    pub fn is_closed(&self) -> bool {
        poll_until(&mut [PollFd::new(&*self.socket, PollFlags::RDHUP)], Instant::now()).unwrap_or(false)
    }

    /// Closes the connection for all processes that hold a descriptor of it.
    pub(crate) fn shut_down(&self) {
        if let Ok(socket) = self.socket.get() {
            // It fails only if the connection is closed already.
            let _ = shutdown(socket, Shutdown::Both);
        }
    }

    /// Sends one message. Waits for room in the socket as long as `deadline` allows.
    ///
    /// # Errors
    /// [`LifelineError`].
    pub fn send<T: Serialize>(
        &self,
        body: &T,
        fds: &[BorrowedFd<'_>],
        mut deadline: impl Until,
    ) -> Result<(), LifelineError> {
        let body = codec::encode(body).map_err(|error| LifelineError::Malformed(error.to_string()))?;
        if body.len() + HEADER > MAX_MESSAGE || fds.len() > MAX_FDS {
            let what = format!("{} bytes and {} descriptors exceed the limits", body.len(), fds.len());
            return Err(LifelineError::Malformed(what));
        }
        let protocol = PROTOCOL.to_le_bytes();
        let parts = [IoSlice::new(&MAGIC), IoSlice::new(&protocol), IoSlice::new(&body)];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        loop {
            let mut control = SendAncillaryBuffer::new(&mut space);
            if !fds.is_empty() {
                control.push(SendAncillaryMessage::ScmRights(fds));
            }
            match sendmsg(self.socket.get()?, &parts, &mut control, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)
            {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => deadline.poll(&mut [PollFd::new(&*self.socket, PollFlags::OUT)])?,
                // The descriptors that other processes of this user have not received yet reach the limit on open
                // files. Workers receive theirs before they do anything else.
                Err(errno @ Errno::TOOMANYREFS) => deadline.pause().map_err(|error| match error {
                    LifelineError::TimedOut => io::Error::from(errno).into(),
                    error => error,
                })?,
                Err(Errno::PIPE | Errno::CONNRESET) => return Err(LifelineError::Closed),
                Err(errno) => return permitted("sendmsg", Err(errno)).map_err(LifelineError::Io),
            }
        }
    }

    /// Waits for one message as long as `deadline` allows; looks at least once.
    ///
    /// # Errors
    /// [`LifelineError`].
    pub fn receive<T: DeserializeOwned>(
        &self,
        deadline: impl Until,
    ) -> Result<(T, Vec<OwnedFd>), LifelineError> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let reason = "the message or its descriptors were truncated; this process may be out of descriptors (see `ulimit -n`)";
        self.receive_with(&mut space, reason, deadline)
    }

    /// As [`receive`](Self::receive), but accepts at most one descriptor: a message with more is malformed,
    /// and its descriptors are closed.
    pub(crate) fn receive_with_one<T: DeserializeOwned>(
        &self,
        deadline: impl Until,
    ) -> Result<(T, Option<OwnedFd>), LifelineError> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let reason = "the message was truncated, it came with more than one descriptor, or this process is out of descriptors (see `ulimit -n`)";
        let (body, mut fds) = self.receive_with(&mut space, reason, deadline)?;
        let fd = fds.pop();
        // The buffer may hold two descriptors, because its size is rounded up.
        if fds.is_empty() { Ok((body, fd)) } else { Err(LifelineError::Malformed(reason.to_owned())) }
    }

    /// Receives a message. `space` is the buffer for its descriptors. If the message or its descriptors do
    /// not fit, the error is [`LifelineError::Malformed`] with `reason`.
    fn receive_with<T: DeserializeOwned>(
        &self,
        space: &mut [MaybeUninit<u8>],
        reason: &str,
        mut deadline: impl Until,
    ) -> Result<(T, Vec<OwnedFd>), LifelineError> {
        let mut bytes = vec![0; MAX_MESSAGE];
        let mut control = RecvAncillaryBuffer::new(space);
        let message = loop {
            let mut parts = [IoSliceMut::new(&mut bytes)];
            match recvmsg(
                self.socket.get()?,
                &mut parts,
                &mut control,
                RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC,
            ) {
                Ok(message) => break message,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => deadline.poll(&mut [PollFd::new(&*self.socket, PollFlags::IN)])?,
                Err(Errno::CONNRESET) => return Err(LifelineError::Closed),
                Err(errno) => return Err(io::Error::from(errno).into()),
            }
        };
        let mut fds = Vec::new();
        for part in control.drain() {
            if let RecvAncillaryMessage::ScmRights(received) = part {
                fds.extend(received);
            }
        }
        if message.bytes == 0 {
            return Err(LifelineError::Closed);
        }
        if message.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
            return Err(LifelineError::Malformed(reason.into()));
        }
        Ok((decode(&bytes[..message.bytes])?, fds))
    }
}

impl AsFd for Lifeline {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Polls until a descriptor is ready (true) or `deadline` has passed (false). A signal does not end the wait.
///
/// # Errors
/// Errors of `poll` other than EINTR.
pub fn poll_until(fds: &mut [PollFd<'_>], deadline: Instant) -> io::Result<bool> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        // At most a day: `poll` refuses a timeout that does not fit its types.
        let left = left.min(Duration::from_secs(24 * 3600));
        let timeout = Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: left.subsec_nanos().into() };
        match poll(fds, Some(&timeout)) {
            Ok(0) if Instant::now() >= deadline => return Ok(false),
            Ok(0) | Err(Errno::INTR) => {}
            Ok(_) => return Ok(true),
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Checks the header of a message and decodes its body.
fn decode<T: DeserializeOwned>(message: &[u8]) -> Result<T, LifelineError> {
    let rest = message.strip_prefix(&MAGIC);
    let Some((protocol, body)) = rest.and_then(<[u8]>::split_first_chunk) else {
        return Err(LifelineError::UnknownMagic(message[..message.len().min(MAGIC.len())].to_vec()));
    };
    let theirs = u32::from_le_bytes(*protocol);
    if theirs != PROTOCOL {
        return Err(LifelineError::OtherProtocol { theirs });
    }
    codec::decode(body).map_err(|error| LifelineError::Malformed(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(5)
    }

    fn pair() -> (Lifeline, Lifeline) {
        let (ours, theirs) = Lifeline::pair().unwrap();
        (ours, Lifeline::from_socket(theirs))
    }

    #[test]
    fn a_message_crosses_with_its_descriptors() {
        let (ours, theirs) = pair();
        let memory = crate::memory::SealedMemory::new(b"rows").unwrap();
        ours.send(&"hello", &[memory.fd().as_fd()], soon()).unwrap();
        let (text, mut fds) = theirs.receive::<String>(soon()).unwrap();
        assert_eq!(text, "hello");
        let memory = crate::memory::SealedMemory::open(fds.pop().unwrap()).unwrap();
        assert_eq!(memory.bytes(), b"rows");
        assert!(!theirs.is_closed());
        drop(ours);
        assert!(theirs.is_closed());
        assert!(matches!(theirs.receive::<String>(soon()), Err(LifelineError::Closed)));
    }

    #[test]
    fn no_message_within_the_deadline_is_an_error() {
        let (_ours, theirs) = pair();
        let result = theirs.receive::<String>(Instant::now() + Duration::from_millis(20));
        assert!(matches!(result, Err(LifelineError::TimedOut)));
    }

    #[test]
    fn other_programs_and_other_protocols_are_errors() {
        let (ours, theirs) = pair();
        rustix::io::write(&*ours.socket, b"hello, is this the shell?").unwrap();
        assert!(matches!(theirs.receive::<String>(soon()), Err(LifelineError::UnknownMagic(_))));
        rustix::io::write(&*ours.socket, &[MAGIC.as_slice(), &(PROTOCOL + 1).to_le_bytes()].concat())
            .unwrap();
        let result = theirs.receive::<String>(soon());
        assert!(matches!(result, Err(LifelineError::OtherProtocol { theirs }) if theirs == PROTOCOL + 1));
        rustix::io::write(&*ours.socket, &[MAGIC.as_slice(), &PROTOCOL.to_le_bytes(), &[1]].concat())
            .unwrap();
        assert!(matches!(theirs.receive::<String>(soon()), Err(LifelineError::Malformed(_))));
    }
}
