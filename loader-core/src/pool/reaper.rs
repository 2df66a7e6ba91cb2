//! The thread that sees workers die: it waits on their pidfds and on SIGCHLD, reaps them, and puts `Exited` into the result
//! queue, behind everything that the worker had sent. It also passes on what they print.

use std::{
    io,
    os::{
        fd::{AsFd, BorrowedFd},
        unix::net::UnixStream,
    },
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use loader_ipc::{
    frame::{Event, Report},
    process::WorkerProcess,
    queue::Sender,
};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use signal_hook::{SigId, consts::SIGCHLD, low_level};

use super::output::Output;

/// The net under pidfds and SIGCHLD: workers are looked at this often in any case.
const SLOW_POLL: Duration = Duration::from_secs(1);
/// The same where the kernel has no pidfds.
const FAST_POLL: Duration = Duration::from_millis(50);

/// The running thread.
#[derive(Debug)]
pub(super) struct Reaper {
    thread: JoinHandle<()>,
    stop: Arc<AtomicBool>,
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
    /// Starts watching. `handle_sigchld`: also install a SIGCHLD handler (it chains to the one that is there).
    pub(super) fn start(
        workers: Vec<Watched>,
        results: Sender<Report>,
        handle_sigchld: bool,
    ) -> io::Result<Self> {
        let (wake, woken) = UnixStream::pair()?;
        wake.set_nonblocking(true)?;
        woken.set_nonblocking(true)?;
        let sigchld = match handle_sigchld {
            // The handler only writes a byte to the socket.
            true => Some(low_level::pipe::register(SIGCHLD, wake.try_clone()?)?),
            false => None,
        };
        let stop = Arc::new(AtomicBool::new(false));
        let watch = Watch { workers, results, woken, stop: Arc::clone(&stop) };
        let thread = thread::Builder::new().name("loader-reaper".into()).spawn(move || watch.run())?;
        Ok(Self { thread, stop, wake, sigchld })
    }

    /// Ends the thread. It ends by itself when every worker is reaped.
    pub(super) fn stop(self) {
        // Release: the thread sees everything before; it only reads the flag.
        self.stop.store(true, Ordering::Release);
        // A full socket wakes it just as well.
        drop(io::Write::write(&mut &self.wake, &[0]));
        if let Some(id) = self.sigchld {
            low_level::unregister(id);
        }
        // The thread never waits for anything without a deadline but its own write to the result queue, which ends when the
        // receiver is dropped or read; a panic in it has been printed.
        drop(self.thread.join());
    }
}

struct Watch {
    workers: Vec<Watched>,
    results: Sender<Report>,
    woken: UnixStream,
    stop: Arc<AtomicBool>,
}

impl Watch {
    fn run(mut self) {
        loop {
            for number in 0..self.workers.len() {
                self.look_at(number);
            }
            let all_reaped = self.workers.iter().all(|worker| worker.process.is_reaped());
            // Acquire: pairs with the Release in `stop`.
            if all_reaped || self.stop.load(Ordering::Acquire) {
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
            output.flush();
        }
        let event = Event::Exited { pid: worker.process.pid(), status };
        let report = Report { worker: u32::try_from(number).expect("as many workers as processes"), event };
        // A closed queue means that nobody is interested any more.
        drop(self.results.send(&report));
    }

    fn wait(&self) {
        let running = || self.workers.iter().filter(|worker| !worker.process.is_reaped());
        let pidfds = running().filter_map(|worker| worker.process.pidfd());
        let outputs = running().filter_map(|worker| worker.output.as_ref().map(AsFd::as_fd));
        let fds: Vec<BorrowedFd<'_>> = pidfds.chain(outputs).chain([self.woken.as_fd()]).collect();
        let mut fds: Vec<PollFd<'_>> = fds.into_iter().map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
        let longest =
            if running().all(|worker| worker.process.pidfd().is_some()) { SLOW_POLL } else { FAST_POLL };
        let timeout = PollTimeout::try_from(longest).unwrap_or(PollTimeout::ZERO);
        // Any outcome, EINTR too, leads to another look at every worker.
        let _ = poll(&mut fds, timeout);
        let mut bytes = [0; 64];
        while io::Read::read(&mut &self.woken, &mut bytes).is_ok_and(|count| count == bytes.len()) {}
    }
}
