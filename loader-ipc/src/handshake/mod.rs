//! The handshake of main and a new worker. Main's side is [`Invitation`], the worker's side [`Bootstrap`].
//!
//! ```text
//! main                                                worker
//!   Bootstrap (lifeline, with descriptors)  ------->    compares protocol, version, build
//!                                                       makes a one-shot server
//!   <-------  Answer::Listening or ::Refused (lifeline)
//!   WakeEnd (lifeline, with a descriptor) ---------->   waits for main to connect
//!   connects there: Welcome, with wake-ups  -------->   checks the nonce; ready for tasks
//! ```
//!
//! ipc-channel can neither make a channel over an existing socket nor wait for a connection until a deadline.
//! Therefore the worker makes the socket, which has a name in the file system for a moment, and waits: if
//! main dies, the worker's watchdog ends the process and removes the name.
//!
//! The answer is the only message that main reads from a lifeline. The only descriptor that main takes from
//! it is the server's socket, which main holds until the end of the handshake.

mod server;

use std::{
    env, io,
    os::fd::{AsFd, OwnedFd},
    path::PathBuf,
    sync::Arc,
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
    held_fd::HeldFd,
    lifeline::{Lifeline, LifelineError, MAX_FDS, PROTOCOL},
    memory::SealedMemory,
    patience::{Patience, WaitError},
    queue::{
        CommandReceiver, CommandSender, ReportReader, ReportSender, Rings, Wake, WakeupReceiver,
        wakeup_channel::wakeup_channel,
    },
    schema::Schema,
    signals::uninterrupted,
    socket_folder::SocketFolder,
};

use server::{Address, Server};

/// Version of this crate. Main and worker must have the same.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The first message from main to a worker.
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
    /// The base of the workers' own seeds.
    pub base_seed: u64,
    /// Maximum private memory of the worker in bytes.
    pub memory_limit: Option<u64>,
    /// True if the OOM killer prefers the worker to main.
    pub raises_oom_score: bool,
    /// Which code opens the dataset.
    pub code: DatasetCode,
    /// Version of main's loader-ipc.
    version: String,
    /// Random number that main repeats in its [`Welcome`], so that the worker recognises main.
    nonce: u64,
    /// Number of attached memories. Their descriptors are in this message and in the [`More`] messages.
    memories: u32,
    /// Number of attached files. Their descriptors follow those of the memories.
    files: u32,
    /// The folder that the worker makes for its one-shot server.
    socket_folder: PathBuf,
}

/// Which code opens the dataset in the worker.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum DatasetCode {
    /// Functions of the same program: the function that opens the dataset, and those that the dataset's
    /// encoding refers to.
    Entries(Entries),
    /// A dataset that the worker program has registered under this name.
    Registered {
        /// The name of the dataset.
        name: String,
        /// The types of the dataset's encoding, which must be the registered types.
        types: String,
        /// The schema of what main has encoded, which the worker's decoded copy must have too.
        schema: Schema,
    },
}

/// Carries attached descriptors that did not fit the previous message.
#[derive(Debug, Serialize, Deserialize)]
struct More;

/// The worker's answer to [`Bootstrap`].
#[derive(Debug, Serialize, Deserialize)]
enum Answer {
    /// Main may connect to the one-shot server with this name (one descriptor: the server's socket).
    Listening {
        server: String,
    },
    Refused {
        reason: String,
    },
}

/// The socket with which the worker wakes main (one descriptor).
#[derive(Debug, Serialize, Deserialize)]
struct WakeEnd;

/// What main sends to the worker's one-shot server.
#[derive(Serialize, Deserialize)]
struct Welcome {
    nonce: u64,
    wakeups: IpcReceiver<u64>,
}

