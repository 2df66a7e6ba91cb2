//! A worker's process from main's side: main starts it without `fork`, watches it through a pidfd, and reaps
//! it. A [template](crate::template) may start and reap it instead.

mod inherited;
mod template_report;

use std::{
    ffi::{OsStr, OsString},
    fs, io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    os::unix::{ffi::OsStrExt, process::CommandExt},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    libc::{SIGRTMAX, SIGRTMIN, c_int},
    sys::{
        signal::{SigmaskHow, Signal},
        stat::{SFlag, fstat},
    },
    unistd::Pid,
};
use rustix::{
    event::{PollFd, PollFlags},
    process::{PidfdFlags, WaitId, WaitIdOptions, pidfd_open, pidfd_send_signal, waitid},
};

use crate::{
    cpu_set::CpuSet,
    frame::ExitStatus,
    held_fd::HeldFd,
    lifeline::{Lifeline, LifelineError, poll_until},
    observed,
    patience::{Patience, WaitError},
    sys::signal_set,
};

pub use crate::observed::{CpuUse, Halt, HaltWatch, cpu_time, cpu_wait, data_memory, private_memory};
pub use inherited::Limits;
pub use template_report::TemplateReport;

/// Environment variable that marks a process as a worker or a template. Its value is the inode of the socket
/// that is the process's standard input. A process that merely inherits the variable (a program that a dataset
/// starts) has another standard input, and is not taken for a worker.
pub const MARKER: &str = "LOADER_WORKER_LIFELINE";

/// Path of the running program, which works even after its file was replaced on disk.
pub const THIS_PROGRAM: &str = "/proc/self/exe";

/// Maximum time for which this process waits for the exit status of a process that has ended. A template may report it
/// late, and a debugger may keep it. After that time the status is SIGKILL if this process has sent that signal, and
/// unknown otherwise.
const STATUS_DEADLINE: Duration = Duration::from_secs(1);
/// Maximum time to reap a child after SIGKILL.
const REAP_DEADLINE: Duration = Duration::from_secs(1);
/// Time between two looks whether a process has ended.
const REAP_INTERVAL: Duration = Duration::from_millis(1);

/// A started worker.
#[derive(Debug)]
pub struct WorkerProcess {
    pid: Pid,
    /// The number of the process in `/proc`, which is another one if `/proc` is that of another PID namespace.
    in_proc: u32,
    /// `None` on kernels before 5.3 and in sandboxes that refuse pidfds: then the pid is polled.
    pidfd: Option<HeldFd>,
    /// The socket on which a template reports how the process ended; `None` if this process is the parent.
    report: Option<Lifeline>,
    end: Mutex<End>,
}

/// What is known of a process once it has ended.
#[derive(Debug, Default)]
struct End {
    /// `None` until the process was reaped, or this process has ended the wait for its status.
    status: Option<ExitStatus>,
    /// The last look for the status, and the time that this process has waited for it. `None` unless the process is
    /// known to have ended without a status.
    noticed: Option<(Instant, Duration)>,
    /// True once this process has sent SIGKILL.
    is_killed: bool,
    /// True if this process has ended the wait for the status, so the system may still keep it for this process.
    is_given_up: bool,
    /// CPU use that main read last, or that the template reported.
    cpu_use: CpuUse,
}

impl WorkerProcess {
    /// Starts `program` with `args`, with `lifeline` as its standard input and `output` as its standard
    /// output and error. It inherits all environment variables except `removed`. Its argument 0 is `name`.
    /// For a program with arguments it is the program's path instead, by which interpreters find their
    /// installation. All of its threads are bound to `cpus`; without `cpus` it inherits the mask of this
    /// thread.
    ///
    /// # Errors
    /// If the program cannot be started, or this process may use none of `cpus`.
    ///
    /// # Implementation notes
    /// Uses `posix_spawn`. A `pre_exec` hook would force a real `fork`, which takes 160 ms instead of 1 ms in
    /// a process with 4 GiB resident. A child inherits the mask of the thread that starts it, so a bound
    /// thread starts it: then also the threads that libraries make before the worker's `main` have the mask,
    /// and memory that they touch first is on their node.
    pub fn spawn(
        program: &Path,
        args: &[OsString],
        cpus: Option<&CpuSet>,
        removed: impl IntoIterator<Item = OsString>,
        name: &OsStr,
        lifeline: OwnedFd,
        output: OwnedFd,
    ) -> io::Result<Self> {
        let marker = fstat(&lifeline)?.st_ino.to_string();
        let mut command = Command::new(program);
        command
            .arg0(if args.is_empty() { name } else { program.as_os_str() })
            .args(args)
            .env(MARKER, marker)
            .stdin(lifeline)
            .stdout(output.try_clone()?)
            .stderr(Stdio::from(output));
        for variable in removed {
            command.env_remove(variable);
        }
        let mut start = || start_without_stops(&mut command);
        let child = match cpus {
            None => start()?,
            Some(cpus) => cpus.run(start)??,
        };
        // The process is not reaped yet, because nothing else waits for this pid, so the pid still names this
        // process.
        let pid = Pid::from_raw(child.id().cast_signed());
        Ok(Self::new(pid, open_pidfd(pid).ok().map(HeldFd::of_pidfd), None))
    }

