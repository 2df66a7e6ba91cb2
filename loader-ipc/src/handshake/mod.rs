//! How main and a fresh worker meet. Main's half is [`Invitation`], the worker's [`Bootstrap`].
//!
//! ```text
//! main                                                worker
//!   Bootstrap (lifeline, with descriptors)  ------->    compares protocol, version, build
//!                                                       makes a one-shot server
//!   <-------  Answer::Listening or ::Refused (lifeline)
//!   WakeEnd (lifeline, with a descriptor) ---------->   accepts
//!   connects there: Welcome, with the bell  -------->   checks the nonce; ready for tasks
//! ```
//!
//! ipc-channel can neither make a channel over a socket that exists already nor wait for a connection until a deadline. So the
//! socket, which has a name in the file system for a moment, is the worker's: when main dies, the worker's watchdog ends the
//! waiting and removes the name.
//!
//! The answer is all that main ever reads from a lifeline, and of descriptors it takes only the server's socket with it, for the time of the
//! handshake.

mod server;

use std::{
    env, io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::PathBuf,
    sync::Arc,
    time::Instant,
};

use ipc_channel::ipc::IpcReceiver;
use rustix::rand::{GetRandomFlags, getrandom};
use serde::{Deserialize, Serialize};

use crate::{
    advice,
    channel::{Sender, Waker},
    control::ControlPage,
    entry::Entries,
    frame::Lease,
    held::uninterrupted,
    lifeline::{Lifeline, LifelineError, MAX_FDS, PROTOCOL},
    meeting::MeetingPlace,
    memory::SealedMemory,
    queue::{Ear, OrderReceiver, OrderSender, ReportReader, ReportSender, Rings, Wake, bell::bell},
};

use server::{Address, Server};

/// Version of this crate; both sides must have the same.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// What main sends first.
#[derive(Debug, Serialize, Deserialize)]
pub struct Bootstrap {
    /// Number of the worker, from 0.
    pub worker: u32,
    /// Number of workers.
    pub workers: u32,
    /// Process id of main.
    pub main_pid: u32,
    /// The loader's seed.
    pub seed: u64,
    /// What the workers' own seeds begin with.
    pub base_seed: u64,
    /// Most bytes of its own that the worker may have in memory.
    pub memory_limit: Option<u64>,
    /// What to serve.
    pub work: Work,
    /// Version of main's loader-ipc.
    version: String,
    /// What main will show when it connects.
    nonce: u64,
    /// Number of attached memories that follow, in this message and in [`More`].
    attached: u32,
    /// The folder that the worker makes, and its server in it.
    meeting: PathBuf,
}

/// Which code opens the dataset in the worker.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Work {
    /// Functions of the same program: the one that opens the dataset, and those that the dataset's encoding refers to.
    Entries(Entries),
    /// A dataset that the worker program has registered under this name.
    Registered {
        /// The name.
        name: String,
        /// The types that the dataset's encoding is of, which must be the registered ones.
        types: String,
    },
}

/// Attached memories that did not fit the message before.
#[derive(Debug, Serialize, Deserialize)]
struct More;

/// What the worker says over the lifeline.
#[derive(Debug, Serialize, Deserialize)]
enum Answer {
    /// Main may connect to the one-shot server of this name (one descriptor: its socket).
    Listening {
        server: String,
    },
    Refused {
        reason: String,
    },
}

/// What the worker wakes main with (one descriptor).
#[derive(Debug, Serialize, Deserialize)]
struct WakeEnd;

/// What main sends to the one-shot server.
#[derive(Serialize, Deserialize)]
struct Welcome {
    nonce: u64,
    bell: IpcReceiver<u64>,
}