/// A message from main to a worker over the lifeline, after the handshake.
#[derive(Debug, Serialize, Deserialize)]
pub enum Notice {
    /// Memory with room for `count` adjacent slots of one size (one descriptor). Some of the slots may not
    /// exist yet.
    Slots {
        /// Number of the first slot.
        first: u32,
        /// Number of slots.
        count: u32,
        /// Size of each slot in bytes.
        slot_len: u64,
    },
    /// The answer to [`Event::NeedSlot`](crate::frame::Event::NeedSlot).
    Grant {
        /// Number of the task.
        task: u64,
        /// The lease on the larger slot, or why there is none.
        lease: Result<Lease, String>,
    },
    /// Asks a worker that waits for a larger slot to copy its batch to private memory, and to give its slot
    /// back ([`Event::Vacated`]).
    ///
    /// [`Event::Vacated`]: crate::frame::Event::Vacated
    Vacate {
        /// Number of the task.
        task: u64,
    },
}

/// Why a handshake failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HandshakeError {
    /// The lifeline failed.
    #[error(transparent)]
    Lifeline(#[from] LifelineError),
    /// The worker refused to serve, for the given reason.
    #[error("{0}")]
    Refused(String),
    /// Another process connected in place of main.
    #[error("another process connected in place of the main program")]
    WrongNonce,
    /// The queues could not be made or connected.
    #[error("the queues cannot be made: {0}{advice}", advice = advice(.0))]
    Queue(#[source] io::Error),
}

impl From<WaitError> for HandshakeError {
    fn from(error: WaitError) -> Self {
        Self::Lifeline(error.into())
    }
}

impl HandshakeError {
    /// True if the other process is gone or about to end. Its exit status then tells more than this error.
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

/// What main gives to each new worker.
#[derive(Debug, Clone)]
pub struct WorkerConfig<'a> {
    /// Number of workers.
    pub workers: u32,
    /// The loader's seed.
    pub seed: u64,
    /// The base of the workers' own seeds.
    pub base_seed: u64,
    /// Maximum private memory of a worker in bytes.
    pub memory_limit: Option<u64>,
    /// True if the OOM killer prefers workers to main.
    pub raises_oom_score: bool,
    /// Which code opens the dataset.
    pub code: &'a DatasetCode,
    /// Descriptor of the control page.
    pub control: &'a HeldFd,
    /// The dataset's encoding.
    pub dataset: &'a SealedMemory,
    /// The attached memories that the encoding refers to.
    pub memories: &'a [Arc<SealedMemory>],
    /// The attached files that the encoding refers to.
    pub files: &'a [Arc<HeldFd>],
}

/// Main's side: a worker that was started and has not answered yet.
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
        config: &WorkerConfig<'_>,
        socket_folder: &SocketFolder,
        lifeline: &Lifeline,
        patience: &mut Patience<'_>,
    ) -> Result<Self, HandshakeError> {
        let count = |len| u32::try_from(len).expect("fewer than 2^32 attachments");
        let nonce = random_nonce().map_err(HandshakeError::Queue)?;
        let (rings, rings_fd) = Rings::create().map_err(HandshakeError::Queue)?;
        let bootstrap = Bootstrap {
            worker,
            workers: config.workers,
            main_pid: std::process::id(),
            seed: config.seed,
            base_seed: config.base_seed,
            memory_limit: config.memory_limit,
            raises_oom_score: config.raises_oom_score,
            code: config.code.clone(),
            version: VERSION.to_owned(),
            nonce,
            memories: count(config.memories.len()),
            files: count(config.files.len()),
            socket_folder: socket_folder.path().to_owned(),
        };
        let fixed = [config.control, &rings_fd, config.dataset.fd()];
        let memories = config.memories.iter().map(|memory| memory.fd());
        let held = fixed.into_iter().chain(memories).chain(config.files.iter().map(|file| &**file));
        let fds = held.map(HeldFd::get).collect::<io::Result<Vec<_>>>().map_err(LifelineError::Io)?;
        let (first, rest) = fds.split_at(fds.len().min(MAX_FDS));
        lifeline.send(&bootstrap, first, &mut *patience)?;
        for part in rest.chunks(MAX_FDS) {
            lifeline.send(&More, part, &mut *patience)?;
        }
        Ok(Self { nonce, rings })
    }

    /// Waits for the worker's answer and connects the queues. Returns main's ends of the worker's index queue
    /// and of its ring of the result queue.
    ///
    /// # Errors
    /// [`HandshakeError`].
    pub fn connect(
        self,
        lifeline: &Lifeline,
        wake: &Sender<Wake>,
        patience: &mut Patience<'_>,
    ) -> Result<(CommandSender, ReportReader), HandshakeError> {
        let (answer, socket) = lifeline.receive_with_one::<Answer>(&mut *patience)?;
        let server = match answer {
            Answer::Refused { reason } => return Err(HandshakeError::Refused(reason)),
            Answer::Listening { server } => Address::check(server, socket)?,
        };
        let (wakeups, receiving) = wakeup_channel(lifeline.socket()).map_err(HandshakeError::Queue)?;
        let waker = wake.new_remote_end().map_err(HandshakeError::Queue)?;
        lifeline.send(&WakeEnd, &[waker.as_fd()], &mut *patience)?;
        server.send_welcome(Welcome { nonce: self.nonce, wakeups: receiving }, patience)?;
        Ok(self.rings.main_ends(wakeups))
    }
}