    /// The child `pid` of this process, which has forked it and not reaped it.
    ///
    /// # Errors
    /// If the system provides no pidfd for the child, which is killed and reaped.
    pub fn forked(pid: u32) -> io::Result<Self> {
        let pid = Pid::from_raw(pid.cast_signed());
        match open_pidfd(pid) {
            Ok(pidfd) => Ok(Self::new(pid, Some(HeldFd::of_pidfd(pidfd)), None)),
            Err(error) => {
                let process = Self::new(pid, None, None);
                process.signal(Signal::SIGKILL);
                process.reap_within(REAP_DEADLINE);
                Err(error)
            }
        }
    }

    /// The child `pid` of a template, which reports its end through `report`.
    pub(crate) fn of_template(pid: u32, pidfd: OwnedFd, report: Lifeline) -> Self {
        Self::new(Pid::from_raw(pid.cast_signed()), Some(HeldFd::of_pidfd(pidfd)), Some(report))
    }

    fn new(pid: Pid, pidfd: Option<HeldFd>, report: Option<Lifeline>) -> Self {
        let in_proc = pidfd.as_ref().and_then(HeldFd::number_in_proc);
        let in_proc = in_proc.unwrap_or(pid.as_raw().cast_unsigned());
        Self { pid, in_proc, pidfd, report, end: Mutex::default() }
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.pid.as_raw().cast_unsigned()
    }