/// Main to worker, over the lifeline, after the handshake.
#[derive(Debug, Serialize, Deserialize)]
pub enum Notice {
    /// Memory with room for slots of one size, one behind the other (one descriptor). Some of the slots may
    /// not exist yet.
    Slots {
        /// Number of the first slot.
        first: u32,
        /// Number of slots.
        count: u32,
        /// Size of each in bytes.
        slot_len: u64,
    },
    /// The answer to `NeedSlot`.
    Grant {
        /// Number of the task.
        task: u64,
        /// The larger slot, or why there is none.
        lease: Result<Lease, String>,
    },
    /// To a worker that waits for a larger slot: copy the batch to memory of your own, and give the slot back ([`Event::Vacated`]).
    ///
    /// [`Event::Vacated`]: crate::frame::Event::Vacated
    Vacate {
        /// Number of the task.
        task: u64,
    },
}

/// Why main and a worker did not come together.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HandshakeError {
    /// The lifeline failed.
    #[error(transparent)]
    Lifeline(#[from] LifelineError),
    /// The worker refused, and says why.
    #[error("{0}")]
    Refused(String),
    /// Somebody else connected in main's place.
    #[error("a stranger connected in the main program's place")]
    WrongNonce,
    /// The queues could not be made.
    #[error("the queues cannot be made: {0}{advice}", advice = advice(.0))]
    Queue(#[source] io::Error),
}

impl HandshakeError {
    /// True when the other process is gone, or about to be: how it ended says more than this error.
    pub fn is_gone(&self) -> bool {
        use io::ErrorKind::{BrokenPipe, ConnectionRefused, ConnectionReset, NotFound};
        match self {
            Self::Lifeline(LifelineError::Closed) => true,
            Self::Queue(error) => {
                matches!(error.kind(), BrokenPipe | ConnectionRefused | ConnectionReset | NotFound)
            }
            _ => false,
        }
    }
}

/// What a new worker is given, but for its number.
#[derive(Debug, Clone)]
pub struct Offer<'a> {
    /// Number of workers.
    pub workers: u32,
    /// The loader's seed.
    pub seed: u64,
    /// What the workers' own seeds begin with.
    pub base_seed: u64,
    /// Most bytes of its own that a worker may have in memory.
    pub memory_limit: Option<u64>,
    /// What to serve.
    pub work: &'a Work,
    /// Descriptor of the control page.
    pub control: BorrowedFd<'a>,
    /// The dataset's encoding.
    pub dataset: &'a SealedMemory,
    /// What the encoding refers to.
    pub attached: &'a [Arc<SealedMemory>],
}

/// Main's half: a worker that has been started and has not answered yet.
#[derive(Debug)]
pub struct Invitation {
    nonce: u64,
    rings: Rings,
}

impl Invitation {
    /// Sends the bootstrap to a worker that was just started.
    ///
    /// # Errors
    /// [`HandshakeError`].
    pub fn send(
        worker: u32,
        offer: &Offer<'_>,
        meeting: &MeetingPlace,
        lifeline: &Lifeline,
        deadline: Instant,
    ) -> Result<Self, HandshakeError> {
        let nonce = fresh_nonce().map_err(HandshakeError::Queue)?;
        let (rings, rings_fd) = Rings::create().map_err(HandshakeError::Queue)?;
        let bootstrap = Bootstrap {
            worker,
            workers: offer.workers,
            main_pid: std::process::id(),
            seed: offer.seed,
            base_seed: offer.base_seed,
            memory_limit: offer.memory_limit,
            work: offer.work.clone(),
            version: VERSION.to_owned(),
            nonce,
            attached: u32::try_from(offer.attached.len()).expect("fewer attachments than descriptors"),
            meeting: meeting.path().to_owned(),
        };
        let fixed = [offer.control, rings_fd.as_fd(), offer.dataset.fd().as_fd()];
        let (first, rest) = offer.attached.split_at(offer.attached.len().min(MAX_FDS - fixed.len()));
        let fds: Vec<_> = fixed.into_iter().chain(first.iter().map(|memory| memory.fd().as_fd())).collect();
        lifeline.send(&bootstrap, &fds, deadline)?;
        for part in rest.chunks(MAX_FDS) {
            let fds: Vec<_> = part.iter().map(|memory| memory.fd().as_fd()).collect();
            lifeline.send(&More, &fds, deadline)?;
        }
        Ok(Self { nonce, rings })
    }