/// What a worker has received in the handshake.
#[derive(Debug)]
pub struct Connected {
    /// The worker's number and configuration.
    pub bootstrap: Bootstrap,
    /// The control page.
    pub control: Arc<ControlPage>,
    /// The dataset's encoding.
    pub dataset: SealedMemory,
    /// The attached memories that the encoding refers to.
    pub memories: Vec<Arc<SealedMemory>>,
    /// The attached files that the encoding refers to.
    pub files: Vec<Arc<HeldFd>>,
    /// The index queue: commands from main.
    pub commands: CommandReceiver,
    /// The result queue: events to main.
    pub results: ReportSender,
}

impl Bootstrap {
    /// First step of the worker: reads the bootstrap and the descriptors that came with it.
    ///
    /// # Errors
    /// [`HandshakeError`]. If main uses another protocol, main was told.
    pub fn receive(
        lifeline: &Lifeline,
        patience: &mut Patience<'_>,
    ) -> Result<(Self, Vec<OwnedFd>), HandshakeError> {
        match lifeline.receive::<Self>(&mut *patience) {
            Err(LifelineError::OtherProtocol { theirs }) => {
                let reason = format!(
                    "the worker program uses protocol {PROTOCOL}, the main program {theirs}; build both from the same release"
                );
                Err(refuse(lifeline, reason, patience))
            }
            received => Ok(received?),
        }
    }

    /// Second step: makes the server to which main connects. `accepts` returns an error if this worker cannot
    /// open the dataset; main shows that error to the user.
    ///
    /// # Errors
    /// [`HandshakeError`]. Main was told the reason.
    pub fn listen(
        &self,
        lifeline: &Lifeline,
        accepts: impl FnOnce(&DatasetCode) -> Result<(), String>,
        patience: &mut Patience<'_>,
    ) -> Result<Listening, HandshakeError> {
        if self.version != VERSION {
            let theirs = &self.version;
            let reason = format!(
                "the worker program is version {VERSION}, the main program {theirs}; build both from the same release"
            );
            return Err(refuse(lifeline, reason, patience));
        }
        if let Err(reason) = accepts(&self.code) {
            return Err(refuse(lifeline, reason, patience));
        }
        let made = server::make(self.socket_folder.clone());
        made.map(Listening).map_err(|problem| refuse(lifeline, problem, patience))
    }
}

/// A worker to which main may connect.
pub struct Listening(Server<Welcome>);

impl Listening {
    /// Path of the socket. Code that ends this process before [`accept`](Self::accept) returns should
    /// [remove](crate::socket_file::remove_socket) it.
    pub fn socket(&self) -> PathBuf {
        PathBuf::from(&self.0.name)
    }

