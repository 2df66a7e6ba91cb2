//! Worker processes from a template: a process that has loaded an interpreter and its libraries, and that forks a
//! worker for each request of main. Main's side is [`TemplateProcess`]; the template's side is in `loader-worker`. A
//! template that is a fork of main ([`Fork`]) belongs to one loader, because main's objects differ at each fork.
//!
//! ```text
//! main                                                   template
//!   Request (its standard input; 4 descriptors) ------->   forks; the child takes the descriptors
//!   <----------------- TemplateReport::Started (report socket, with the child's pidfd)
//!   <----------------- TemplateReport::Ended (report socket), when the template has reaped the child
//! ```
//!
//! Each request brings a socket of its own for the reports about one worker. So the threads of main that start
//! workers do not wait for each other's answers, nothing maps pids to workers, and the end of the template is
//! the end of each such socket.
//!
//! A worker is the template's child. Main watches and signals it through the pidfd, which the template opens
//! before it can reap the child, so that the pid cannot be that of another process. The exit status comes from
//! the template, because the kernel gives it to the parent only.
//!
//! Alternatives considered:
//! - The template double-forks and main is the subreaper (`PR_SET_CHILD_SUBREAPER`), so that main reaps the
//!   workers. Rejected because the setting holds for the whole process: main would also become the parent of
//!   orphans that other parts of the host have started, and would have to reap them.
//! - `clone3` with `CLONE_PARENT`, so that a worker is main's child. Rejected because a direct system call runs
//!   neither glibc's fork handlers nor those of Python and NumPy, which leaves their locks as they were in the
//!   template.
//! - A template for each loader, which ends with it. Rejected because the start of a template takes as long as
//!   that of a worker without one, and programs make a loader per dataset or per epoch.
//! - The exit status by `PIDFD_GET_INFO`. Rejected because it needs Linux 6.15.