    /// Waits for the worker's answer and connects the queues; gives main's ends of the worker's task queue and of its part of the
    /// result queue.
    ///
    /// # Errors
    /// [`HandshakeError`].
    pub fn connect(
        self,
        lifeline: &Lifeline,
        wake: &Sender<Wake>,
        deadline: Instant,
    ) -> Result<(OrderSender, ReportReader), HandshakeError> {
        let (answer, socket) = lifeline.receive_with_one::<Answer>(deadline)?;
        let server = match answer {
            Answer::Refused { reason } => return Err(HandshakeError::Refused(reason)),
            Answer::Listening { server } => Address::check(server, socket)?,
        };
        let (bell, rung) = bell().map_err(HandshakeError::Queue)?;
        let waker = wake.new_remote_end().map_err(HandshakeError::Queue)?;
        lifeline.send(&WakeEnd, &[waker.as_fd()], deadline)?;
        server.greet(Welcome { nonce: self.nonce, bell: rung }, deadline)?;
        Ok(self.rings.of_main(bell))
    }
}

/// What a worker has after the handshake.
#[derive(Debug)]
pub struct Connected {
    /// Who it is and what to serve.
    pub bootstrap: Bootstrap,
    /// The shared page.
    pub control: Arc<ControlPage>,
    /// The dataset's encoding.
    pub dataset: SealedMemory,
    /// What the encoding refers to.
    pub attached: Vec<Arc<SealedMemory>>,
    /// Orders from main.
    pub orders: OrderReceiver,
    /// Reports to main.
    pub results: ReportSender,
}

impl Bootstrap {
    /// The worker's half, first step: reads the bootstrap, with the descriptors that came with it.
    ///
    /// # Errors
    /// [`HandshakeError`], after main was told if it speaks another protocol.
    pub fn receive(lifeline: &Lifeline, deadline: Instant) -> Result<(Self, Vec<OwnedFd>), HandshakeError> {
        match lifeline.receive::<Self>(deadline) {
            Err(LifelineError::OtherProtocol { theirs }) => {
                let reason = format!("the worker program refuses protocol {theirs}; it speaks {PROTOCOL}");
                Err(refuse(lifeline, reason, deadline))
            }
            received => Ok(received?),
        }
    }

    /// Second step: makes the server that main connects to. `accepts` says whether this worker can serve the work; its error is
    /// what main shows to the user.
    ///
    /// # Errors
    /// [`HandshakeError`], after main was told.
    pub fn listen(
        &self,
        lifeline: &Lifeline,
        accepts: impl FnOnce(&Work) -> Result<(), String>,
        deadline: Instant,
    ) -> Result<Listening, HandshakeError> {
        if self.version != VERSION {
            let theirs = &self.version;
            let reason = format!(
                "the worker program is version {VERSION}, the main program {theirs}; build both from the same release"
            );
            return Err(refuse(lifeline, reason, deadline));
        }
        if let Err(reason) = accepts(&self.work) {
            return Err(refuse(lifeline, reason, deadline));
        }
        let made = server::make(self.meeting.clone());
        made.map(Listening).map_err(|problem| refuse(lifeline, problem, deadline))
    }
}

/// A worker that main may connect to.
pub struct Listening(Server<Welcome>);

impl Listening {
    /// The socket. Whoever ends this process before [`accept`](Self::accept) returns should [remove](crate::socket_file::remove_socket) it.
    pub fn socket(&self) -> PathBuf {
        PathBuf::from(&self.0.name)
    }

