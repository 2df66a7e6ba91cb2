//! What wakes main: from each worker a socket of its own, on which nothing is said but that there is something to read elsewhere.
//!
//! Main reads these sockets itself, and so that nothing a worker does to its end can hurt anybody else. ipc-channel, which was used
//! before, trusts who sends: its receiver waits without a deadline for the rest of a message that is cut, takes the length of a message
//! from the message, and keeps the descriptors that come with it; and all senders share one socket, which any of them can fill, or shut
//! down for all. A few stray bytes from a C library that writes to a descriptor it has closed are enough for the first. Bells, which
//! go the other way, from main to a worker, are still ipc-channel's (`queue/bell.rs`).
//!
//! Two ways were weighed. An eventfd for all has a single descriptor, but a worker that reads it takes
//! others' wake-ups away, and one that takes its `O_NONBLOCK` away and fills it stops them. A socket each
//! costs two descriptors a worker, and what is wrong with one stays with that worker: a full socket wakes
//! main anyway. A closed or broken socket wakes main once more, and main then ignores it, so that main sees
//! its worker's reports when something else wakes it. The end of a socket must wake main, because the worker
//! may have been killed after it had marked main as awake and before it woke main.

use std::{
    collections::BTreeMap,
    fmt,
    fs::File,
    io,
    marker::PhantomData,
    os::fd::{AsFd, OwnedFd},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use rustix::{
    event::{Timespec, epoll},
    io::Errno,
    net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair},
};

use crate::{codec::CodecError, queue::bell};

/// Sockets that are looked at at a time.
const MOST_EVENTS: usize = 16;

/// Makes what wakes a receiver: the end that waits, and one for threads of this process, which makes those for others.
///
/// # Errors
/// When the system is out of descriptors.
pub fn channel<T>() -> io::Result<(Sender<T>, Receiver<T>)> {
    let ends = Arc::new(Ends { epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?, open: Mutex::default() });
    let own = Waker { socket: ends.add()? };
    let sender = Sender { ends: Arc::clone(&ends), own: Arc::new(own), whom: PhantomData };
    Ok((sender, Receiver { ends, whom: PhantomData }))
}

/// Makes a bell and throws it away, so that ipc-channel measures its socket buffers now. It does so once per process, and panics
/// for ever after if there is no descriptor left at that moment.
///
/// # Errors
/// When the process is out of descriptors.
pub fn warm_up() -> io::Result<()> {
    // Room for the channel, the probe, and what ipc-channel duplicates on the way.
    let room = (0..8).map(|_| File::open("/")).collect::<io::Result<Vec<_>>>()?;
    drop(room);
    bell::try_one()
}

/// What threads of this process wake the receiver with; `T` says whom. Clones share it.
pub struct Sender<T> {
    ends: Arc<Ends>,
    own: Arc<Waker>,
    whom: PhantomData<fn(T)>,
}

/// The end that waits.
pub struct Receiver<T> {
    ends: Arc<Ends>,
    whom: PhantomData<fn() -> T>,
}

/// One worker's end, in the worker.
#[derive(Debug)]
pub struct Waker {
    socket: OwnedFd,
}

/// The receiver's ends of all sockets.
#[derive(Debug)]
struct Ends {
    epoll: OwnedFd,
    open: Mutex<Open>,
}

#[derive(Debug, Default)]
struct Open {
    /// Number of the next one.
    next: u64,
    sockets: BTreeMap<u64, OwnedFd>,
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

impl<T> Sender<T> {
    /// Wakes the receiver. Never waits.
    ///
    /// # Errors
    /// `Closed` when there is none any more.
    pub fn wake(&self) -> Result<(), SendError> {
        self.own.wake()
    }

    /// Another process's end, to be passed to it.
    ///
    /// # Errors
    /// When the process is out of descriptors.
    pub(crate) fn end_for_other(&self) -> io::Result<OwnedFd> {
        self.ends.add()
    }
}

impl Waker {
    /// The end that another process made.
    pub(crate) fn from_socket(socket: OwnedFd) -> Self {
        Self { socket }
    }

    /// Wakes the receiver. Never waits.
    ///
    /// # Errors
    /// `Closed` when there is none any more.
    pub fn wake(&self) -> Result<(), SendError> {
        loop {
            match send(&self.socket, &[1], SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                // Full: there are wake-ups enough that were not read.
                Ok(_) | Err(Errno::AGAIN | Errno::NOBUFS) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(Errno::PIPE | Errno::CONNRESET) => return Err(SendError::Closed),
                Err(errno) => return Err(SendError::Io(errno.into())),
            }
        }
    }
}

impl<T> Receiver<T> {
    /// Waits asleep until it is woken, at most until `deadline`, and at least looks once. May find that it was woken for nothing.
    ///
    /// # Errors
    /// [`ReceiveError`].
    pub fn receive(&self, deadline: Instant) -> Result<(), ReceiveError> {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            // A day at most: it must fit the system's types.
            let wait = left.min(Duration::from_secs(24 * 3600));
            let wait = Timespec { tv_sec: wait.as_secs().cast_signed(), tv_nsec: wait.subsec_nanos().into() };
            let mut events = Vec::with_capacity(MOST_EVENTS);
            match epoll::wait(&self.ends.epoll, rustix::buffer::spare_capacity(&mut events), Some(&wait)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(io::Error::from(errno).into()),
            }
            let mut is_woken = false;
            for event in events {
                is_woken |= self.ends.hear(event.data.u64());
            }
            if is_woken {
                return Ok(());
            }
            if left.is_zero() {
                return Err(ReceiveError::TimedOut);
            }
        }
    }
}

