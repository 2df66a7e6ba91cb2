//! How main and a fresh worker meet. Main's half is [`Invitation`], the worker's [`Bootstrap::answer`].
//!
//! ```text
//! main                                                worker
//!   one-shot server made, worker started
//!   Bootstrap (lifeline, with descriptors)  ------->    compares protocol, version, build
//!                                                       connects to the one-shot server, sends Connect there
//!   <-------  Answer::Connected or ::Refused (lifeline)
//!   accepts (cannot block: the connection is there), checks the nonce
//!   Welcome (with the result queue)  ------->           ready for tasks
//! ```
//!
//! ipc-channel has no way to make a channel over a socket that exists already, and its `accept` has no deadline: that is why the
//! worker says over the lifeline that it has connected before main accepts.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
    path::Path,
    sync::Arc,
    time::Instant,
};

use ipc_channel::ipc::{self, IpcOneShotServer, IpcReceiver, IpcSender};
use serde::{Deserialize, Serialize};

use crate::{
    build_id::BuildId,
    control::ControlPage,
    entry::Entry,
    frame::{Lease, Order, Report},
    lifeline::{Lifeline, LifelineError, MAX_FDS},
    memory::SealedMemory,
    queue::{Receiver, Sender, queue},
};

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
    /// What to serve.
    pub work: Work,
    /// Version of main's loader-ipc.
    version: String,
    /// Name of the one-shot server.
    server: String,
    /// Shows that who connects there is the one invited.
    nonce: u64,
    /// Number of attached memories that follow, in this message and in [`More`].
    attached: u32,
}

/// Which code opens the dataset in the worker.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Work {
    /// A function of the same program.
    Entry(Entry),
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
    Connected { version: String, build: BuildId },
    Refused { reason: String },
}

/// What the worker sends to the one-shot server.
#[derive(Serialize, Deserialize)]
struct Connect {
    nonce: u64,
    tasks: Sender<Option<Order>>,
    welcome: IpcSender<Welcome>,
}

/// Main's last word of the handshake.
#[derive(Serialize, Deserialize)]
struct Welcome {
    results: Sender<Report>,
}

/// Main to worker, over the lifeline, after the handshake.
#[derive(Debug, Serialize, Deserialize)]
pub enum Notice {
    /// A slot's memory (one descriptor).
    Slot {
        /// Number of the slot.
        slot: u32,
        /// Size in bytes.
        len: u64,
    },
    /// The answer to `NeedSlot`.
    Grant {
        /// Number of the task.
        task: u64,
        /// The larger slot, or why there is none.
        lease: Result<Lease, String>,
    },
}

/// Why main and a worker did not come together.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HandshakeError {
    /// The lifeline failed.
    #[error(transparent)]
    Lifeline(#[from] LifelineError),
    /// The worker is of another version.
    #[error(
        "the worker program is version {theirs}, this program uses {VERSION}; build both from the same release"
    )]
    OtherVersion {
        /// The worker's version.
        theirs: String,
    },
    /// The worker refused, and says why.
    #[error("{0}")]
    Refused(String),
    /// Somebody else connected in the worker's place.
    #[error("a stranger connected in the worker's place")]
    WrongNonce,
    /// The queues could not be made.
    #[error("the queues cannot be made: {0}")]
    Queue(#[source] io::Error),
}

/// What a new worker is given, but for its number.
#[derive(Debug, Clone)]
pub struct Offer<'a> {
    /// Number of workers.
    pub workers: u32,
    /// The loader's seed.
    pub seed: u64,
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
pub struct Invitation {
    server: IpcOneShotServer<Connect>,
    nonce: u64,
}

impl Invitation {
    /// Sends the bootstrap to a worker that was just started.
    ///
    /// # Errors
    /// [`HandshakeError`].
    pub fn send(
        worker: u32,
        offer: &Offer<'_>,
        lifeline: &Lifeline,
        deadline: Instant,
    ) -> Result<Self, HandshakeError> {
        let (server, name) = IpcOneShotServer::new().map_err(HandshakeError::Queue)?;
        if !Path::new(&name).exists() {
            let what = format!(
                "the socket {name} does not exist: the path of TMPDIR is too long (107 bytes at most)"
            );
            return Err(HandshakeError::Queue(io::Error::new(io::ErrorKind::InvalidFilename, what)));
        }
        let nonce = fresh_nonce();
        let bootstrap = Bootstrap {
            worker,
            workers: offer.workers,
            main_pid: std::process::id(),
            seed: offer.seed,
            work: offer.work.clone(),
            version: VERSION.to_owned(),
            server: name,
            nonce,
            attached: u32::try_from(offer.attached.len()).expect("fewer attachments than descriptors"),
        };
        let fixed = [offer.control, offer.dataset.fd().as_fd()];
        let (first, rest) = offer.attached.split_at(offer.attached.len().min(MAX_FDS - fixed.len()));
        let fds: Vec<_> = fixed.into_iter().chain(first.iter().map(|memory| memory.fd().as_fd())).collect();
        lifeline.send(&bootstrap, &fds, deadline)?;
        for part in rest.chunks(MAX_FDS) {
            let fds: Vec<_> = part.iter().map(|memory| memory.fd().as_fd()).collect();
            lifeline.send(&More, &fds, deadline)?;
        }
        Ok(Self { server, nonce })
    }

