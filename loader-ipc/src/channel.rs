//! The channel that wakes main: each worker has a socket of its own to main. The sockets carry wake-ups only,
//! no data.
//!
//! Main reads these sockets itself, so that nothing that a worker does to its end affects other workers or
//! blocks main. The channels that wake a worker use ipc-channel (`queue/wakeup_channel.rs`).
//!
//! Alternative considered: ipc-channel in this direction too. Rejected because its receiver trusts the sender: it
//! waits without a deadline for the rest of a truncated message, takes the length of a message from the message, and
//! keeps the descriptors that come with it. A few stray bytes, from a C library that writes to a descriptor it has
//! already closed, are enough to make that receiver wait. Also, all of its senders share one socket, which each of
//! them can fill, or shut down for all.
//!
//! A socket for each worker costs two descriptors, and a fault in one socket affects only its worker. A full
//! socket wakes main anyway. A socket that is closed or broken wakes main once more; main then drops it, and
//! receives that worker's reports when something else wakes it. The end of a socket must wake main, because
//! the worker may have been killed after it had marked main as awake and before it woke main.
//!
//! Alternative considered: one eventfd for all workers, which is a single descriptor. Rejected because a
//! worker that reads it takes away the wake-ups of others, and a worker that clears its `O_NONBLOCK` flag and
//! fills it blocks the others.

