//! The template's side of [`loader_ipc::template`]: takes main's requests, reports what became of them, and
//! reaps the workers. The program itself forks, so that the fork handlers of its interpreter run.

use std::{
    fs,
    io::{self, Write},
    os::fd::{AsFd, AsRawFd, OwnedFd},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use loader_ipc::{
    cpu_set::CpuSet,
    end_ignoring, exit_now, ignore_by_default,
    lifeline::{Lifeline, LifelineError, poll_until},
    oom::prefer_this_process,
    process::{self, Limits, WorkerProcess, empty_stdin, is_worker, take_lifeline_from_stdin},
    template::{Request, TemplateReport},
};
use nix::{
    sys::{
        prctl::set_name,
        signal::Signal,
        stat::{FileStat, fstat, stat},
    },
    unistd::{dup2_stderr, dup2_stdout, fchdir, getppid},
};
use rustix::{
    event::{PollFd, PollFlags},
    process::{PidfdFlags, pidfd_open},
};

use crate::inherited::{leave_host, leave_signals, note_template};

/// Maximum time between two looks at everything that the template waits for.
const SLOW_POLL: Duration = Duration::from_secs(60);
/// Maximum time for room in the socket that takes a report to main.
const REPORT_DEADLINE: Duration = Duration::from_secs(1);
/// Names the working directory of this process also where the process may not enter it.
const OWN_FOLDER: &str = "/proc/self/cwd";

/// A process that main has started as a template
/// ([`WorkerProgram::template`](loader_core::WorkerProgram::template)): it loads an interpreter and its
/// libraries once, and forks a worker for each of main's requests.
///
/// The template must not use what a fork does not copy, such as threads and a GPU. This type has one thread,
/// which ends the process if main ends; [`next_request`](Self::next_request) stops it.
/// The signals that do not end a worker, such as SIGINT (Ctrl-C), do not end the template either.
///
/// # Examples
/// The program calls `fork` itself, so that the fork handlers of its interpreter run:
/// ```no_run
/// use std::process::ExitCode;
///
/// use loader_worker::{Registry, Template};
/// use nix::unistd::{ForkResult, fork};
///
/// fn main() -> std::io::Result<ExitCode> {
///     let mut template = Template::from_stdin()?;
///     // ... load libraries
///     while let Some(request) = template.next_request()? {
///         // SAFETY: this process has one thread.
///         match unsafe { fork() } {
///             Ok(ForkResult::Child) => {
///                 template.become_worker(request)?;
///                 return Ok(Registry::new().serve());
///             }
///             Ok(ForkResult::Parent { child }) => template.started(request, child.as_raw() as u32),
///             Err(errno) => template.not_started(request, &errno.into()),
///         }
///     }
///     Ok(ExitCode::SUCCESS)
/// }
/// ```
#[derive(Debug)]
pub struct Template {
    /// `None` once main has closed its end.
    requests: Option<Lifeline>,
    main: OwnedFd,
    children: Vec<Child>,
    /// `None` once the program has asked for a request.
    guard: Option<Guard>,
    /// `None` unless main has forked this process.
    fork: Option<Streams>,
}

/// Which standard streams main was started with. Without one, its number is that of a file of the program, if any.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Streams {
    pub has_stdin: bool,
    pub has_stderr: bool,
}

/// A thread that ends this process if main ends before the program has loaded its libraries. Later,
/// [`Template::next_request`] notices the end of main, and no thread may run while the program forks.
#[derive(Debug)]
struct Guard {
    /// A byte in it stops the thread.
    stop: io::PipeWriter,
    thread: JoinHandle<()>,
}

/// A worker that has not ended.
#[derive(Debug)]
struct Child {
    process: WorkerProcess,
    report: Lifeline,
}

/// Main's request for one child, a worker or a spare, from [`Template::next_request`].
#[derive(Debug)]
pub struct StartRequest {
    is_spare: bool,
    cpus: Option<CpuSet>,
    limits: Limits,
    lifeline: OwnedFd,
    output: OwnedFd,
    report: Lifeline,
    folder: OwnedFd,
}