    /// Waits for the worker's answer and connects the queues; gives the worker's task queue.
    ///
    /// # Errors
    /// [`HandshakeError`].
    pub fn accept(
        self,
        lifeline: &Lifeline,
        results: &Sender<Report>,
        deadline: Instant,
    ) -> Result<Sender<Option<Order>>, HandshakeError> {
        match lifeline.receive::<Answer>(deadline)?.0 {
            Answer::Refused { reason } => return Err(HandshakeError::Refused(reason)),
            Answer::Connected { version, .. } if version != VERSION => {
                return Err(HandshakeError::OtherVersion { theirs: version });
            }
            Answer::Connected { .. } => {}
        }
        let broken =
            |error: ipc_channel::IpcError| HandshakeError::Queue(io::Error::other(error.to_string()));
        let (_, connect) = self.server.accept().map_err(broken)?;
        if connect.nonce != self.nonce {
            return Err(HandshakeError::WrongNonce);
        }
        connect.welcome.send(Welcome { results: results.clone() }).map_err(broken)?;
        Ok(connect.tasks)
    }
}

impl std::fmt::Debug for Invitation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Invitation").finish_non_exhaustive()
    }
}

/// What a worker has after the handshake.
#[derive(Debug)]
pub struct Connected {
    /// Who it is and what to serve.
    pub bootstrap: Bootstrap,
    /// The shared page.
    pub control: ControlPage,
    /// The dataset's encoding.
    pub dataset: SealedMemory,
    /// What the encoding refers to.
    pub attached: Vec<Arc<SealedMemory>>,
    /// Orders from main.
    pub tasks: Receiver<Option<Order>>,
    /// Reports to main.
    pub results: Sender<Report>,
}

impl Bootstrap {
    /// The worker's half: reads the bootstrap, answers it, and connects the queues.
    ///
    /// `accepts` says whether this worker can serve the work; its error is what main shows to the user.
    ///
    /// # Errors
    /// [`HandshakeError`], after main was told.
    pub fn answer(
        lifeline: &Lifeline,
        accepts: impl FnOnce(&Work) -> Result<(), String>,
        deadline: Instant,
    ) -> Result<Connected, HandshakeError> {
        let (bootstrap, mut fds) = match lifeline.receive::<Self>(deadline) {
            Err(LifelineError::OtherProtocol { theirs }) => {
                let reason = format!(
                    "the worker program refuses protocol {theirs}; it speaks {}",
                    crate::lifeline::PROTOCOL
                );
                return Err(refuse(lifeline, reason, deadline));
            }
            other => other?,
        };
        if bootstrap.version != VERSION {
            let theirs = &bootstrap.version;
            let reason = format!(
                "the worker program is version {VERSION}, the main program {theirs}; build both from the same release"
            );
            return Err(refuse(lifeline, reason, deadline));
        }
        if let Err(reason) = accepts(&bootstrap.work) {
            return Err(refuse(lifeline, reason, deadline));
        }
        let wanted = bootstrap.attached as usize + 2;
        while fds.len() < wanted {
            fds.extend(lifeline.receive::<More>(deadline)?.1);
        }
        let mut fds = fds.into_iter();
        let mut next =
            || fds.next().ok_or_else(|| LifelineError::Malformed("a descriptor is missing".into()));
        let io = |error| HandshakeError::Lifeline(LifelineError::Io(error));
        let control = ControlPage::map(next()?, bootstrap.workers as usize).map_err(io)?;
        let dataset = SealedMemory::open(next()?).map_err(io)?;
        let attached = (0..bootstrap.attached)
            .map(|_| SealedMemory::open(next()?).map(Arc::new).map_err(io))
            .collect::<Result<_, HandshakeError>>()?;

        let (tasks, results) = connect(&bootstrap, lifeline, deadline)?;
        Ok(Connected { bootstrap, control, dataset, attached, tasks, results })
    }
}

type Queues = (Receiver<Option<Order>>, Sender<Report>);

fn connect(bootstrap: &Bootstrap, lifeline: &Lifeline, deadline: Instant) -> Result<Queues, HandshakeError> {
    let server = IpcSender::<Connect>::connect(bootstrap.server.clone()).map_err(HandshakeError::Queue)?;
    let (task_sender, tasks) = queue().map_err(HandshakeError::Queue)?;
    let (welcome_sender, welcome): (_, IpcReceiver<Welcome>) =
        ipc::channel().map_err(HandshakeError::Queue)?;
    let connect = Connect { nonce: bootstrap.nonce, tasks: task_sender, welcome: welcome_sender };
    let broken = |error: &dyn std::fmt::Display| HandshakeError::Queue(io::Error::other(error.to_string()));
    server.send(connect).map_err(|error| broken(&error))?;
    let answer = Answer::Connected { version: VERSION.to_owned(), build: BuildId::of_this_program().clone() };
    lifeline.send(&answer, &[], deadline)?;
    loop {
        match welcome.try_recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(Welcome { results }) => return Ok((tasks, results)),
            Err(ipc_channel::TryRecvError::IpcError(ipc_channel::IpcError::Io(error)))
                if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(broken(&error)),
        }
    }
}

fn refuse(lifeline: &Lifeline, reason: String, deadline: Instant) -> HandshakeError {
    match lifeline.send(&Answer::Refused { reason: reason.clone() }, &[], deadline) {
        Ok(()) => HandshakeError::Refused(reason),
        Err(error) => error.into(),
    }
}

fn fresh_nonce() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    // Keys of `RandomState` come from the system's generator.
    std::collections::hash_map::RandomState::new().build_hasher().finish()
}