use std::{
    ffi::{OsStr, OsString},
    io,
    os::fd::{AsFd, OwnedFd},
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use nix::{
    fcntl::{OFlag, open},
    sys::stat::Mode,
};
use rustix::{
    event::{PollFd, PollFlags},
    process::{PidfdFlags, getpid, pidfd_open},
};
use serde::{Deserialize, Serialize};

use crate::{
    build_id::BuildId,
    cpu_set::CpuSet,
    frame::ExitStatus,
    lifeline::{Lifeline, LifelineError, Until},
    patience::Patience,
    process::{Halt, Limits, WorkerProcess},
    slots::{KeptLoans, keep_all},
};

pub use crate::process::TemplateReport;

/// Maximum time from the end of a template's sockets to the end of its process.
const END_DEADLINE: Duration = Duration::from_secs(1);
/// Maximum time for a template to take a request for a spare, and to answer it.
const SPARE_DEADLINE: Duration = Duration::from_secs(1);

/// Main's request for one child: a worker, or a spare of the template. Its four descriptors are the worker's lifeline
/// or the socket from which the spare takes requests, its output, the socket for the reports about it, and main's
/// working directory.
#[derive(Debug, Serialize, Deserialize)]
pub struct Request {
    /// True if the child is to be a template too, which takes the place of this one if it ends.
    pub is_spare: bool,
    /// The CPUs to which the worker is bound; `None` if main's mask cannot be read.
    pub cpus: Option<CpuSet>,
    /// Main's umask and resource limits.
    pub limits: Limits,
}

/// Why a template did not start a worker.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TemplateError {
    /// The operating system refused to start the worker, or refused a descriptor that it needs.
    #[error(transparent)]
    Refused(#[from] io::Error),
    /// The template ended before it answered.
    #[error("it {was}{0} before it answered", was = was(*.0))]
    Ended(ExitStatus),
    /// The template did not answer in time.
    #[error("it did not answer in time")]
    NoAnswer,
    /// The template cannot continue.
    #[error("it did not answer: {0}")]
    Halted(Halt),
    /// The caller has ended the wait. The template goes on.
    #[error("the wait for its answer was interrupted")]
    Interrupted,
    /// The template answered with something else than the loader's protocol.
    #[error("its answer is invalid ({0}); does the program serve the requests of a template?")]
    InvalidAnswer(String),
}

/// What a program makes before it forks a template from itself. The program calls `fork` itself, so that the fork
/// handlers of its interpreter run.
#[derive(Debug)]
pub struct Fork {
    requests: Lifeline,
    theirs: OwnedFd,
    main: OwnedFd,
    /// The batches that the child shares with this process.
    held: KeptLoans,
}

impl Fork {
    /// Makes the descriptors.
    ///
    /// # Errors
    /// If this process is out of descriptors, or if the system provides no pidfds (Linux 5.3).
    pub fn new() -> io::Result<Self> {
        // A child has a copy of the build id, and need not read the list of loaded objects.
        BuildId::of_this_code();
        let (requests, theirs) = Lifeline::pair()?;
        let main = pidfd_open(getpid(), PidfdFlags::empty())?;
        Ok(Self { requests, theirs, main, held: keep_all() })
    }

    /// Called in the child: returns the end of the socket from which it takes requests, and the pidfd of its parent.
    pub fn in_child(self) -> (OwnedFd, OwnedFd) {
        (self.theirs, self.main)
    }

    /// Called in the parent, which has not reaped the child `pid`. Returns the template, and what must be kept as long
    /// as the template or a worker of it runs.
    ///
    /// # Errors
    /// If the system provides no pidfd for the child, which is killed and reaped.
    pub fn in_main(self, pid: u32) -> io::Result<(TemplateProcess, KeptLoans)> {
        let process = Arc::new(WorkerProcess::forked(pid)?);
        Ok((TemplateProcess { process, requests: self.requests }, self.held))
    }
}

/// A running template.
#[derive(Debug)]
pub struct TemplateProcess {
    process: Arc<WorkerProcess>,
    /// The template's standard input. Once it is closed, the template ends after its last worker.
    requests: Lifeline,
}

impl TemplateProcess {
    /// Starts the template `program` with `args`. It inherits all environment variables except `removed`, and
    /// the affinity mask of this thread. It prints to this process's standard error.
    ///
    /// # Errors
    /// If the program cannot be started. `Unsupported` if the system provides no pidfds: main could neither
    /// notice the end of a process that is not its child nor signal it safely. A program that serves as a
    /// template cannot be started as a worker instead, because it waits for requests.
    pub fn spawn(
        program: &Path,
        args: &[OsString],
        removed: impl IntoIterator<Item = OsString>,
    ) -> io::Result<Self> {
        let (requests, theirs) = Lifeline::pair()?;
        let output = io::stderr().as_fd().try_clone_to_owned()?;
        let name = OsStr::new("loader-template");
        let process = WorkerProcess::spawn(program, args, None, removed, name, theirs, output)?;
        if process.pidfd().is_none() {
            // The template ends, because its standard input is closed.
            let problem = "a template needs pidfds (Linux 5.3), which this system does not provide; name a worker \
                           program without `template()`";
            return Err(io::Error::new(io::ErrorKind::Unsupported, problem));
        }
        Ok(Self { process: Arc::new(process), requests })
    }

    /// Tells the template that no request will come: it ends after its last worker. Other processes may hold copies of
    /// the socket, so dropping it would not tell the template.
    pub fn end(&self) {
        self.requests.shut_down();
    }

    /// False if the program has closed the descriptors by which main asks for workers and watches the template.
    pub fn has_descriptors(&self) -> bool {
        self.requests.socket().is_same_file() && self.process.pidfd().is_some()
    }

    /// The template's own process.
    pub fn process(&self) -> &Arc<WorkerProcess> {
        &self.process
    }

    /// Asks the template for a worker with `lifeline` as its standard input and `output` as its standard
    /// output and error. It is bound to `cpus`, or to the CPUs of this thread, and has this process's working
    /// directory, umask and resource limits. Waits for the answer with `patience`.
    ///
    /// # Errors
    /// [`TemplateError`]. The template may have forked a worker nevertheless, so the caller must drop its end
    /// of the lifeline, which ends that worker.
    pub fn start(
        &self,
        cpus: Option<&CpuSet>,
        lifeline: OwnedFd,
        output: OwnedFd,
        patience: &mut Patience<'_>,
    ) -> Result<WorkerProcess, TemplateError> {
        let asked = self.ask(false, cpus, lifeline, output, &mut *patience)?;
        let answer = asked.and_then(|report| {
            let answer = self.receive(&report, patience)?;
            Ok((answer, report))
        });
        match answer {
            Ok((answer, report)) => started(answer, report),
            Err(LifelineError::TimedOut) => {
                Err(self.process.try_reap().map_or(TemplateError::NoAnswer, TemplateError::Ended))
            }
            Err(LifelineError::Closed) => Err(self.end_after_close()),
            Err(LifelineError::Halted(halt)) => Err(TemplateError::Halted(halt)),
            Err(LifelineError::Interrupted) => Err(TemplateError::Interrupted),
            Err(LifelineError::Io(error)) => Err(error.into()),
            Err(error) => Err(TemplateError::InvalidAnswer(error.to_string())),
        }
    }

    /// Asks the template for a spare of itself, and does not wait for the answer.
    ///
    /// # Errors
    /// [`TemplateError::Refused`] if a descriptor cannot be made, and [`TemplateError::NoAnswer`] if the template does
    /// not take requests.
    pub fn ask_for_spare(&self) -> Result<Spare, TemplateError> {
        let (requests, theirs) = Lifeline::pair()?;
        let output = io::stderr().as_fd().try_clone_to_owned()?;
        let report = self.ask(true, None, theirs, output, Instant::now() + SPARE_DEADLINE)?;
        report.map(|report| Spare { requests, report }).map_err(|_| TemplateError::NoAnswer)
    }

    /// Sends a request. Returns the socket for the reports.
    fn ask(
        &self,
        is_spare: bool,
        cpus: Option<&CpuSet>,
        lifeline: OwnedFd,
        output: OwnedFd,
        deadline: impl Until,
    ) -> io::Result<Result<Lifeline, LifelineError>> {
        let (report, theirs) = Lifeline::pair()?;
        let open = |name| open(name, OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty());
        // Main may not be able to enter `.` again.
        let folder = open(".").or_else(|_| open("/proc/self/cwd"))?;
        let cpus = cpus.cloned().or_else(|| CpuSet::of_this_thread().ok());
        let fds = [lifeline.as_fd(), output.as_fd(), theirs.as_fd(), folder.as_fd()];
        let request = Request { is_spare, cpus, limits: Limits::of_this_process() };
        // The report socket ends with the template only if this process has closed its copy of that end, which it does
        // here.
        Ok(self.requests.send(&request, &fds, deadline).map(|()| report))
    }

    /// Waits for a report, or until the template has ended. A child that the template has
    /// just forked may hold the socket open for a moment longer.
    fn receive(
        &self,
        report: &Lifeline,
        mut patience: &mut Patience<'_>,
    ) -> Result<(TemplateReport, Option<OwnedFd>), LifelineError> {
        let mut fds = vec![PollFd::from_borrowed_fd(report.as_fd(), PollFlags::IN)];
        fds.extend(self.process.pidfd().map(|pidfd| PollFd::from_borrowed_fd(pidfd, PollFlags::IN)));
        patience.poll(&mut fds)?;
        report.receive_with_one(Instant::now())
    }

    /// Returns the error for a template that has closed its sockets.
    fn end_after_close(&self) -> TemplateError {
        match self.process.reap_within(END_DEADLINE) {
            Some(status) => TemplateError::Ended(status),
            None => TemplateError::InvalidAnswer("it dropped the request".to_owned()),
        }
    }
}

/// A template that waits until it is to take the place of the one that has forked it.
#[derive(Debug)]
pub struct Spare {
    requests: Lifeline,
    report: Lifeline,
}

impl Spare {
    /// Returns the spare as the template from which main now asks for workers.
    ///
    /// # Errors
    /// [`TemplateError`] if it was not forked.
    pub fn into_template(self) -> Result<TemplateProcess, TemplateError> {
        let answer = self.report.receive_with_one(Instant::now() + SPARE_DEADLINE);
        let answer = answer.map_err(|error| TemplateError::InvalidAnswer(error.to_string()))?;
        let process = started(answer, self.report)?;
        Ok(TemplateProcess { process: Arc::new(process), requests: self.requests })
    }
}

/// Returns the child that a template has started, or why it has started none.
fn started(
    answer: (TemplateReport, Option<OwnedFd>),
    report: Lifeline,
) -> Result<WorkerProcess, TemplateError> {
    match answer {
        (TemplateReport::Started { pid }, Some(pidfd)) => Ok(WorkerProcess::of_template(pid, pidfd, report)),
        (TemplateReport::NotStarted { errno: Some(errno), .. }, None) => {
            Err(io::Error::from_raw_os_error(errno).into())
        }
        (TemplateReport::NotStarted { errno: None, text }, None) => Err(io::Error::other(text).into()),
        (report, _) => Err(TemplateError::InvalidAnswer(format!("{report:?}"))),
    }
}

/// Returns the verb that the text of a status needs.
fn was(status: ExitStatus) -> &'static str {
    match status {
        ExitStatus::Signal { .. } => "was ",
        ExitStatus::Code(_) => "",
        _ => "is ",
    }
}
