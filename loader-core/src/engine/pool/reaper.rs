//! The reaper: a thread that waits on the pidfds of workers and on SIGCHLD, reaps workers that have ended,
//! and puts a report of each exit into the result queue, after everything that the worker sent. It also
//! passes on what workers print.

use std::{
    io,
    os::fd::AsFd,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use loader_ipc::{
    WakeSocket, WokenSocket, frame::Report, patience::Patience, process::WorkerProcess, queue::NoteSender,
    wake_on_sigchld, wake_sockets,
};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use signal_hook::{SigId, consts::SIGCHLD, low_level};

use super::output::Output;

/// Maximum time between two checks of all workers, in case neither a pidfd nor SIGCHLD wakes the reaper.
const SLOW_POLL: Duration = Duration::from_secs(1);
/// The same if a worker has no pidfd, because the kernel does not support them.
const FAST_POLL: Duration = Duration::from_millis(50);

/// Maximum time for the thread to end.
const STOP_DEADLINE: Duration = Duration::from_secs(1);

/// Handle of the reaper's thread.
#[derive(Debug)]
pub(super) struct Reaper {
    thread: JoinHandle<()>,
    stop: Arc<AtomicBool>,
    /// Sends the thread processes that were started later, each with the number of its worker.
    replacements: mpsc::Sender<(usize, Watched)>,
    wake: Arc<WakeSocket>,
    sigchld: Option<SigId>,
}

/// A worker's process and its output, as the reaper watches them.
#[derive(Debug)]
pub(super) struct Watched {
    pub(super) process: Arc<WorkerProcess>,
    pub(super) output: Option<Output>,
}

impl Reaper {
    /// Starts the thread. With `handle_sigchld`, also installs a SIGCHLD handler that calls the previous
    /// handler. If the host ignores SIGCHLD, no handler is installed, since a handler cannot chain to
    /// SIG_IGN.
    pub(super) fn start(
        workers: Vec<Watched>,
        results: NoteSender,
        handle_sigchld: bool,
    ) -> io::Result<Self> {
        let (wake, woken) = wake_sockets()?;
        let wake = Arc::new(wake);
        let sigchld = if handle_sigchld && !is_sigchld_ignored() {
            Some(wake_on_sigchld(Arc::clone(&wake))?)
        } else {
            None
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

    /// Watches the process of worker `number`, which is new or replaces the ended one.
    pub(super) fn watch(&self, number: usize, worker: Watched) {
        // If the thread is gone because the host stopped it, main checks its workers itself.
        drop(self.replacements.send((number, worker)));
        self.wake();
    }

    /// Ends the thread, and waits for it until a deadline.
    pub(super) fn stop(self) {
        // Release: the thread sees everything that happened before; it reads only the flag.
        self.stop.store(true, Ordering::Release);
        self.wake();
        if let Some(id) = self.sigchld {
            low_level::unregister(id);
        }
        // Every wait of the thread has a deadline. But the host may have stopped the thread, or the channel
        // that wakes main may be full. In these cases the thread is left behind.
        let mut patience = Patience::new(STOP_DEADLINE);
        while !self.thread.is_finished() && !patience.is_over() {
            patience.step(|_| thread::sleep(Duration::from_micros(200)));
        }
    }

    fn wake(&self) {
        self.wake.wake();
    }
}

struct Watch {
    workers: Vec<Watched>,
    replaced: mpsc::Receiver<(usize, Watched)>,
    results: NoteSender,
    woken: WokenSocket,
    stop: Arc<AtomicBool>,
}

impl Watch {
    fn run(mut self) {
        loop {
            while let Ok((number, worker)) = self.replaced.try_recv() {
                match self.workers.get_mut(number) {
                    Some(ended) => *ended = worker,
                    None => self.workers.push(worker),
                }
            }
            for number in 0..self.workers.len() {
                self.check_worker(number);
            }
            // Acquire: pairs with the Release in `stop`.
            if self.stop.load(Ordering::Acquire) {
                return;
            }
            self.wait();
        }
    }

    /// Passes on a worker's output, and reaps and reports it if it has ended.
    fn check_worker(&mut self, number: usize) {
        let worker = &mut self.workers[number];
        if worker.process.is_reaped() {
            return;
        }
        // Reap first, then read: if the worker has ended, this reads everything that it printed.
        let status = worker.process.try_reap();
        if worker.output.as_mut().is_some_and(|output| !output.relay()) {
            worker.output = None;
        }
        let Some(status) = status else { return };
        // A process that the worker started may keep the pipe open, so do not wait for the end of the output.
        if let Some(output) = worker.output.take() {
            output.finish();
        }
        self.results.send(Report::Exited { worker: number, pid: worker.process.pid(), status });
    }

    fn wait(&self) {
        let running = || self.workers.iter().filter(|worker| !worker.process.is_reaped());
        let readable = |fd| PollFd::new(fd, PollFlags::POLLIN);
        let ends = running().filter_map(|worker| worker.process.end_fd()).map(readable);
        let outputs = running().filter_map(|worker| worker.output.as_ref().map(Output::poll_fd));
        let mut fds: Vec<PollFd<'_>> = ends.chain(outputs).chain([readable(self.woken.as_fd())]).collect();
        let longest =
            if running().all(|worker| worker.process.pidfd().is_some()) { SLOW_POLL } else { FAST_POLL };
        let timeout = PollTimeout::try_from(longest).unwrap_or(PollTimeout::ZERO);
        // After any result, including EINTR, the thread checks every worker again.
        let _ = poll(&mut fds, timeout);
        self.woken.clear();
    }
}

fn is_sigchld_ignored() -> bool {
    // The mask is hexadecimal; bit 0 stands for signal 1.
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask =
        status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("SigIgn:")?.trim(), 16).ok());
    mask.is_some_and(|mask| mask & (1 << (SIGCHLD - 1)) != 0)
}