use std::{
    collections::BTreeMap,
    fmt, io,
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

use crate::{advice::permitted, codec::CodecError, held_fd::HeldFd};

/// Maximum number of sockets that one `epoll_wait` returns.
const MAX_EVENTS: usize = 16;

/// Makes a channel of wake-ups: the receiver, and the sender for threads of this process, which also makes
/// the ends for other processes.
///
/// # Errors
/// If the system is out of descriptors.
pub fn channel<T>() -> io::Result<(Sender<T>, Receiver<T>)> {
    let epoll = HeldFd::new(permitted("epoll_create1", epoll::create(epoll::CreateFlags::CLOEXEC))?);
    let ends = Arc::new(Ends { epoll, open: Mutex::default() });
    let own = Waker::from_socket(ends.add()?);
    let sender = Sender { ends: Arc::clone(&ends), own: Arc::new(own), marker: PhantomData };
    Ok((sender, Receiver { ends, marker: PhantomData }))
}

/// The end for threads of this process. `T` is a marker type that tells channels apart. Clones share one
/// socket.
pub struct Sender<T> {
    ends: Arc<Ends>,
    own: Arc<Waker>,
    marker: PhantomData<fn(T)>,
}

/// The end that is woken.
pub struct Receiver<T> {
    ends: Arc<Ends>,
    marker: PhantomData<fn() -> T>,
}

/// The end of one worker, in the worker.
#[derive(Debug)]
pub struct Waker {
    socket: HeldFd,
}

/// The receiver's ends of all sockets of a channel.
#[derive(Debug)]
struct Ends {
    epoll: HeldFd,
    open: Mutex<Open>,
}

#[derive(Debug, Default)]
struct Open {
    /// Number of the next socket.
    next: u64,
    sockets: BTreeMap<u64, HeldFd>,
}

/// Why a message was not sent.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// The message exceeds the maximum size: a defect of the loader, not of the peer.
    #[error("a message of {len} bytes exceeds the maximum size; this is a defect of the loader")]
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
    /// A system call failed.
    #[error("the message cannot be sent: {0}")]
    Io(#[from] io::Error),
}

/// Why no message was received.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReceiveError {
    /// The deadline has passed.
    #[error("no message within the deadline")]
    TimedOut,
    /// Every sender is gone. Check by other means whether the senders are alive before you rely on it.
    #[error("every sender is gone")]
    Closed,
    /// What arrived is not a valid message.
    #[error("a message cannot be decoded: {0}")]
    Malformed(String),
    /// A system call failed.
    #[error("the channel cannot be read: {0}")]
    Io(#[from] io::Error),
}

impl<T> Sender<T> {
    /// Wakes the receiver. Never blocks.
    ///
    /// # Errors
    /// `Closed` if the receiver is gone.
    pub fn wake(&self) -> Result<(), SendError> {
        self.own.wake()
    }

    /// Makes an end for another process, to be sent to it.
    ///
    /// # Errors
    /// If the process is out of descriptors.
    pub(crate) fn new_remote_end(&self) -> io::Result<OwnedFd> {
        self.ends.add()
    }
}

impl Waker {
    /// Wraps the socket that the receiver's process has made.
    pub(crate) fn from_socket(socket: OwnedFd) -> Self {
        Self { socket: HeldFd::new(socket) }
    }

    /// Wakes the receiver. Never blocks.
    ///
    /// # Errors
    /// `Closed` if the receiver is gone.
    pub fn wake(&self) -> Result<(), SendError> {
        loop {
            match send(self.socket.get()?, &[1], SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                // The socket is full: the wake-ups in it wake the receiver.
                Ok(_) | Err(Errno::AGAIN | Errno::NOBUFS) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(Errno::PIPE | Errno::CONNRESET) => return Err(SendError::Closed),
                Err(errno) => return permitted("sendto", Err(errno)).map_err(SendError::Io),
            }
        }
    }
}

impl<T> Receiver<T> {
    /// Sleeps until a wake-up arrives, at most until `deadline`; looks at least once. May return without any
    /// frame to read.
    ///
    /// # Errors
    /// [`ReceiveError`].
    pub fn receive(&self, deadline: Instant) -> Result<(), ReceiveError> {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            // At most a day, because the wait must fit the types of the system call.
            let wait = left.min(Duration::from_secs(24 * 3600));
            let wait = Timespec { tv_sec: wait.as_secs().cast_signed(), tv_nsec: wait.subsec_nanos().into() };
            let mut events = Vec::with_capacity(MAX_EVENTS);
            match epoll::wait(
                self.ends.epoll.get()?,
                rustix::buffer::spare_capacity(&mut events),
                Some(&wait),
            ) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(io::Error::from(errno).into()),
            }
            let mut is_woken = false;
            for event in events {
                is_woken |= self.ends.take_message(event.data.u64())?;
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
    /// Adds a socket to the channel; returns the sender's end.
    fn add(&self) -> io::Result<OwnedFd> {
        let made = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
        let (ours, theirs) = permitted("socketpair", made)?;
        let mut open = self.lock();
        let number = open.next;
        epoll::add(self.epoll.get()?, &ours, epoll::EventData::new_u64(number), epoll::EventFlags::IN)?;
        open.next += 1;
        open.sockets.insert(number, HeldFd::new(ours));
        Ok(theirs)
    }

    /// Takes one message from a socket, or closes a socket that has ended. False if there was no message.
    ///
    /// # Errors
    /// If the program has closed the socket.
    fn take_message(&self, number: u64) -> io::Result<bool> {
        let mut open = self.lock();
        let Some(socket) = open.sockets.get(&number) else { return Ok(false) };
        // One message only: the others wake again, and a worker that sends many cannot keep us here. `recv`
        // drops what exceeds the buffer, and also descriptors, for which there is no room here.
        match recv(socket.get()?, &mut [0; 8], RecvFlags::DONTWAIT) {
            Ok((_, 1..)) => Ok(true),
            Err(Errno::INTR | Errno::AGAIN) => Ok(false),
            // The worker's process has ended, or has closed the socket. That is a wake-up too: see the
            // module's documentation.
            Ok(_) | Err(_) => {
                // Removed explicitly: epoll keeps the socket while a forked child holds it open.
                let _ = epoll::delete(&self.epoll, socket.as_fd());
                open.sockets.remove(&number);
                Ok(true)
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        Self { ends: Arc::clone(&self.ends), own: Arc::clone(&self.own), marker: PhantomData }
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
    fn threads_and_other_processes_wake_the_receiver() {
        let (sender, receiver) = channel::<Wake>().unwrap();
        assert!(matches!(receiver.receive(Instant::now()), Err(ReceiveError::TimedOut)));
        sender.wake().unwrap();
        receiver.receive(Instant::now()).unwrap();
        let other = Waker::from_socket(sender.new_remote_end().unwrap());
        other.wake().unwrap();
        receiver.receive(soon()).unwrap();
        assert!(matches!(receiver.receive(moment()), Err(ReceiveError::TimedOut)));
    }

    #[test]
    fn a_worker_that_floods_its_socket_blocks_no_process() {
        let (sender, receiver) = channel::<Wake>().unwrap();
        let flooding = Waker::from_socket(sender.new_remote_end().unwrap());
        // More than fit into a socket; no call blocks.
        (0..10_000).for_each(|_| flooding.wake().unwrap());
        (0..10_000).for_each(|_| sender.wake().unwrap());
        let other = Waker::from_socket(sender.new_remote_end().unwrap());
        other.wake().unwrap();
        // The deadline holds however many wake-ups there are.
        let until = Instant::now() + Duration::from_millis(50);
        while Instant::now() < until && receiver.receive(until).is_ok() {}
        assert!(Instant::now() < until + Duration::from_secs(1));
    }

    #[test]
    fn an_invalid_message_wakes_and_does_nothing_else() {
        let (sender, receiver) = channel::<Wake>().unwrap();
        let socket = sender.new_remote_end().unwrap();
        // Messages that ipc-channel would wait for, trust or fail on: part of its header, a false length, a
        // long message.
        for message in [&[7][..], &[8, 0, 0, 0, 0, 0, 0, 0], &[255; 16], &[0; 100_000]] {
            send(&socket, message, SendFlags::DONTWAIT).unwrap();
            receiver.receive(soon()).unwrap();
            assert!(matches!(receiver.receive(moment()), Err(ReceiveError::TimedOut)));
        }
        // Descriptors that come with a message are dropped. A lifeline on this socket sends some.
        let before = open_descriptors();
        let null = OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
        let socket = Lifeline::from_socket(socket);
        socket.send(&0u8, &[null.as_fd(); 60], soon()).unwrap();
        receiver.receive(soon()).unwrap();
        drop(null);
        assert!(open_descriptors() < before + 30, "fewer than were sent; other tests may open some too");
    }

    #[test]
    fn a_worker_that_breaks_its_end_affects_no_other_worker() {
        let (sender, receiver) = channel::<Wake>().unwrap();
        let [closed, cut, empty, good] = [(); 4].map(|()| sender.new_remote_end().unwrap());
        drop(closed);
        shutdown(&cut, Shutdown::Both).unwrap();
        send(&empty, &[], SendFlags::DONTWAIT).unwrap();
        // Each of the three faulty ends wakes the receiver once; several may share one wake-up.
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
    fn waking_a_receiver_that_is_gone_is_an_error_not_a_signal() {
        let (sender, receiver) = channel::<Wake>().unwrap();
        let other = Waker::from_socket(sender.new_remote_end().unwrap());
        drop((sender, receiver));
        assert!(matches!(other.wake(), Err(SendError::Closed)));
    }

    fn open_descriptors() -> usize {
        std::fs::read_dir("/proc/self/fd").unwrap().count()
    }
}
