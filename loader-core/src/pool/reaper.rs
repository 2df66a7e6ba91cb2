//! The thread that sees workers die: it waits on their pidfds and on SIGCHLD, reaps them, and puts an exit into the result
//! queue, behind everything that the worker had sent. It also passes on what they print.

use std::{
    io,
    os::{fd::AsFd, unix::net::UnixStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use loader_ipc::{frame::Report, process::WorkerProcess, queue::NoteSender};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use signal_hook::{SigId, consts::SIGCHLD, low_level};

use super::output::Output;

/// The net under pidfds and SIGCHLD: workers are looked at this often in any case.
const SLOW_POLL: Duration = Duration::from_secs(1);
/// The same where the kernel has no pidfds.
const FAST_POLL: Duration = Duration::from_millis(50);

/// How long the thread may take to end.
const STOP_DEADLINE: Duration = Duration::from_secs(1);

/// The running thread.
#[derive(Debug)]
pub(super) struct Reaper {
    thread: JoinHandle<()>,
    stop: Arc<AtomicBool>,
    /// Workers in the place of those that ended, each with its number.
    replacements: mpsc::Sender<(usize, Watched)>,
    wake: UnixStream,
    sigchld: Option<SigId>,
}

/// One worker as the reaper sees it.
#[derive(Debug)]
pub(super) struct Watched {
    pub(super) process: Arc<WorkerProcess>,
    pub(super) output: Option<Output>,
}

impl Reaper {
    /// Starts watching. `handle_sigchld`: also install a SIGCHLD handler. It chains to the one that is there; where the host ignores
    /// SIGCHLD it is left out, since to ignore it again cannot be chained to.
    pub(super) fn start(
        workers: Vec<Watched>,
        results: NoteSender,
        handle_sigchld: bool,
    ) -> io::Result<Self> {
        let (wake, woken) = UnixStream::pair()?;
        wake.set_nonblocking(true)?;
        woken.set_nonblocking(true)?;
        let sigchld = match handle_sigchld && !is_sigchld_ignored() {
            // The handler only writes a byte to the socket.
            true => Some(low_level::pipe::register(SIGCHLD, wake.try_clone()?)?),
            false => None,
        };
        let stop = Arc::new(AtomicBool::new(false));
        let (replacements, replaced) = mpsc::channel();
        let watch = Watch { workers, replaced, results, woken, stop: Arc::clone(&stop) };
        let thread = thread::Builder::new().name("loader-reaper".into()).spawn(move || watch.run());
        match thread {
            Ok(thread) => Ok(Self { thread, stop, replacements, wake, sigchld }),
            Err(error) => {
                sigchld.map(low_level::unregister);
                Err(error)
            }
        }
    }

    /// Watches another process in the place of the worker `number`, which has ended.
    pub(super) fn watch(&self, number: usize, worker: Watched) {
        // Without the thread, which a host may have stopped, main looks at its workers itself.
        drop(self.replacements.send((number, worker)));
        self.wake();
    }

    /// Ends the thread.
    pub(super) fn stop(self) {
        // Release: the thread sees everything before; it only reads the flag.
        self.stop.store(true, Ordering::Release);
        self.wake();
        if let Some(id) = self.sigchld {
            low_level::unregister(id);
        }
        // It waits for nothing without a deadline, but a host may have stopped it, or filled the channel that wakes main: then leave it.
        let deadline = Instant::now() + STOP_DEADLINE;
        while !self.thread.is_finished() && Instant::now() < deadline {
            thread::sleep(Duration::from_micros(200));
        }
    }

    fn wake(&self) {
        // A full socket wakes it just as well.
        drop(io::Write::write(&mut &self.wake, &[0]));
    }
}

struct Watch {
    workers: Vec<Watched>,
    replaced: mpsc::Receiver<(usize, Watched)>,
    results: NoteSender,
    woken: UnixStream,
    stop: Arc<AtomicBool>,
}

impl Watch {
    fn run(mut self) {
        loop {
            while let Ok((number, worker)) = self.replaced.try_recv() {
                self.workers[number] = worker;
            }
            for number in 0..self.workers.len() {
                self.look_at(number);
            }
            // Acquire: pairs with the Release in `stop`.
            if self.stop.load(Ordering::Acquire) {
                return;
            }
            self.wait();
        }
    }

    /// Passes on a worker's output, and reaps and reports it if it has ended.
    fn look_at(&mut self, number: usize) {
        let worker = &mut self.workers[number];
        if worker.process.is_reaped() {
            return;
        }
        // The order matters: what a worker printed before it died is read after its death is certain.
        let status = worker.process.try_reap();
        if worker.output.as_mut().is_some_and(|output| !output.relay()) {
            worker.output = None;
        }
        let Some(status) = status else { return };
        // A process that the worker started may hold the pipe open: do not wait for its end.
        if let Some(mut output) = worker.output.take() {
            output.last_words();
        }
        self.results.send(Report::Exited { worker: number, pid: worker.process.pid(), status });
    }

    fn wait(&self) {
        let running = || self.workers.iter().filter(|worker| !worker.process.is_reaped());
        let readable = |fd| PollFd::new(fd, PollFlags::POLLIN);
        let pidfds = running().filter_map(|worker| worker.process.pidfd()).map(readable);
        let outputs = running().filter_map(|worker| worker.output.as_ref().map(Output::poll_fd));
        let mut fds: Vec<PollFd<'_>> = pidfds.chain(outputs).chain([readable(self.woken.as_fd())]).collect();
        let longest =
            if running().all(|worker| worker.process.pidfd().is_some()) { SLOW_POLL } else { FAST_POLL };
        let timeout = PollTimeout::try_from(longest).unwrap_or(PollTimeout::ZERO);
        // Any outcome, EINTR too, leads to another look at every worker.
        let _ = poll(&mut fds, timeout);
        let mut bytes = [0; 64];
        while io::Read::read(&mut &self.woken, &mut bytes).is_ok_and(|count| count == bytes.len()) {}
    }
}

fn is_sigchld_ignored() -> bool {
    // A mask in hexadecimal, bit 0 for signal 1.
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask =
        status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("SigIgn:")?.trim(), 16).ok());
    mask.is_some_and(|mask| mask & (1 << (SIGCHLD - 1)) != 0)
}