impl Template {
    /// Makes this process a template. Call it before the program loads its libraries: it closes the
    /// descriptors that this process has inherited from main by accident, and it protects the process from the
    /// signals that do not end a worker, such as SIGINT (Ctrl-C). An interpreter must have no handler of its own for
    /// them.
    ///
    /// # Errors
    /// If no loader has started this process, if main has ended, or if the system provides no pidfds.
    pub fn from_stdin() -> io::Result<Self> {
        if !is_worker() {
            let problem = "this program is a template of a data loader, and only a loader can start it: name it as \
                           `worker_program`, with `WorkerProgram::template()`";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, problem));
        }
        leave_host()?;
        let requests = Some(take_lifeline_from_stdin()?);
        let parent = getppid();
        let pid = rustix::process::Pid::from_raw(parent.as_raw());
        let outside = || {
            let problem = "the main process is outside of the PID namespace of this process";
            io::Error::new(io::ErrorKind::NotFound, problem)
        };
        let main = pidfd_open(pid.ok_or_else(outside)?, PidfdFlags::empty())?;
        // If the parent is still the same, the pidfd is that process's.
        if getppid() != parent {
            return Err(io::Error::new(io::ErrorKind::BrokenPipe, "the main process has ended"));
        }
        let guard = Some(Guard::start(requests.as_ref(), &main)?);
        Ok(Self::new(requests, main, guard))
    }

    /// Makes this process, which main has forked, a template. `requests` is the end of [`Lifeline::pair`] that main
    /// does not keep, and `main` a pidfd of main, which main has opened before the fork.
    ///
    /// The process keeps main's descriptors, except standard input. SIGTERM does not end it either, because main cannot
    /// fork another template for the same workers. For SIGTERM and the signals that do not end a worker it must have no
    /// handler of main.
    ///
    /// # Errors
    /// If the system refuses to change an action for a signal, or a descriptor.
    #[doc(hidden)]
    pub fn of_fork(requests: OwnedFd, main: OwnedFd, streams: Streams) -> io::Result<Self> {
        process::mark_as_worker();
        ignore_by_default(Signal::SIGTERM as i32)?;
        leave_signals()?;
        if streams.has_stdin {
            empty_stdin()?;
        }
        Ok(Self { fork: Some(streams), ..Self::new(Some(Lifeline::from_socket(requests)), main, None) })
    }

    fn new(requests: Option<Lifeline>, main: OwnedFd, guard: Option<Guard>) -> Self {
        // The name in process lists. A failure does no harm.
        let _ = set_name(c"loader-template");
        Self { requests, main, children: Vec::new(), guard, fork: None }
    }

    /// Waits for main's next request, without limit. Returns `None` if main has ended, or if main needs no
    /// further worker and all workers have ended: the program should then exit. Reaps workers that have
    /// ended, and reports their exit statuses to main.
    ///
    /// # Errors
    /// If main has sent something else than a request. The program should exit; main starts another one.
    pub fn next_request(&mut self) -> io::Result<Option<StartRequest>> {
        if let Some(guard) = self.guard.take() {
            guard.stop();
        }
        loop {
            self.children.retain(|child| !child.report_end());
            if is_readable(&self.main)? {
                return Ok(None);
            }
            match self.requests.as_ref().map(|requests| requests.receive(Instant::now())) {
                Some(Ok((request, fds))) => return StartRequest::new(request, fds).map(Some),
                Some(Err(LifelineError::TimedOut)) => {}
                Some(Err(LifelineError::Closed)) => {
                    self.requests = None;
                    continue;
                }
                Some(Err(error)) => return Err(io::Error::other(error)),
                None if self.children.is_empty() => return Ok(None),
                None => {}
            }
            self.wait()?;
        }
    }

    /// Waits for a request, the end of main, or the end of a worker.
    fn wait(&self) -> io::Result<()> {
        let mut fds = vec![PollFd::new(&self.main, PollFlags::IN)];
        let requests = self.requests.iter().map(AsFd::as_fd);
        let ends = self.children.iter().filter_map(|child| child.process.end_fd());
        fds.extend(requests.chain(ends).map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        poll_until(&mut fds, Instant::now() + SLOW_POLL).map(drop)
    }

    /// Reports that this process has forked the child `pid` for `request`. Call it before anything else that
    /// could reap the child. If the system refuses the child's pidfd, kills the child, and reports that.
    pub fn started(&mut self, request: StartRequest, pid: u32) {
        let StartRequest { report, .. } = request;
        let process = match WorkerProcess::forked(pid) {
            Ok(process) => process,
            Err(error) => return refuse(&report, &error),
        };
        let pidfd: Vec<_> = process.pidfd().into_iter().collect();
        // If main has given up, it has closed its end of the worker's lifeline too, which ends the worker.
        drop(report.send(&TemplateReport::Started { pid }, &pidfd, Instant::now() + REPORT_DEADLINE));
        self.children.push(Child { process, report });
    }

    /// Reports that this process could not fork for `request`.
    pub fn not_started(&mut self, request: StartRequest, error: &io::Error) {
        refuse(&request.report, error);
    }

    /// Makes this process, a forked child of the template, a spare if `request` asks for one. Returns the request if it
    /// asks for a worker.
    #[doc(hidden)]
    pub fn become_spare(&mut self, request: StartRequest) -> Option<StartRequest> {
        if !request.is_spare {
            return Some(request);
        }
        self.requests = Some(Lifeline::from_socket(request.lifeline));
        // They are children of the parent, which reports their ends.
        self.children.clear();
        None
    }

    /// Makes this process, a forked child of the template, the worker of `request`. Its standard output and error,
    /// working directory, CPUs, umask and resource limits become those of the request. If main has forked the template,
    /// the worker keeps the standard output, working directory, umask and limits of the template. What belongs to the
    /// template is closed. [`Registry::serve`](crate::Registry::serve) must follow.
    ///
    /// # Errors
    /// If the system refuses, for example because the worker may use none of its CPUs. The process must print
    /// the error to standard error and exit.
    pub fn become_worker(self, request: StartRequest) -> io::Result<()> {
        let StartRequest { cpus, limits, lifeline, output, folder, report, is_spare: _ } = request;
        let Self { main, requests, children, fork, .. } = self;
        drop((requests, children, report));
        if fork.is_none_or(|streams| streams.has_stderr) {
            dup2_stderr(&output)?;
        }
        if fork.is_some() {
            end_ignoring(Signal::SIGTERM)?;
            // Only workers raise their `oom_score_adj`: other processes have most of the template's memory too.
            prefer_this_process();
        } else {
            // A fork of main has those that main had at the fork, as a worker that replaces another one must.
            dup2_stdout(&output)?;
            enter(&folder)?;
            limits.apply();
        }
        // A sandbox may forbid the call, and the worker has usually inherited these CPUs.
        if let Some(cpus) = cpus
            && CpuSet::of_this_thread().ok().as_ref() != Some(&cpus)
        {
            cpus.bind_this_thread()?;
        }
        note_template(main, Lifeline::from_socket(lifeline))
    }
}

