//! Starting workers: all processes at once, then the handshakes.

use std::{
    ffi::OsStr,
    io,
    os::fd::AsFd,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use loader_ipc::{
    channel::{Sender, channel},
    control::ControlPage,
    handshake::{HandshakeError, Invitation, Offer, Work},
    lifeline::{Lifeline, LifelineError},
    memory::SealedMemory,
    process::{self, WorkerProcess},
    queue::{ReportReader, ReportReceiver, Wake},
    slots::SlotPool,
};
use nix::sys::signal::Signal;

use super::{
    Pool, Worker,
    output::Output,
    reaper::{Reaper, Watched},
};
use crate::error::Error;

/// How long a worker may take from its start to the end of the handshake.
const START_DEADLINE: Duration = Duration::from_secs(30);
/// How long a worker that failed to start may take to be reaped after SIGKILL.
const REAP_DEADLINE: Duration = Duration::from_secs(2);

/// How long a worker whose lifeline was dropped may take to end by itself.
const GRACE: Duration = Duration::from_millis(500);

/// Environment variable that names a worker program.
const PROGRAM_VARIABLE: &str = "LOADER_WORKER";

/// The worker program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Program {
    path: PathBuf,
    /// True when it is this very program, which finds the dataset's code by address.
    is_self: bool,
}

impl Program {
    /// Finds the worker program: the explicit one, `LOADER_WORKER`, this program if `init()` ran, `loader-worker` beside it.
    pub(crate) fn find(explicit: Option<&Path>, init_ran: bool, num_workers: usize) -> Result<Self, Error> {
        let named = explicit.map(|path| (path.to_owned(), "worker_program"));
        let named = named.or_else(|| Some((std::env::var_os(PROGRAM_VARIABLE)?.into(), PROGRAM_VARIABLE)));
        if let Some((path, origin)) = named {
            let missing = |source| Error::WorkerProgramMissing { path: path.clone(), origin, source };
            return Ok(Self { path: process::locate(&path).map_err(missing)?, is_self: false });
        }
        if init_ran {
            return Ok(Self { path: process::THIS_PROGRAM.into(), is_self: true });
        }
        let beside = std::env::current_exe().map(|program| program.with_file_name("loader-worker"));
        match beside {
            Ok(path) if path.is_file() => Ok(Self { path, is_self: false }),
            _ => Err(Error::InitNotCalled { num_workers }),
        }
    }

    pub(crate) fn is_self(&self) -> bool {
        self.is_self
    }
}

/// What every pool of a loader is started from.
#[derive(Debug)]
pub(crate) struct Launch {
    pub(crate) program: Program,
    pub(crate) workers: usize,
    pub(crate) seed: u64,
    pub(crate) work: Work,
    pub(crate) dataset: SealedMemory,
    pub(crate) attached: Vec<Arc<SealedMemory>>,
    pub(crate) handle_sigchld: bool,
}

/// A worker that has been started and not yet answered.
struct Started {
    process: Arc<WorkerProcess>,
    lifeline: Lifeline,
    invitation: Invitation,
    output: Output,
}

impl Launch {
    /// Starts the workers, each with the seed `base_seed` plus its number, and waits until each has answered.
    ///
    /// # Errors
    /// [`Error::WorkerNotStarted`], and no worker is left running.
    pub(crate) fn start(&self, slots: &SlotPool, base_seed: u64) -> Result<Pool, Error> {
        let system = |what| move |source| Error::System { what, source };
        let (wake, woken) = channel().map_err(system("making the result queue"))?;
        let (control, control_fd) =
            ControlPage::create(self.workers).map_err(system("making the control page"))?;
        let offer = Offer {
            workers: u32::try_from(self.workers).expect("checked by the builder"),
            seed: self.seed,
            base_seed,
            work: &self.work,
            control: control_fd.as_fd(),
            dataset: &self.dataset,
            attached: &self.attached,
        };
        let deadline = Instant::now() + START_DEADLINE;
        let mut started = Vec::with_capacity(self.workers);
        for number in 0..self.workers {
            match self.start_one(number, &offer, deadline) {
                Ok(worker) => started.push(worker),
                Err(error) => {
                    let others =
                        started.into_iter().map(|Started { process, lifeline, .. }| (process, lifeline));
                    end_all(others);
                    return Err(error);
                }
            }
        }
        let Greeted { workers, watched, readers } = greet(started, &wake, deadline)?;
        let control = Arc::new(control);
        let (results, exits) = ReportReceiver::new(readers, (wake, woken), Arc::clone(&control));
        let reaper = Reaper::start(watched, exits, self.handle_sigchld);
        let mut pool = Pool {
            workers,
            results,
            control,
            reaper: None,
            slots: slots.clone(),
            owner: std::process::id(),
            looked_through: slots.destroyed(),
        };
        match reaper {
            Ok(reaper) => {
                pool.reaper = Some(reaper);
                Ok(pool)
            }
            Err(source) => {
                let all = pool.workers.drain(..).map(|Worker { process, lifeline, .. }| (process, lifeline));
                end_all(all);
                Err(Error::System { what: "starting the reaper", source })
            }
        }
    }