    /// Last step: opens what came with the bootstrap, answers main, and waits until main has connected. Only
    /// the end of the process ends this wait, so a watchdog must be running.
    ///
    /// # Errors
    /// [`HandshakeError`].
    pub fn accept(
        self,
        bootstrap: Bootstrap,
        mut fds: Vec<OwnedFd>,
        lifeline: &Lifeline,
        patience: &mut Patience<'_>,
    ) -> Result<Connected, HandshakeError> {
        let wanted = bootstrap.memories as usize + bootstrap.files as usize + 3;
        while fds.len() < wanted {
            fds.extend(lifeline.receive::<More>(&mut *patience)?.1);
        }
        let mut fds = fds.into_iter();
        let mut next =
            || fds.next().ok_or_else(|| LifelineError::Malformed("a descriptor is missing".into()));
        let io = |error| HandshakeError::Lifeline(LifelineError::Io(error));
        let control = Arc::new(ControlPage::map(next()?, bootstrap.workers as usize).map_err(io)?);
        let rings = Rings::map(&next()?).map_err(io)?;
        let dataset = SealedMemory::open(next()?).map_err(io)?;
        let memories = (0..bootstrap.memories)
            .map(|_| SealedMemory::open(next()?).map(Arc::new).map_err(io))
            .collect::<Result<_, HandshakeError>>()?;
        let files = (0..bootstrap.files)
            .map(|_| Ok(Arc::new(HeldFd::new(next()?))))
            .collect::<Result<_, HandshakeError>>()?;

        // `_folder` comes first, so that it is dropped last.
        let Server { folder: _folder, server, name, socket } = self.0;
        lifeline.send(&Answer::Listening { server: name }, &[socket.as_fd()], &mut *patience)?;
        drop(socket);
        let (WakeEnd, fds) = lifeline.receive(patience)?;
        let missing = || LifelineError::Malformed("the socket that wakes main is missing".into());
        let waker = Waker::from_socket(fds.into_iter().next().ok_or_else(missing)?);
        // ipc-channel returns EINTR instead of continuing, so signals are blocked in this thread: some only
        // interrupt (for example, Rust's handler for stack overflows ignores the first SIGSEGV that another
        // process sends). The watchdog's thread receives the signals, and can still end the process.
        let accepted = uninterrupted(|| server.accept());
        let (_, welcome) =
            accepted.map_err(|error| HandshakeError::Queue(io::Error::other(error.to_string())))?;
        if welcome.nonce != bootstrap.nonce {
            return Err(HandshakeError::WrongNonce);
        }
        let (commands, results) =
            rings.worker_ends(WakeupReceiver::new(welcome.wakeups), waker, Arc::clone(&control));
        Ok(Connected { bootstrap, control, dataset, memories, files, commands, results })
    }
}

impl std::fmt::Debug for Listening {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Listening").field("name", &self.0.name).finish_non_exhaustive()
    }
}

/// Tells main why this worker cannot serve. Returns the refusal as an error, or the error of sending it.
pub fn refuse(lifeline: &Lifeline, reason: String, patience: &mut Patience<'_>) -> HandshakeError {
    match lifeline.send(&Answer::Refused { reason: reason.clone() }, &[], patience) {
        Ok(()) => HandshakeError::Refused(reason),
        Err(error) => error.into(),
    }
}