    /// The pidfd, which is readable once the process has ended; `None` if the system provides none, or the program
    /// has closed it.
    pub fn pidfd(&self) -> Option<BorrowedFd<'_>> {
        self.pidfd.as_ref()?.get().ok()
    }

    /// What to poll for the end of the process: the pidfd. Once that has shown the end of a template's child,
    /// it is the socket on which the template reports the exit status. `None` if the system provides no
    /// pidfd, and once the pidfd has shown the end of a child whose status is not there yet.
    pub fn end_fd(&self) -> Option<BorrowedFd<'_>> {
        match self.lock().noticed {
            Some(_) => self.report.as_ref().map(AsFd::as_fd),
            None => self.pidfd(),
        }
    }

    /// Reaps the process if it has ended, and returns how it ended; `None` while it runs. The child of a
    /// template is reaped by the template, which reports how it ended. A process that a debugger traces has no status
    /// before the debugger has read it. Without a status a second after the end, the status is SIGKILL if this process
    /// has sent that signal, and unknown otherwise.
    pub fn try_reap(&self) -> Option<ExitStatus> {
        let mut end = self.lock();
        // Without a pidfd, `is_running` returns true for a process that has ended and was not reaped.
        let runs = || self.pidfd().is_some() && self.is_running();
        if end.status.is_none() && !runs() {
            match &self.report {
                None => self.reap(&mut end),
                Some(report) => self.receive_end(report, &mut end),
            }
            if end.status.is_none() && self.has_ended(&end) {
                let (looked, waited) = end.noticed.unwrap_or((Instant::now(), Duration::ZERO));
                // This process may have been stopped since the last look, and the template too.
                let waited = waited + looked.elapsed().min(STATUS_DEADLINE / 2);
                end.noticed = Some((Instant::now(), waited));
                if waited >= STATUS_DEADLINE {
                    end.give_up();
                }
            }
        }
        end.status
    }

    /// True if the process has ended, although it was not reaped. Without a pidfd, an ended process is only told from a
    /// running one if this process has killed it.
    fn has_ended(&self, end: &End) -> bool {
        match self.pidfd() {
            Some(_) => !self.is_running(),
            None => end.is_killed && self.halt() == Some(Halt::MainThreadEnded),
        }
    }

    /// As [`try_reap`](Self::try_reap), but waits for the end, at most for `limit`.
    pub fn reap_within(&self, limit: Duration) -> Option<ExitStatus> {
        let reap = |pause| {
            let status = self.try_reap();
            if status.is_none() {
                thread::sleep(REAP_INTERVAL.min(pause));
            }
            Ok::<_, WaitError>(status)
        };
        Patience::new(limit).wait(reap).ok()
    }

    /// Returns for how long the process has used CPUs, and has waited for them, also after its end.
    pub fn cpu_use(&self) -> CpuUse {
        let mut end = self.lock();
        if end.status.is_none() {
            let read = observed::cpu_use(self.pid(), self.in_proc, end.cpu_use);
            // If a template has reaped the process, its pid may belong to another process.
            if self.report.is_none() || self.is_running() {
                end.cpu_use = read;
            }
        }
        end.cpu_use
    }

    fn reap(&self, end: &mut End) {
        // Read before the process is reaped, because the kernel then discards it.
        let cpu_use = observed::cpu_use(self.pid(), self.in_proc, end.cpu_use);
        end.status = self.wait_status();
        if end.status.is_some_and(|status| status != ExitStatus::Unknown) {
            end.cpu_use = cpu_use;
        }
    }

    /// Reaps the process if it has ended and is a child of this process.
    fn wait_status(&self) -> Option<ExitStatus> {
        let pid = rustix::process::Pid::from_raw(self.pid.as_raw())?;
        loop {
            let id = match self.pidfd() {
                Some(pidfd) => WaitId::PidFd(pidfd),
                // A template may have reaped it, and the pid may be that of another child by now.
                None if self.report.is_some() => return None,
                None => WaitId::Pid(pid),
            };
            match waitid(id, WaitIdOptions::EXITED | WaitIdOptions::NOHANG) {
                Ok(ended) => {
                    let ended = ended?;
                    // `nix` knows no real-time signals, and would fail after the kernel has reaped the process.
                    let killed = ended.terminating_signal();
                    let killed =
                        killed.map(|signal| ExitStatus::Signal { signal, core_dumped: ended.dumped() });
                    return killed.or_else(|| ended.exit_status().map(ExitStatus::Code));
                }
                Err(rustix::io::Errno::INTR) => {}
                // The host has reaped it, or the kernel has, because the host ignores SIGCHLD.
                Err(rustix::io::Errno::CHILD) if !self.is_running() => return Some(ExitStatus::Unknown),
                Err(_) => return None,
            }
        }
    }

    /// Reads what the template has reported about the end of a process that has ended, without waiting.
    fn receive_end(&self, report: &Lifeline, end: &mut End) {
        match report.receive_with_one(Instant::now()) {
            Ok((TemplateReport::Ended { status, cpu_use }, None)) => {
                end.status = Some(status);
                // The template has not seen threads that ended before.
                end.cpu_use = CpuUse { wait: cpu_use.wait.max(end.cpu_use.wait), ..cpu_use };
            }
            Err(LifelineError::TimedOut) => {}
            // The template has ended, or has sent something else. If it has ended, this process is the parent if it is the
            // first one of its PID namespace, or a subreaper.
            _ => {
                self.reap(end);
                if matches!(end.status, None | Some(ExitStatus::Unknown)) {
                    end.give_up();
                }
            }
        }
    }

    /// True if [`try_reap`](Self::try_reap) has seen that the process ended.
    pub fn is_reaped(&self) -> bool {
        self.lock().status.is_some()
    }

    fn lock(&self) -> MutexGuard<'_, End> {
        self.end.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends `signal`. Does nothing if the process has ended.
    pub fn signal(&self, signal: Signal) {
        let mut end = self.lock();
        if end.status.is_some() {
            return;
        }
        end.is_killed |= signal == Signal::SIGKILL;
        drop(end);
        match (self.pidfd(), rustix::process::Signal::from_named_raw(signal as i32)) {
            // An error can only mean that the process is gone already.
            (Some(pidfd), Some(signal)) => drop(pidfd_send_signal(pidfd, signal)),
            // A template may have reaped it, and the pid may be another process's by now.
            (None, _) if self.report.is_some() => {}
            _ => drop(nix::sys::signal::kill(self.pid, signal)),
        }
    }

    /// Returns why the process cannot continue by itself; `None` if it can.
    pub fn halt(&self) -> Option<Halt> {
        observed::halt(self.in_proc)
    }

    /// Returns the private memory of the process in bytes, as the function of this name does; `None` if it has ended.
    pub fn private_memory(&self) -> Option<u64> {
        observed::private_memory_of(&self.in_proc.to_string())
    }

    fn is_running(&self) -> bool {
        match self.pidfd() {
            // Readable means that it has ended. The pid may be another process's by now.
            Some(pidfd) => {
                let fds = &mut [PollFd::new(&pidfd, PollFlags::IN)];
                !poll_until(fds, Instant::now()).unwrap_or(false)
            }
            None => nix::sys::signal::kill(self.pid, None).is_ok(),
        }
    }
}

