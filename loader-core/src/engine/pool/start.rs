//! Starts workers: first all processes, then the handshakes.

use std::{
    collections::{BTreeMap, VecDeque},
    ffi::OsStr,
    io,
    sync::Arc,
    thread,
    time::Duration,
};

use loader_ipc::{
    channel::{Sender, channel},
    control::{ControlPage, WorkerState},
    frame::ExitStatus,
    handshake::{DatasetCode, HandshakeError, Invitation, WorkerConfig, random_nonce},
    held_fd::HeldFd,
    lifeline::{Lifeline, LifelineError},
    memory::SealedMemory,
    oom::OomWatch,
    open_closed_streams,
    patience::{Awaited, Patience},
    process::{WorkerProcess, has_other_pid_namespace},
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
};
use crate::{
    engine::start_wait::StartWait,
    error::{
        Error,
        exit::WorkerActivity,
        start_error::{WorkerStartError, was_killed},
    },
    launch::affinity::WorkerCpus,
    report::warning::Warn,
};

/// Maximum time from the start of a worker's process to the end of its handshake.
const START_DEADLINE: Duration = Duration::from_secs(30);
/// Maximum time to reap a worker after SIGKILL, or after the handshake has found it gone.
const REAP_DEADLINE: Duration = Duration::from_secs(2);

/// Maximum time for a worker to end by itself after main has dropped its lifeline.
const GRACE: Duration = Duration::from_millis(500);
/// Time between two looks whether workers have ended.
const LOOK_INTERVAL: Duration = Duration::from_millis(1);

/// Why main cannot start a thread.
const OTHER_PID_NAMESPACE: &str = "the program has called unshare(CLONE_NEWPID) or setns, and the kernel refuses new \
                                   threads to such a process; start the program by `unshare --pid --fork`, make the \
                                   namespace in a child, or load without workers (num_workers = 0)";

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
    /// True if the OOM killer prefers workers to main.
    pub(crate) raises_oom_score: bool,
    pub(crate) warn: Warn,
}