    fn start_one(&self, number: usize, offer: &Offer<'_>, deadline: Instant) -> Result<Started, Error> {
        let path = &self.program.path;
        let failed = |error: io::Error| {
            let problem = match error.raw_os_error() {
                Some(nix::libc::EMFILE | nix::libc::ENFILE) => {
                    format!("{error}; raise the limit on open files (`ulimit -n`), or use fewer workers")
                }
                Some(nix::libc::EAGAIN) => {
                    format!("{error}; the limit on processes (`ulimit -u`) is reached")
                }
                _ => format!("{error} ({})", path.display()),
            };
            Error::WorkerNotStarted { worker: number, problem }
        };
        let (lifeline, theirs) = Lifeline::pair().map_err(failed)?;
        let (output, writer) = Output::pipe(number).map_err(failed)?;
        let name = format!("loader-worker-{number}");
        let process =
            Arc::new(WorkerProcess::spawn(path, OsStr::new(&name), theirs, writer).map_err(failed)?);
        let worker = u32::try_from(number).expect("checked by the builder");
        match Invitation::send(worker, offer, &lifeline, deadline) {
            Ok(invitation) => Ok(Started { process, lifeline, invitation, output }),
            Err(error) => {
                drop(lifeline);
                Err(refused(number, &error, &process, output))
            }
        }
    }
}

/// Workers that have answered, as the pool, the reaper and the result queue see them.
#[derive(Default)]
struct Greeted {
    workers: Vec<Worker>,
    watched: Vec<Watched>,
    readers: Vec<ReportReader>,
}

/// Waits for each worker's answer. On a failure, ends them all.
fn greet(started: Vec<Started>, wake: &Sender<Wake>, deadline: Instant) -> Result<Greeted, Error> {
    let mut greeted = Greeted::default();
    let mut started = started.into_iter().enumerate();
    while let Some((number, Started { process, lifeline, invitation, output })) = started.next() {
        match invitation.connect(&lifeline, wake, deadline) {
            Ok((orders, reader)) => {
                greeted.watched.push(Watched { process: Arc::clone(&process), output: Some(output) });
                greeted.workers.push(Worker::new(process, lifeline, orders));
                greeted.readers.push(reader);
            }
            Err(error) => {
                drop(lifeline);
                let error = refused(number, &error, &process, output);
                let waiting = started.map(|(_, Started { process, lifeline, .. })| (process, lifeline));
                let workers = greeted.workers.into_iter();
                let greeted = workers.map(|Worker { process, lifeline, .. }| (process, lifeline));
                end_all(waiting.chain(greeted));
                return Err(error);
            }
        }
    }
    Ok(greeted)
}

/// The error for a worker that did not come through the handshake, with how its process ended.
fn refused(worker: usize, error: &HandshakeError, process: &WorkerProcess, mut output: Output) -> Error {
    // It may be about to end by itself, with a status and last words that say more than our SIGKILL.
    let grace = if error.is_gone() { REAP_DEADLINE } else { GRACE };
    let own_end = reap_until(process, Instant::now() + grace);
    kill_and_reap(process);
    output.last_words();
    let problem = match own_end {
        Some(status) if error.is_gone() => format!(
            "its process {status} before it answered; is loader_worker::init() called first in its main, and is it a worker \
             program?"
        ),
        _ if matches!(error, HandshakeError::Lifeline(LifelineError::TimedOut)) => {
            "it did not answer; a worker program must call loader_worker::init() or serve a registry first in its main".to_owned()
        }
        _ => error.to_string(),
    };
    Error::WorkerNotStarted { worker, problem }
}

/// Ends workers that were started in vain: drops their lifelines, waits a moment for all of them, so that they can clean up after
/// themselves, and kills the rest.
fn end_all(workers: impl Iterator<Item = (Arc<WorkerProcess>, Lifeline)>) {
    let processes: Vec<_> = workers.map(|(process, _lifeline)| process).collect();
    let deadline = Instant::now() + GRACE;
    for process in &processes {
        reap_until(process, deadline);
    }
    processes.iter().for_each(|process| kill_and_reap(process));
}

fn kill_and_reap(process: &WorkerProcess) {
    process.signal(Signal::SIGKILL);
    reap_until(process, Instant::now() + REAP_DEADLINE);
}

fn reap_until(process: &WorkerProcess, deadline: Instant) -> Option<loader_ipc::frame::ExitStatus> {
    loop {
        if let Some(status) = process.try_reap() {
            return Some(status);
        }
        if Instant::now() >= deadline {
            return None;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}