/// Returns a random number that other users cannot guess.
///
/// # Errors
/// If the system provides no random numbers.
pub fn random_nonce() -> io::Result<u64> {
    let mut bytes = [0; size_of::<u64>()];
    // A request this small is never truncated, and does not block once the system has booted.
    getrandom(&mut bytes, GetRandomFlags::empty())?;
    Ok(u64::from_le_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use std::{
        fs::File,
        num::NonZeroUsize,
        os::fd::BorrowedFd,
        thread::{self, JoinHandle},
        time::{Duration, Instant},
    };

    use super::*;
    use crate::{channel::channel, frame::Command, memory};

    const SOON: Duration = Duration::from_secs(5);

    fn soon() -> Patience<'static> {
        Patience::new(SOON)
    }

    /// Runs the handshake with a worker that is a thread, over a real socket pair.
    fn meet<R: Send + 'static>(
        worker: impl FnOnce(Lifeline) -> R + Send + 'static,
        limit: Duration,
    ) -> (Result<(CommandSender, ReportReader), HandshakeError>, JoinHandle<R>) {
        let (wake, _woken) = channel().unwrap();
        let (ours, theirs) = Lifeline::pair().unwrap();
        let (_page, control) = ControlPage::create(1).unwrap();
        let dataset = SealedMemory::new(b"dataset").unwrap();
        let code =
            DatasetCode::Registered { name: "rows".into(), types: "u8".into(), schema: Schema::default() };
        let config = WorkerConfig {
            workers: 1,
            seed: 1,
            base_seed: 2,
            memory_limit: None,
            raises_oom_score: true,
            code: &code,
            control: &control,
            dataset: &dataset,
            memories: &[],
            files: &[],
        };
        let worker = thread::spawn(move || worker(Lifeline::from_socket(theirs)));
        let socket_folder = SocketFolder::choose(random_nonce().unwrap()).unwrap();
        let mut patience = Patience::new(limit);
        let invitation = Invitation::send(0, &config, &socket_folder, &ours, &mut patience).unwrap();
        (invitation.connect(&ours, &wake, &mut patience), worker)
    }

    fn read_bootstrap(lifeline: &Lifeline) -> (Bootstrap, Vec<OwnedFd>) {
        Bootstrap::receive(lifeline, &mut soon()).unwrap()
    }

    #[test]
    fn main_and_worker_connect() {
        let worker = |lifeline: Lifeline| {
            let (bootstrap, fds) = read_bootstrap(&lifeline);
            let listening = bootstrap.listen(&lifeline, |_| Ok(()), &mut soon()).unwrap();
            let mut connected = listening.accept(bootstrap, fds, &lifeline, &mut soon()).unwrap();
            (connected.dataset.bytes().to_vec(), connected.commands.receive(Instant::now() + SOON).unwrap())
        };
        let (met, worker) = meet(worker, SOON);
        let (mut commands, _reader) = met.unwrap();
        commands.send(&Some(Command::Resume { epoch: 3 })).unwrap();
        assert_eq!(worker.join().unwrap(), (b"dataset".to_vec(), Some(Command::Resume { epoch: 3 })));
    }

    #[test]
    fn invalid_answers_are_errors_within_the_deadline() {
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
                |error| matches!(error, HandshakeError::Lifeline(LifelineError::UnknownMagic(_))),
            ),
            (
                |lifeline| write(lifeline, b"LOADER"),
                |error| matches!(error, HandshakeError::Lifeline(LifelineError::UnknownMagic(_))),
            ),
            (|lifeline| lifeline.send(&u64::MAX, &[], &mut soon()).unwrap(), malformed),
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
            let (met, worker) = meet(worker, Duration::from_millis(200));
            let error = met.err().unwrap();
            assert!(check(&error), "case {number}: {error}");
            assert!(started.elapsed() < Duration::from_secs(2));
            worker.join().unwrap();
        }
    }

    #[test]
    fn a_worker_refuses_memory_that_is_too_small_or_can_shrink() {
        let fd = memory::reserve(NonZeroUsize::new(4096).unwrap()).unwrap();
        // Too small for a control page of 1000 workers, and for rings.
        assert!(ControlPage::map(&fd, 1000).is_err());
        assert!(Rings::map(&fd).is_err());
        let plain = OwnedFd::from(File::open("/dev/zero").unwrap());
        assert!(ControlPage::map(&plain, 1).is_err());
    }

    fn answer(lifeline: &Lifeline, server: &str, fds: &[BorrowedFd<'_>]) {
        lifeline.send(&Answer::Listening { server: server.to_owned() }, fds, &mut soon()).unwrap();
    }

    fn write(lifeline: &Lifeline, bytes: &[u8]) {
        rustix::io::write(lifeline, bytes).unwrap();
    }
}