impl Launch {
    /// Starts `workers` workers, each with the seed `base_seed` plus its number, and waits until each has
    /// answered.
    ///
    /// # Errors
    /// [`Error::WorkerNotStarted`] if a worker cannot be started; [`Error::System`] if a channel, the control
    /// page or the reaper cannot be created; and the error with which `wait` ends the start. No worker is left running.
    pub(crate) fn start(
        self: &Arc<Self>,
        workers: usize,
        slots: &SlotPool,
        base_seed: u64,
        wait: &mut StartWait<'_>,
    ) -> Result<Pool, Error> {
        let system = |what| move |source| Error::System { what, source };
        if has_other_pid_namespace() {
            return Err(system("starting a thread")(io::Error::other(OTHER_PID_NAMESPACE)));
        }
        open_closed_streams().map_err(system("opening the standard streams"))?;
        let (wake, woken) = channel().map_err(system("making the result queue"))?;
        let (control, control_fd) =
            ControlPage::create(self.max_workers).map_err(system("making the control page"))?;
        let control = Arc::new(control);
        let oom = OomWatch::start();
        let starter = Arc::new(Starter { launch: Arc::clone(self), base_seed, control: control_fd });
        let mut look = |waited, awaited: &Awaited| wait.look_at_start(waited, || starting(awaited, waited));
        let fresh = starter.start_all(workers, &wake, &mut Patience::with(&mut look));
        let Fresh { workers, watched, readers } = fresh.map_err(|error| wait.error().unwrap_or(error))?;
        self.program.prepare_replacements();
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

/// Says that main has waited for a worker, or for the template that is to start it, for the time `waited`.
fn starting(awaited: &Awaited, waited: Duration) -> WorkerActivity {
    let (worker, pid) = (awaited.worker, awaited.process.pid());
    WorkerActivity { worker, pid, state: WorkerState::Starting, batch: 0, index: 0, age: waited }
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
    /// The time on the clock of the start at which the handshake must end.
    deadline: Duration,
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
    fn start_all(
        &self,
        workers: usize,
        wake: &Sender<Wake>,
        patience: &mut Patience<'_>,
    ) -> Result<Fresh, Error> {
        let start = |number, patience: &mut Patience<'_>| {
            self.spawn(number, patience).and_then(|spawned| self.invite(spawned, patience))
        };
        let mut start_retries = self.launch.start_retries;
        // A worker or a template killed during start-up is retried, exactly as a worker after start-up.
        let mut is_tried_again = |failed: &Failed| {
            let is_forgiven = failed.was_killed && start_retries > 0;
            start_retries -= u32::from(is_forgiven);
            is_forgiven
        };
        let mut invited = VecDeque::with_capacity(workers);
        for number in 0..workers {
            let mut started = start(number, patience);
            while started.as_ref().is_err_and(&mut is_tried_again) {
                started = start(number, patience);
            }
            match started {
                Ok(worker) => invited.push_back(worker),
                Err(failed) => return Err(end_after(failed.error, invited, Fresh::default())),
            }
        }
        let mut fresh = Fresh::default();
        while let Some(worker) = invited.pop_front() {
            let number = worker.spawned.number;
            let mut greeted = greet(worker, wake, patience);
            while greeted.as_ref().is_err_and(&mut is_tried_again) {
                greeted = start(number, patience).and_then(|worker| greet(worker, wake, patience));
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
        patience: &mut Patience<'_>,
        accept: impl FnOnce(&Arc<WorkerProcess>) -> bool,
    ) -> Result<Greeted, Error> {
        let spawned = self.spawn(number, patience).map_err(|failed| failed.error)?;
        if !accept(&spawned.process) {
            kill_and_reap(&spawned.process);
        }
        let greeted = self.invite(spawned, patience);
        let greeted = greeted.and_then(|invited| greet(invited, wake, patience));
        self.launch.program.prepare_replacements();
        greeted.map_err(|failed| failed.error)
    }

    /// Starts the process of a worker. Each attempt has descriptors of its own, because a template that failed may have
    /// given those of its attempt to a worker.
    fn spawn(&self, number: usize, patience: &mut Patience<'_>) -> Result<Spawned, Failed> {
        self.try_spawn(number, patience).map_err(|source| Failed {
            was_killed: match &source {
                WorkerStartError::TemplateFailed { source, .. } => was_killed(source),
                WorkerStartError::ForkFailed { source, can_fork } => *can_fork && was_killed(source),
                _ => false,
            },
            error: Error::WorkerNotStarted { worker: number, source },
        })
    }

    fn try_spawn(&self, number: usize, patience: &mut Patience<'_>) -> Result<Spawned, WorkerStartError> {
        let Launch { program, max_workers, .. } = &*self.launch;
        let failed = |source| WorkerStartError::NotSpawned { program: program.describe(), source };
        ControlPage::reserve_area(&self.control, *max_workers, number).map_err(failed)?;
        let socket_folder = SocketFolder::choose(random_nonce().map_err(failed)?)
            .map_err(WorkerStartError::NoSocketFolder)?;
        let (lifeline, theirs) = Lifeline::pair().map_err(failed)?;
        let (output, writer) = Output::pipe(number).map_err(failed)?;
        let name = format!("loader-worker-{number}");
        let (name, cpus) = (OsStr::new(&name), self.launch.cpus.of(number));
        let process = program.start(name, cpus, theirs, writer, number, patience)?;
        let deadline = patience.waited() + START_DEADLINE;
        Ok(Spawned { process: Arc::new(process), number, deadline, lifeline, output, socket_folder })
    }

    fn invite(&self, spawned: Spawned, patience: &mut Patience<'_>) -> Result<Invited, Failed> {
        let Launch {
            max_workers, seed, code, dataset, memories, files, memory_limit, raises_oom_score, ..
        } = &*self.launch;
        let config = WorkerConfig {
            workers: u32::try_from(*max_workers).expect("checked by the builder"),
            seed: *seed,
            base_seed: self.base_seed,
            memory_limit: *memory_limit,
            raises_oom_score: *raises_oom_score,
            code,
            control: &self.control,
            dataset,
            memories,
            files,
        };
        let worker = u32::try_from(spawned.number).expect("checked by the builder");
        patience.turn_to(spawned.awaited(), spawned.deadline);
        match Invitation::send(worker, &config, &spawned.socket_folder, &spawned.lifeline, patience) {
            Ok(invitation) => Ok(Invited { spawned, invitation }),
            Err(error) => Err(refused(spawned, error)),
        }
    }
}

impl Spawned {
    fn awaited(&self) -> Awaited {
        Awaited { worker: self.number, process: Arc::clone(&self.process) }
    }
}

/// Waits for the worker's answer and connects its queues.
fn greet(invited: Invited, wake: &Sender<Wake>, patience: &mut Patience<'_>) -> Result<Greeted, Failed> {
    let Invited { spawned, invitation } = invited;
    patience.turn_to(spawned.awaited(), spawned.deadline);
    match invitation.connect(&spawned.lifeline, wake, patience) {
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
    let own_end = process.reap_within(grace);
    kill_and_reap(&process);
    if error.is_gone() {
        remove_abandoned_sockets();
    }
    output.finish();
    let was_killed = match (&error, own_end) {
        (HandshakeError::Lifeline(LifelineError::Interrupted), _) => false,
        (HandshakeError::Lifeline(LifelineError::Halted(_)), _) | (_, Some(ExitStatus::Signal { .. })) => {
            true
        }
        // The host has reaped it, so main cannot know the exit status. A signal may have ended it.
        (_, Some(ExitStatus::Unknown)) => error.is_gone(),
        _ => false,
    };
    let source = WorkerStartError::new(error, own_end);
    Failed { error: Error::WorkerNotStarted { worker: number, source }, was_killed }
}

/// Ends workers that are not needed after all: drops their lifelines, waits up to [`GRACE`] for all of them
/// together, so that they can clean up, and kills the rest.
fn end_all(workers: impl Iterator<Item = (Arc<WorkerProcess>, Lifeline)>) {
    let processes: Vec<_> = workers.map(|(process, _lifeline)| process).collect();
    let mut patience = Patience::new(GRACE);
    while processes.iter().any(|process| process.try_reap().is_none()) && !patience.is_over() {
        patience.step(|_| thread::sleep(LOOK_INTERVAL));
    }
    processes.iter().for_each(|process| kill_and_reap(process));
    remove_abandoned_sockets();
}

pub(super) fn kill_and_reap(process: &WorkerProcess) {
    process.signal(Signal::SIGKILL);
    process.reap_within(REAP_DEADLINE);
}

#[cfg(test)]
mod tests {
    use std::{io, os::fd::OwnedFd, time::Instant};

    use loader_ipc::{cpu_set::CpuSet, process::Halt, schema::Schema};

    use super::*;
    use crate::{engine::interrupt::StartInterrupt, launch::ranks::LocalRanks};

    /// Starts the first workers, with a shell that runs `script`, and no other.
    #[derive(Debug)]
    struct Shells {
        workers: usize,
        script: &'static str,
    }

    impl StartProcess for Shells {
        fn start(
            &self,
            name: &OsStr,
            cpus: Option<&CpuSet>,
            lifeline: OwnedFd,
            output: OwnedFd,
            worker: usize,
            _patience: &mut Patience<'_>,
        ) -> Result<WorkerProcess, WorkerStartError> {
            let failed = |source| WorkerStartError::NotSpawned { program: self.describe(), source };
            if worker >= self.workers {
                return Err(failed(io::ErrorKind::QuotaExceeded.into()));
            }
            let args = ["-c".into(), self.script.into()];
            WorkerProcess::spawn("/bin/sh".as_ref(), &args, cpus, [], name, lifeline, output).map_err(failed)
        }

        fn describe(&self) -> String {
            format!("at most {}", self.workers)
        }
    }

    /// Starts three workers, of which `shells` starts some, until `interrupt` says to end.
    fn start(shells: Shells, start_retries: u32, interrupt: Option<&StartInterrupt>) -> Error {
        let launch = Launch {
            program: Box::new(shells),
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
            start_retries,
            memory_limit: None,
            raises_oom_score: true,
            warn: Warn::default(),
        };
        let warn = Warn::default();
        let mut wait = StartWait::new(interrupt, None, None, &warn);
        Arc::new(launch).start(3, &SlotPool::new(1 << 20), 0, &mut wait).unwrap_err()
    }

    #[test]
    fn a_process_that_does_not_start_ends_the_start() {
        let error = start(Shells { workers: 2, script: "exec sleep 60" }, 0, None);
        let Error::WorkerNotStarted { worker: 2, source } = error else { panic!("{error:?}") };
        let WorkerStartError::NotSpawned { program, source } = source else { panic!("{source:?}") };
        assert_eq!((program.as_str(), source.kind()), ("at most 2", io::ErrorKind::QuotaExceeded));
    }

    #[test]
    fn an_interrupt_ends_the_wait_for_workers_that_do_not_answer() {
        let began = Instant::now();
        let interrupt = StartInterrupt::new(Duration::ZERO, move || began.elapsed() >= GRACE);
        // Three retries do not make it wait again.
        let error = start(Shells { workers: 3, script: "exec sleep 60" }, 3, Some(&interrupt));
        assert!(matches!(error, Error::Interrupted), "{error:?}");
        assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    }

    #[test]
    fn workers_that_are_stopped_are_replaced_while_they_start() {
        let began = Instant::now();
        let error = start(Shells { workers: 3, script: "kill -STOP $$" }, 1, None);
        let Error::WorkerNotStarted { worker: 0, source } = error else { panic!("{error:?}") };
        assert!(matches!(source, WorkerStartError::Halted(Halt::Stopped { .. })), "{source:?}");
        // The second attempt has the whole time too.
        assert!((20..28).contains(&began.elapsed().as_secs()), "{:?}", began.elapsed());
    }
}