impl Guard {
    fn start(requests: Option<&Lifeline>, main: &OwnedFd) -> io::Result<Self> {
        let (stopped, stop) = io::pipe()?;
        let requests = requests.map(|requests| requests.as_fd().try_clone_to_owned()).transpose()?;
        let main = main.try_clone()?;
        let wait = move || {
            let mut fds = vec![PollFd::new(&stopped, PollFlags::IN), PollFd::new(&main, PollFlags::IN)];
            fds.extend(requests.iter().map(|requests| PollFd::new(requests, PollFlags::RDHUP)));
            while !poll_until(&mut fds, Instant::now() + SLOW_POLL).unwrap_or(true) {}
            let is_stopped = poll_until(&mut fds[..1], Instant::now()).unwrap_or(true);
            if !is_stopped {
                exit_now(0);
            }
        };
        let thread = thread::Builder::new().name("loader-guard".into()).stack_size(256 * 1024).spawn(wait)?;
        Ok(Self { stop, thread })
    }

    /// Stops the thread, and waits for its end.
    fn stop(self) {
        let Self { mut stop, thread } = self;
        // Not by closing it: a process that a library has forked may hold a copy.
        if stop.write_all(&[0]).is_ok() {
            // It has nothing left to do.
            drop(thread.join());
        }
    }
}

impl StartRequest {
    fn new(Request { is_spare, cpus, limits }: Request, fds: Vec<OwnedFd>) -> io::Result<Self> {
        let count = fds.len();
        let fds = <[OwnedFd; 4]>::try_from(fds);
        let [lifeline, output, report, folder] = fds.map_err(|_| {
            io::Error::new(
                io::ErrorKind::InvalidData,
                format!("main's request has {count} descriptors instead of 4"),
            )
        })?;
        Ok(Self { is_spare, cpus, limits, lifeline, output, report: Lifeline::from_socket(report), folder })
    }
}

impl Child {
    /// Reaps the worker if it has ended, and tells main how. True if it has ended.
    fn report_end(&self) -> bool {
        let Some(status) = self.process.try_reap() else { return false };
        let ended = TemplateReport::Ended { status, cpu_use: self.process.cpu_use() };
        // The socket has room for this second message. If main has closed it, main needs no status.
        drop(self.report.send(&ended, &[], Instant::now()));
        true
    }
}

/// Makes main's working directory that of this process, unless it has inherited the same one: main itself may not be
/// able to enter it again.
fn enter(folder: &OwnedFd) -> io::Result<()> {
    fchdir(folder).or_else(|errno| {
        let file = |status: FileStat| (status.st_dev, status.st_ino);
        let is_inherited = fstat(folder).map(file) == stat(OWN_FOLDER).map(file);
        if is_inherited { Ok(()) } else { Err(not_entered(folder, errno.into())) }
    })
}

fn not_entered(folder: &OwnedFd, error: io::Error) -> io::Error {
    let number = folder.as_raw_fd();
    let name = fs::read_link(format!("/proc/self/fd/{number}")).unwrap_or_default();
    let problem = format!(
        "the worker cannot enter the working directory of main, {}: {error}; let main work in a directory that its user \
         may enter",
        name.display()
    );
    io::Error::new(error.kind(), problem)
}

fn refuse(report: &Lifeline, error: &io::Error) {
    let refused = TemplateReport::NotStarted { errno: error.raw_os_error(), text: error.to_string() };
    drop(report.send(&refused, &[], Instant::now() + REPORT_DEADLINE));
}

fn is_readable(fd: &OwnedFd) -> io::Result<bool> {
    poll_until(&mut [PollFd::new(fd, PollFlags::IN)], Instant::now())
}
