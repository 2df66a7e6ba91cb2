//! Starts workers: first all processes, then the handshakes.

use std::{
    collections::{BTreeMap, VecDeque},
    ffi::OsStr,
    sync::Arc,
    time::{Duration, Instant},
};

use loader_ipc::{
    channel::{Sender, channel},
    control::ControlPage,
    frame::ExitStatus,
    handshake::{DatasetCode, HandshakeError, Invitation, WorkerConfig, random_nonce},
    held_fd::HeldFd,
    lifeline::Lifeline,
    memory::SealedMemory,
    oom::OomWatch,
    open_closed_streams,
    process::WorkerProcess,
    queue::{ReportReader, ReportReceiver, Wake},
    slots::SlotPool,
    socket_file::remove_abandoned_sockets,
    socket_folder::SocketFolder,
};
use nix::sys::signal::Signal;

use super::{
    Pool, Worker,
    output::Output,
    program::StartProcess,
    reaper::{Reaper, Watched},
    start_error::{WorkerStartError, is_tried_again},
};
use crate::{affinity::WorkerCpus, error::Error, warning::Warn};

/// Maximum time from the start of a worker's process to the end of its handshake.
const START_DEADLINE: Duration = Duration::from_secs(30);
/// Maximum time to reap a worker after SIGKILL, or after the handshake has found it gone.
const REAP_DEADLINE: Duration = Duration::from_secs(2);

/// Maximum time for a worker to end by itself after main has dropped its lifeline.
const GRACE: Duration = Duration::from_millis(500);

/// What a loader starts all of its pools from.
#[derive(Debug)]
pub(crate) struct Launch {
    pub(crate) program: Box<dyn StartProcess>,
    pub(crate) cpus: WorkerCpus,
    /// Maximum number of workers, which `WorkerInfo::num_workers` returns.
    pub(crate) max_workers: usize,
    pub(crate) seed: u64,
    pub(crate) code: DatasetCode,
    pub(crate) dataset: SealedMemory,
    pub(crate) memories: Vec<Arc<SealedMemory>>,
    pub(crate) files: Vec<Arc<HeldFd>>,
    pub(crate) handle_sigchld: bool,
    /// Maximum number of times that workers killed before they have answered are started again while a pool
    /// starts, for all of its workers together.
    pub(crate) start_retries: u32,
    /// Maximum number of bytes of private memory that a worker allocates after its start.
    pub(crate) memory_limit: Option<u64>,
    pub(crate) warn: Warn,
}