    /// Last step: tells main, waits until it has connected, and opens what came with the bootstrap. Nothing but the end of the
    /// process ends the waiting: a watchdog must be running.
    ///
    /// # Errors
    /// [`HandshakeError`].
    pub fn accept(
        self,
        bootstrap: Bootstrap,
        mut fds: Vec<OwnedFd>,
        lifeline: &Lifeline,
        deadline: Instant,
    ) -> Result<Connected, HandshakeError> {
        let wanted = bootstrap.attached as usize + 3;
        while fds.len() < wanted {
            fds.extend(lifeline.receive::<More>(deadline)?.1);
        }
        let mut fds = fds.into_iter();
        let mut next =
            || fds.next().ok_or_else(|| LifelineError::Malformed("a descriptor is missing".into()));
        let io = |error| HandshakeError::Lifeline(LifelineError::Io(error));
        let control = Arc::new(ControlPage::map(next()?, bootstrap.workers as usize).map_err(io)?);
        let rings = Rings::map(&next()?).map_err(io)?;
        let dataset = SealedMemory::open(next()?).map_err(io)?;
        let attached = (0..bootstrap.attached)
            .map(|_| SealedMemory::open(next()?).map(Arc::new).map_err(io))
            .collect::<Result<_, HandshakeError>>()?;

        // The folder first: it is dropped last.
        let Server { folder: _folder, server, name, socket } = self.0;
        lifeline.send(&Answer::Listening { server: name }, &[socket.as_fd()], deadline)?;
        drop(socket);
        let (WakeEnd, fds) = lifeline.receive(deadline)?;
        let missing = || LifelineError::Malformed("what wakes main is missing".into());
        let waker = Waker::from_socket(fds.into_iter().next().ok_or_else(missing)?);
        // ipc-channel fails at EINTR instead of going on. A signal may only interrupt: for example, Rust's
        // handler for stack overflows ignores the first SIGSEGV that another process sends. The watchdog
        // still ends the wait, and receives the signals that may end the process.
        let accepted = uninterrupted(|| server.accept());
        let (_, welcome) =
            accepted.map_err(|error| HandshakeError::Queue(io::Error::other(error.to_string())))?;
        if welcome.nonce != bootstrap.nonce {
            return Err(HandshakeError::WrongNonce);
        }
        let (orders, results) = rings.of_worker(Ear::new(welcome.bell), waker, Arc::clone(&control));
        Ok(Connected { bootstrap, control, dataset, attached, orders, results })
    }
}

impl std::fmt::Debug for Listening {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Listening").field("name", &self.0.name).finish_non_exhaustive()
    }
}

/// Tells main why this worker cannot serve. The error to return is the refusal, or that it could not be said.
pub fn refuse(lifeline: &Lifeline, reason: String, deadline: Instant) -> HandshakeError {
    match lifeline.send(&Answer::Refused { reason: reason.clone() }, &[], deadline) {
        Ok(()) => HandshakeError::Refused(reason),
        Err(error) => error.into(),
    }
}