impl End {
    /// Ends the wait for the exit status.
    fn give_up(&mut self) {
        let killed = ExitStatus::Signal { signal: Signal::SIGKILL as i32, core_dumped: false };
        self.status = Some(if self.is_killed { killed } else { ExitStatus::Unknown });
        self.is_given_up = true;
    }
}

impl Drop for WorkerProcess {
    /// Reaps a process for whose status this process has ended the wait, if the debugger has let it go meanwhile, or if
    /// this process has become its parent.
    fn drop(&mut self) {
        if self.lock().is_given_up {
            self.wait_status();
        }
    }
}

/// True if this thread has called `unshare` or `setns` for a PID namespace. The kernel then refuses it new threads.
pub fn has_other_pid_namespace() -> bool {
    let of_children = "/proc/thread-self/ns/pid_for_children";
    // Linux 4.12 and newer have this link. It has no target before the first child in a new namespace.
    fs::symlink_metadata(of_children).is_ok()
        && fs::read_link("/proc/thread-self/ns/pid")
            .is_ok_and(|own| fs::read_link(of_children).ok() != Some(own))
}

fn open_pidfd(pid: Pid) -> io::Result<OwnedFd> {
    let pid = rustix::process::Pid::from_raw(pid.as_raw()).ok_or(Errno::ESRCH)?;
    Ok(pidfd_open(pid, PidfdFlags::NONBLOCK)?)
}

/// The numbers of the signals that do not end a worker or a template if another process sends them: a terminal or a
/// launcher sends them to the whole process group, and means main. A handler of user code runs as usual.
///
/// These are all signals that end a process by default, except SIGKILL, SIGTERM, which ends a worker, and those of an
/// error in the process itself. `docs/protocol.md` has the alternatives.
pub fn signals_for_main() -> impl Iterator<Item = c_int> {
    NAMED_FOR_MAIN.into_iter().map(|signal| signal as c_int).chain(SIGRTMIN()..=SIGRTMAX())
}

/// [`signals_for_main`] without the real-time signals, whose numbers the C library knows.
const NAMED_FOR_MAIN: [Signal; 12] = [
    Signal::SIGHUP,
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGALRM,
    Signal::SIGSTKFLT,
    Signal::SIGXCPU,
    Signal::SIGVTALRM,
    Signal::SIGPROF,
    Signal::SIGIO,
    Signal::SIGPWR,
];

/// Starts a program while SIGTSTP and [`signals_for_main`] are blocked: a Ctrl-Z between `vfork` and `exec` would
/// stop the child, and with it this thread. The program inherits the mask, so none of these signals ends it before
/// it has its own actions for them.
fn start_without_stops(command: &mut Command) -> io::Result<Child> {
    let blocked = signal_set(signals_for_main().chain([Signal::SIGTSTP as c_int]));
    let mask = blocked.thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
    let child = command.spawn();
    mask.thread_set_mask()?;
    child
}

/// True once this process has taken over its lifeline. From then on its standard input is another file.
static IS_WORKER: AtomicBool = AtomicBool::new(false);

/// True if this process was started as a worker or as a template: its standard input is the socket that the
/// environment names. A worker that a template has forked is one too.
pub fn is_worker() -> bool {
    // Relaxed: the flag guards no other data, and it is set before the worker runs anything else.
    if IS_WORKER.load(Ordering::Relaxed) {
        return true;
    }
    let Some(marker) = std::env::var_os(MARKER) else {
        return false;
    };
    let Ok(stdin) = fstat(io::stdin().as_fd()) else {
        return false;
    };
    let kind = SFlag::from_bits_truncate(stdin.st_mode) & SFlag::S_IFMT;
    kind == SFlag::S_IFSOCK && marker == OsStr::new(&stdin.st_ino.to_string())
}

/// Marks this process, a fork of its parent that has executed no program, as a worker or a template.
pub fn mark_as_worker() {
    // Relaxed: as in `is_worker`.
    IS_WORKER.store(true, Ordering::Relaxed);
}