impl Launch {
    /// Starts `workers` workers, each with the seed `base_seed` plus its number, and waits until each has
    /// answered.
    ///
    /// # Errors
    /// [`Error::WorkerNotStarted`] if a worker cannot be started; [`Error::System`] if a channel, the control
    /// page or the reaper cannot be created. No worker is left running.
    pub(crate) fn start(
        self: &Arc<Self>,
        workers: usize,
        slots: &SlotPool,
        base_seed: u64,
    ) -> Result<Pool, Error> {
        let system = |what| move |source| Error::System { what, source };
        open_closed_streams().map_err(system("opening the standard streams"))?;
        let (wake, woken) = channel().map_err(system("making the result queue"))?;
        let (control, control_fd) =
            ControlPage::create(self.max_workers).map_err(system("making the control page"))?;
        let control = Arc::new(control);
        let oom = OomWatch::start();
        let starter = Arc::new(Starter { launch: Arc::clone(self), base_seed, control: control_fd });
        let Fresh { workers, watched, readers } = starter.start_all(workers, &wake)?;
        let (results, notes) = ReportReceiver::new(readers, (wake, woken), Arc::clone(&control));
        let reaper = Reaper::start(watched, notes.clone(), self.handle_sigchld);
        let mut pool = Pool {
            workers,
            results,
            notes,
            control,
            starter,
            restarts: BTreeMap::new(),
            reaper: None,
            slots: slots.clone(),
            owner: std::process::id(),
            looked_through: slots.destroyed_regions(),
            oom,
            warn: self.warn.clone(),
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
}

/// What a pool starts all of its workers from.
#[derive(Debug)]
pub(super) struct Starter {
    launch: Arc<Launch>,
    base_seed: u64,
    control: HeldFd,
}

/// A worker's process that main has started and not yet sent an invitation.
pub(super) struct Spawned {
    pub(super) process: Arc<WorkerProcess>,
    number: usize,
    /// Until when the handshake must end.
    deadline: Instant,
    lifeline: Lifeline,
    output: Output,
    /// Dropped once the worker is connected or reaped.
    socket_folder: SocketFolder,
}

/// A worker that main has sent an invitation, and that has not yet answered.
struct Invited {
    spawned: Spawned,
    invitation: Invitation,
}

/// A worker that has answered: its parts for the pool, the reaper and the result queue.
pub(super) struct Greeted {
    pub(super) worker: Worker,
    pub(super) watched: Watched,
    pub(super) reader: ReportReader,
}

/// The parts of all workers that have answered, by number of the worker.
#[derive(Default)]
struct Fresh {
    workers: Vec<Worker>,
    watched: Vec<Watched>,
    readers: Vec<ReportReader>,
}

impl Starter {
    /// Starts the processes of `workers` workers, then waits for the answer of each. If one fails, ends all
    /// of them.
    fn start_all(&self, workers: usize, wake: &Sender<Wake>) -> Result<Fresh, Error> {
        let start = |number| self.spawn(number).and_then(|spawned| self.invite(spawned));
        let mut start_retries = self.launch.start_retries;
        // A worker killed during start-up is retried, exactly as after start-up.
        let mut is_tried_again = |failed: &Failed| {
            let is_forgiven = failed.was_killed && start_retries > 0;
            start_retries -= u32::from(is_forgiven);
            is_forgiven
        };
        let mut invited = VecDeque::with_capacity(workers);
        for number in 0..workers {
            let mut started = start(number);
            while started.as_ref().is_err_and(&mut is_tried_again) {
                started = start(number);
            }
            match started {
                Ok(worker) => invited.push_back(worker),
                Err(failed) => return Err(end_after(failed.error, invited, Fresh::default())),
            }
        }
        let mut fresh = Fresh::default();
        while let Some(worker) = invited.pop_front() {
            let number = worker.spawned.number;
            let mut greeted = greet(worker, wake);
            while greeted.as_ref().is_err_and(&mut is_tried_again) {
                greeted = start(number).and_then(|worker| greet(worker, wake));
            }
            match greeted {
                Ok(Greeted { worker, watched, reader }) => {
                    fresh.workers.push(worker);
                    fresh.watched.push(watched);
                    fresh.readers.push(reader);
                }
                Err(failed) => return Err(end_after(failed.error, invited, fresh)),
            }
        }
        Ok(fresh)
    }

    /// Starts one worker. Calls `accept` as soon as the process exists. If that returns false, kills the
    /// process.
    pub(super) fn start_one(
        &self,
        number: usize,
        wake: &Sender<Wake>,
        accept: impl FnOnce(&Arc<WorkerProcess>) -> bool,
    ) -> Result<Greeted, Error> {
        let spawned = self.spawn(number).map_err(|failed| failed.error)?;
        if !accept(&spawned.process) {
            kill_and_reap(&spawned.process);
        }
        let greeted = self.invite(spawned).and_then(|invited| greet(invited, wake));
        greeted.map_err(|failed| failed.error)
    }

    /// Starts the process of a worker. A template that hangs or was killed is replaced once. The second attempt
    /// has descriptors of its own, because the first template may have given those of the first to a worker.
    fn spawn(&self, number: usize) -> Result<Spawned, Failed> {
        let spawned = match self.spawn_once(number) {
            Err(WorkerStartError::TemplateFailed { source, .. }) if is_tried_again(&source) => {
                self.spawn_once(number)
            }
            spawned => spawned,
        };
        let failed = |source| Error::WorkerNotStarted { worker: number, source };
        spawned.map_err(|source| Failed { error: failed(source), was_killed: false })
    }

    fn spawn_once(&self, number: usize) -> Result<Spawned, WorkerStartError> {
        let Launch { program, max_workers, .. } = &*self.launch;
        let failed = |source| WorkerStartError::NotSpawned { program: program.describe(), source };
        ControlPage::reserve_area(&self.control, *max_workers, number).map_err(failed)?;
        let socket_folder = SocketFolder::choose(random_nonce().map_err(failed)?)
            .map_err(WorkerStartError::NoSocketFolder)?;
        let (lifeline, theirs) = Lifeline::pair().map_err(failed)?;
        let (output, writer) = Output::pipe(number).map_err(failed)?;
        let name = format!("loader-worker-{number}");
        let process = program.start(OsStr::new(&name), self.launch.cpus.of(number), theirs, writer)?;
        let deadline = Instant::now() + START_DEADLINE;
        Ok(Spawned { process: Arc::new(process), number, deadline, lifeline, output, socket_folder })
    }

    fn invite(&self, spawned: Spawned) -> Result<Invited, Failed> {
        let Launch { max_workers, seed, code, dataset, memories, files, memory_limit, .. } = &*self.launch;
        let config = WorkerConfig {
            workers: u32::try_from(*max_workers).expect("checked by the builder"),
            seed: *seed,
            base_seed: self.base_seed,
            memory_limit: *memory_limit,
            code,
            control: &self.control,
            dataset,
            memories,
            files,
        };
        let worker = u32::try_from(spawned.number).expect("checked by the builder");
        match Invitation::send(worker, &config, &spawned.socket_folder, &spawned.lifeline, spawned.deadline) {
            Ok(invitation) => Ok(Invited { spawned, invitation }),
            Err(error) => Err(refused(spawned, error)),
        }
    }
}

/// Waits for the worker's answer and connects its queues.
fn greet(invited: Invited, wake: &Sender<Wake>) -> Result<Greeted, Failed> {
    let Invited { spawned, invitation } = invited;
    match invitation.connect(&spawned.lifeline, wake, spawned.deadline) {
        Ok((commands, reader)) => {
            let Spawned { process, lifeline, output, .. } = spawned;
            let watched = Watched { process: Arc::clone(&process), output: Some(output) };
            Ok(Greeted { worker: Worker::new(process, lifeline, commands), watched, reader })
        }
        Err(error) => Err(refused(spawned, error)),
    }
}

impl Greeted {
    /// Ends the worker, which is no longer wanted.
    pub(super) fn end(self) {
        let Worker { process, lifeline, .. } = self.worker;
        end_all([(process, lifeline)].into_iter());
    }
}

/// Why a worker did not start. Its process has been ended.
struct Failed {
    error: Error,
    /// True if a signal ended, or may have ended, the process before it answered.
    was_killed: bool,
}

/// Ends the other workers after one has failed to start. Returns `error`.
fn end_after(error: Error, invited: VecDeque<Invited>, fresh: Fresh) -> Error {
    let mut socket_folder = Vec::new();
    let waiting = invited.into_iter().map(|Invited { spawned, .. }| {
        socket_folder.push(spawned.socket_folder);
        (spawned.process, spawned.lifeline)
    });
    let greeted = fresh.workers.into_iter().map(|Worker { process, lifeline, .. }| (process, lifeline));
    end_all(waiting.chain(greeted));
    error
}

/// Ends a worker whose handshake failed. Returns the reason, together with how its process ended.
fn refused(spawned: Spawned, error: HandshakeError) -> Failed {
    let Spawned { process, number, lifeline, output, socket_folder: _socket_folder, .. } = spawned;
    drop(lifeline);
    // The worker may be about to end by itself, with an exit status and last output that say more than a
    // SIGKILL by main.
    let grace = if error.is_gone() { REAP_DEADLINE } else { GRACE };
    let own_end = process.reap_until(Instant::now() + grace);
    kill_and_reap(&process);
    if error.is_gone() {
        remove_abandoned_sockets();
    }
    output.finish();
    let was_killed = match own_end {
        Some(ExitStatus::Signal { .. }) => true,
        // The host has reaped it, so main cannot know the exit status. A signal may have ended it.
        Some(ExitStatus::Unknown) => error.is_gone(),
        _ => false,
    };
    let source = WorkerStartError::new(error, own_end);
    Failed { error: Error::WorkerNotStarted { worker: number, source }, was_killed }
}

/// Ends workers that are not needed after all: drops their lifelines, waits up to [`GRACE`] for all of them
/// together, so that they can clean up, and kills the rest.
fn end_all(workers: impl Iterator<Item = (Arc<WorkerProcess>, Lifeline)>) {
    let processes: Vec<_> = workers.map(|(process, _lifeline)| process).collect();
    let deadline = Instant::now() + GRACE;
    for process in &processes {
        process.reap_until(deadline);
    }
    processes.iter().for_each(|process| kill_and_reap(process));
    remove_abandoned_sockets();
}

fn kill_and_reap(process: &WorkerProcess) {
    process.signal(Signal::SIGKILL);
    process.reap_until(Instant::now() + REAP_DEADLINE);
}

#[cfg(test)]
mod tests {
    use std::{io, os::fd::OwnedFd};

    use loader_ipc::{cpu_set::CpuSet, schema::Schema};

    use super::*;
    use crate::ranks::LocalRanks;

    /// Starts the first workers, and no other.
    #[derive(Debug)]
    struct Limited(usize);

    impl StartProcess for Limited {
        fn start(
            &self,
            name: &OsStr,
            cpus: Option<&CpuSet>,
            lifeline: OwnedFd,
            output: OwnedFd,
        ) -> Result<WorkerProcess, WorkerStartError> {
            let number: usize = name.to_str().and_then(|name| name.rsplit('-').next()?.parse().ok()).unwrap();
            let failed = |source| WorkerStartError::NotSpawned { program: self.describe(), source };
            if number >= self.0 {
                return Err(failed(io::ErrorKind::QuotaExceeded.into()));
            }
            WorkerProcess::spawn("/bin/sleep".as_ref(), &["60".into()], cpus, [], name, lifeline, output)
                .map_err(failed)
        }

        fn describe(&self) -> String {
            format!("at most {}", self.0)
        }
    }

    #[test]
    fn a_process_that_does_not_start_ends_the_start() {
        let launch = Launch {
            program: Box::new(Limited(2)),
            cpus: WorkerCpus::inherited(LocalRanks::default()),
            max_workers: 3,
            seed: 0,
            code: DatasetCode::Registered {
                name: "none".into(),
                types: String::new(),
                schema: Schema::default(),
            },
            dataset: SealedMemory::new(&[]).unwrap(),
            memories: Vec::new(),
            files: Vec::new(),
            handle_sigchld: false,
            start_retries: 0,
            memory_limit: None,
            warn: Warn::default(),
        };
        let error = Arc::new(launch).start(3, &SlotPool::new(1 << 20), 0).unwrap_err();
        let Error::WorkerNotStarted { worker: 2, source } = error else { panic!("{error:?}") };
        let WorkerStartError::NotSpawned { program, source } = source else { panic!("{source:?}") };
        assert_eq!((program.as_str(), source.kind()), ("at most 2", io::ErrorKind::QuotaExceeded));
    }
}