/// A random number that other users cannot guess.
///
/// # Errors
/// When the system has no random numbers.
pub fn fresh_nonce() -> io::Result<u64> {
    let mut bytes = [0; size_of::<u64>()];
    // So few are never cut, and do not wait once the system is up.
    getrandom(&mut bytes, GetRandomFlags::empty())?;
    Ok(u64::from_le_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use std::{
        fs::File,
        num::NonZeroUsize,
        thread::{self, JoinHandle},
        time::Duration,
    };

    use super::*;
    use crate::{channel::channel, frame::Order, memory};

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(5)
    }

    /// Invites a worker that is a thread, over a real socket pair.
    fn meet<R: Send + 'static>(
        worker: impl FnOnce(Lifeline) -> R + Send + 'static,
        deadline: Instant,
    ) -> (Result<(OrderSender, ReportReader), HandshakeError>, JoinHandle<R>) {
        let (wake, _woken) = channel().unwrap();
        let (ours, theirs) = Lifeline::pair().unwrap();
        let (_page, control) = ControlPage::create(1).unwrap();
        let dataset = SealedMemory::new(b"dataset").unwrap();
        let work = Work::Registered { name: "rows".into(), types: "u8".into() };
        let offer = Offer {
            workers: 1,
            seed: 1,
            base_seed: 2,
            memory_limit: None,
            work: &work,
            control: control.as_fd(),
            dataset: &dataset,
            attached: &[],
        };
        let worker = thread::spawn(move || worker(Lifeline::from_socket(theirs)));
        let meeting = MeetingPlace::choose(fresh_nonce().unwrap()).unwrap();
        let invitation = Invitation::send(0, &offer, &meeting, &ours, deadline).unwrap();
        (invitation.connect(&ours, &wake, deadline), worker)
    }

    fn read_bootstrap(lifeline: &Lifeline) -> (Bootstrap, Vec<OwnedFd>) {
        Bootstrap::receive(lifeline, soon()).unwrap()
    }

    #[test]
    fn main_and_worker_come_together() {
        let worker = |lifeline: Lifeline| {
            let (bootstrap, fds) = read_bootstrap(&lifeline);
            let listening = bootstrap.listen(&lifeline, |_| Ok(()), soon()).unwrap();
            let mut connected = listening.accept(bootstrap, fds, &lifeline, soon()).unwrap();
            (connected.dataset.bytes().to_vec(), connected.orders.receive(soon()).unwrap())
        };
        let (met, worker) = meet(worker, soon());
        let (mut orders, _reader) = met.unwrap();
        orders.send(&Some(Order::Resume { epoch: 3 })).unwrap();
        assert_eq!(worker.join().unwrap(), (b"dataset".to_vec(), Some(Order::Resume { epoch: 3 })));
    }

    #[test]
    fn answers_that_are_none_are_errors_within_the_deadline() {
        let malformed =
            |error: &HandshakeError| matches!(error, HandshakeError::Lifeline(LifelineError::Malformed(_)));
        type Check = fn(&HandshakeError) -> bool;
        type Answering = fn(&Lifeline);
        let cases: [(Answering, Check); 7] = [
            (
                |_| thread::sleep(Duration::from_millis(300)),
                |error| matches!(error, HandshakeError::Lifeline(LifelineError::TimedOut)),
            ),
            (|_| {}, HandshakeError::is_gone),
            (
                |lifeline| write(lifeline, b"Hello, who is there?"),
                |error| matches!(error, HandshakeError::Lifeline(LifelineError::NotOurs(_))),
            ),
            (
                |lifeline| write(lifeline, b"LOADER"),
                |error| matches!(error, HandshakeError::Lifeline(LifelineError::NotOurs(_))),
            ),
            (|lifeline| lifeline.send(&u64::MAX, &[], soon()).unwrap(), malformed),
            (|lifeline| answer(lifeline, &"x/".repeat(20_000), &[]), malformed),
            (
                |lifeline| {
                    let files: Vec<_> = (0..40).map(|_| File::open("/dev/null").unwrap()).collect();
                    let fds: Vec<_> = files.iter().map(AsFd::as_fd).collect();
                    answer(lifeline, "/tmp/socket", &fds);
                },
                malformed,
            ),
        ];
        for (number, (answering, check)) in cases.into_iter().enumerate() {
            let worker = move |lifeline: Lifeline| {
                read_bootstrap(&lifeline);
                answering(&lifeline);
            };
            let started = Instant::now();
            let (met, worker) = meet(worker, started + Duration::from_millis(200));
            let error = met.err().unwrap();
            assert!(check(&error), "case {number}: {error}");
            assert!(started.elapsed() < Duration::from_secs(2));
            worker.join().unwrap();
        }
    }

    #[test]
    fn memory_that_could_shrink_is_refused_by_a_worker() {
        let fd = memory::reserve(NonZeroUsize::new(4096).unwrap()).unwrap();
        // Too small for a page of so many workers, or for rings.
        assert!(ControlPage::map(&fd, 1000).is_err());
        assert!(Rings::map(&fd).is_err());
        let plain = OwnedFd::from(File::open("/dev/zero").unwrap());
        assert!(ControlPage::map(&plain, 1).is_err());
    }

    fn answer(lifeline: &Lifeline, server: &str, fds: &[BorrowedFd<'_>]) {
        lifeline.send(&Answer::Listening { server: server.to_owned() }, fds, soon()).unwrap();
    }

    fn write(lifeline: &Lifeline, bytes: &[u8]) {
        rustix::io::write(lifeline, bytes).unwrap();
    }
}