/// Takes over standard input as the lifeline, and replaces it by an empty pipe, so that user code that reads
/// standard input does not read the protocol. `/dev/null` would not do, because some containers lack it.
///
/// # Errors
/// If a descriptor cannot be made.
pub fn take_lifeline_from_stdin() -> io::Result<Lifeline> {
    let socket: OwnedFd = io::stdin().as_fd().try_clone_to_owned()?;
    empty_stdin()?;
    mark_as_worker();
    Ok(Lifeline::from_socket(socket))
}

/// Replaces standard input by an empty pipe.
///
/// # Errors
/// If a descriptor cannot be made.
pub fn empty_stdin() -> io::Result<()> {
    let (empty, _) = io::pipe()?;
    nix::unistd::dup2_stdin(&empty)?;
    Ok(())
}

/// Returns `program` as an absolute path, because main's working directory may have changed when a worker is
/// started. A name without a slash is looked up in `PATH`, and then in the working directory. Links are not
/// resolved: the interpreter of a virtual environment is a link, and finds the environment by the link's
/// path.
///
/// # Errors
/// `NotFound` if there is no such file.
pub fn locate(program: &Path) -> io::Result<PathBuf> {
    let is_name = program.components().count() == 1 && !program.as_os_str().as_bytes().contains(&b'/');
    let folders = std::env::var_os("PATH").filter(|_| is_name).unwrap_or_default();
    let found =
        std::env::split_paths(&folders).map(|folder| folder.join(program)).find(|path| path.is_file());
    let path = std::path::absolute(found.as_deref().unwrap_or(program))?;
    fs::metadata(&path).map(|_| path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> WorkerProcess {
        let (_lifeline, theirs) = Lifeline::pair().unwrap();
        let args = ["-c".into(), script.into()];
        let output = fs::File::create("/dev/null").unwrap().into();
        WorkerProcess::spawn("/bin/sh".as_ref(), &args, None, [], "sh".as_ref(), theirs, output).unwrap()
    }

    fn end_of(process: &WorkerProcess) -> ExitStatus {
        process.reap_within(Duration::from_secs(60)).expect("the shell ends")
    }

    #[test]
    fn all_signals_that_end_a_process_are_for_main_unless_they_mean_the_process_itself() {
        let of_the_process = [
            Signal::SIGKILL,
            Signal::SIGTERM,
            Signal::SIGILL,
            Signal::SIGTRAP,
            Signal::SIGABRT,
            Signal::SIGBUS,
            Signal::SIGFPE,
            Signal::SIGSEGV,
            Signal::SIGPIPE,
            Signal::SIGXFSZ,
            Signal::SIGSYS,
        ];
        let ending_none = [
            Signal::SIGCHLD,
            Signal::SIGCONT,
            Signal::SIGSTOP,
            Signal::SIGTSTP,
            Signal::SIGTTIN,
            Signal::SIGTTOU,
            Signal::SIGURG,
            Signal::SIGWINCH,
        ];
        let for_main: Vec<_> = signals_for_main().collect();
        for signal in Signal::iterator() {
            let is_other = of_the_process.contains(&signal) || ending_none.contains(&signal);
            assert_eq!(for_main.contains(&(signal as c_int)), !is_other, "{signal}");
        }
        assert!([SIGRTMIN(), SIGRTMAX()].iter().all(|number| for_main.contains(number)));
    }

    #[test]
    #[expect(clippy::zombie_processes, reason = "`WorkerProcess` reaps it")]
    fn the_status_of_a_process_that_a_real_time_signal_ends_is_known() {
        // `WorkerProcess::spawn` blocks the signal, and a shell cannot unblock it.
        let child = Command::new("/bin/sh").args(["-c", "kill -40 $$"]).spawn().unwrap();
        let process = WorkerProcess::forked(child.id()).unwrap();
        assert_eq!(end_of(&process), ExitStatus::Signal { signal: 40, core_dumped: false });
        assert_eq!(end_of(&shell("exit 7")), ExitStatus::Code(7));
    }

    #[test]
    fn the_processor_time_of_a_process_is_known_after_its_end() {
        let process = shell("i=0; while [ $i -lt 50000 ]; do i=$((i+1)); done");
        end_of(&process);
        assert!(process.cpu_use().time > Duration::from_millis(5), "{:?}", process.cpu_use());
        assert_eq!(cpu_time(process.pid()), None);
    }
}