impl Ends {
    /// Makes a socket; gives the other end.
    fn add(&self) -> io::Result<OwnedFd> {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        let mut open = self.lock();
        let number = open.next;
        epoll::add(&self.epoll, &ours, epoll::EventData::new_u64(number), epoll::EventFlags::IN)?;
        open.next += 1;
        open.sockets.insert(number, ours);
        Ok(theirs)
    }

    /// Takes one message from a socket that has one, or closes a socket that has ended. False when there was
    /// no message.
    fn hear(&self, number: u64) -> bool {
        let mut open = self.lock();
        let Some(socket) = open.sockets.get(&number) else { return false };
        // One: what is left wakes again, and whoever sends more than that cannot keep us here. Of a longer one the rest is thrown away,
        // and so are descriptors, for which there is no room here.
        match recv(socket, &mut [0; 8], RecvFlags::DONTWAIT) {
            Ok((_, 1..)) => true,
            Err(Errno::INTR | Errno::AGAIN) => false,
            // The worker's process has ended, or has closed the socket. That is a wake-up too: see the
            // module's documentation.
            Ok(_) | Err(_) => {
                // By hand: a forked child may hold the socket open.
                let _ = epoll::delete(&self.epoll, socket.as_fd());
                open.sockets.remove(&number);
                true
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        Self { ends: Arc::clone(&self.ends), own: Arc::clone(&self.own), whom: PhantomData }
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

#[cfg(test)]
mod tests {
    use rustix::net::{Shutdown, shutdown};

    use super::*;
    use crate::{lifeline::Lifeline, queue::Wake};

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(5)
    }

    fn moment() -> Instant {
        Instant::now() + Duration::from_millis(20)
    }

    #[test]
    fn threads_and_others_wake_the_receiver() {
        let (sender, receiver) = channel::<Wake>().unwrap();
        assert!(matches!(receiver.receive(Instant::now()), Err(ReceiveError::TimedOut)));
        sender.wake().unwrap();
        receiver.receive(Instant::now()).unwrap();
        let other = Waker::from_socket(sender.end_for_other().unwrap());
        other.wake().unwrap();
        receiver.receive(soon()).unwrap();
        assert!(matches!(receiver.receive(moment()), Err(ReceiveError::TimedOut)));
    }

    #[test]
    fn a_worker_that_floods_stops_nobody() {
        let (sender, receiver) = channel::<Wake>().unwrap();
        let flooding = Waker::from_socket(sender.end_for_other().unwrap());
        // Far more than a socket takes: none of them waits.
        (0..10_000).for_each(|_| flooding.wake().unwrap());
        (0..10_000).for_each(|_| sender.wake().unwrap());
        let other = Waker::from_socket(sender.end_for_other().unwrap());
        other.wake().unwrap();
        // The deadline holds whatever is waiting.
        let until = Instant::now() + Duration::from_millis(50);
        while Instant::now() < until && receiver.receive(until).is_ok() {}
        assert!(Instant::now() < until + Duration::from_secs(1));
    }

    #[test]
    fn nonsense_wakes_and_does_nothing_else() {
        let (sender, receiver) = channel::<Wake>().unwrap();
        let socket = sender.end_for_other().unwrap();
        // What ipc-channel would wait for, fall over or believe: a part of its header, a length that lies, a long message.
        for message in [&[7][..], &[8, 0, 0, 0, 0, 0, 0, 0], &[255; 16], &[0; 100_000]] {
            send(&socket, message, SendFlags::DONTWAIT).unwrap();
            receiver.receive(soon()).unwrap();
            assert!(matches!(receiver.receive(moment()), Err(ReceiveError::TimedOut)));
        }
        // Descriptors are not taken: the lifeline's way to send them, on this socket.
        let before = open_descriptors();
        let null = OwnedFd::from(File::open("/dev/null").unwrap());
        let socket = Lifeline::from_socket(socket);
        socket.send(&0u8, &[null.as_fd(); 60], soon()).unwrap();
        receiver.receive(soon()).unwrap();
        drop(null);
        assert!(open_descriptors() < before + 30, "other tests may have opened a few");
    }

    #[test]
    fn a_worker_that_breaks_its_end_breaks_no_other() {
        let (sender, receiver) = channel::<Wake>().unwrap();
        let [closed, cut, empty, good] = [(); 4].map(|()| sender.end_for_other().unwrap());
        drop(closed);
        shutdown(&cut, Shutdown::Both).unwrap();
        send(&empty, &[], SendFlags::DONTWAIT).unwrap();
        // Each end wakes the receiver once; several ends may be one wake-up.
        receiver.receive(soon()).unwrap();
        while receiver.receive(moment()).is_ok() {}
        assert!(matches!(receiver.receive(moment()), Err(ReceiveError::TimedOut)));
        assert!(matches!(Waker::from_socket(cut).wake(), Err(SendError::Closed)));
        Waker::from_socket(good).wake().unwrap();
        receiver.receive(soon()).unwrap();
        sender.wake().unwrap();
        receiver.receive(soon()).unwrap();
    }

    #[test]
    fn a_gone_receiver_is_an_error_not_a_signal() {
        let (sender, receiver) = channel::<Wake>().unwrap();
        let other = Waker::from_socket(sender.end_for_other().unwrap());
        drop((sender, receiver));
        assert!(matches!(other.wake(), Err(SendError::Closed)));
    }

    fn open_descriptors() -> usize {
        std::fs::read_dir("/proc/self/fd").unwrap().count()
    }
}
