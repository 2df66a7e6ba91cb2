//! The watchdog: a thread that ends this process when main is gone, whatever the other threads are doing.

use std::{
    io,
    os::fd::AsFd,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use loader_ipc::{
    exit_now,
    lifeline::{Lifeline, poll_until},
    socket_file::remove_socket,
};
use nix::unistd::{Pid, getppid};
use rustix::{
    event::{PollFd, PollFlags},
    process::{PidfdFlags, pidfd_open},
};

use crate::inherited::main_pidfd;

/// Interval at which the watchdog also compares the parent's pid with main's. The comparison shows the end of
/// main even if neither the lifeline nor the pidfd shows it.
const SLOW_POLL: Duration = Duration::from_millis(500);
/// Exit code of a worker whose main is gone. No process reads it.
const ORPHANED: i32 = 1;

/// The running watchdog.
#[derive(Debug)]
pub(crate) struct Watchdog {
    /// The socket to remove before the process ends.
    socket: Arc<Mutex<Option<PathBuf>>>,
}

impl Watchdog {
    /// Starts the watchdog. The watchdog ends the process when the lifeline is closed (main has ended, called
    /// `exec`, or dropped it), or when main's pidfd becomes readable (main has ended, but a forked child of
    /// main may hold the lifeline open). Before it ends the process, it
    /// removes `socket` and the socket's folder.
    ///
    /// Alternative considered: `PR_SET_PDEATHSIG`. Rejected because it fires when the *thread* that started
    /// this process ends.
    pub(crate) fn start(lifeline: Arc<Lifeline>, main_pid: u32, socket: PathBuf) -> io::Result<Self> {
        let main = Pid::from_raw(main_pid.cast_signed());
        let socket = Arc::new(Mutex::new(Some(socket)));
        let thread = Thread { lifeline, main, socket: Arc::clone(&socket) };
        thread::Builder::new()
            .name("loader-watchdog".into())
            .stack_size(256 * 1024)
            .spawn(move || thread.run())?;
        Ok(Self { socket })
    }

    /// Tells the watchdog that the socket has been removed.
    pub(crate) fn forget_socket(&self) {
        self.socket.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

struct Thread {
    lifeline: Arc<Lifeline>,
    main: Pid,
    socket: Arc<Mutex<Option<PathBuf>>>,
}

impl Thread {
    fn run(&self) {
        // The parent of a forked worker is its template, which has opened main's pidfd. The end of the template
        // does not end the worker.
        let inherited = main_pidfd();
        let pid = rustix::process::Pid::from_raw(self.main.as_raw()).filter(|_| inherited.is_none());
        let opened = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        let pidfd = inherited.or(opened.as_ref());
        // `getppid` is called after the pidfd is opened: if the parent is still main, the pidfd is main's.
        while inherited.is_some() || getppid() == self.main {
            // POLLHUP is always reported. POLLIN is not requested, because another thread reads the messages.
            let mut fds = vec![PollFd::from_borrowed_fd(self.lifeline.as_fd(), PollFlags::RDHUP)];
            fds.extend(pidfd.map(|pidfd| PollFd::new(pidfd, PollFlags::IN)));
            if poll_until(&mut fds, Instant::now() + SLOW_POLL).unwrap_or(true) {
                break;
            }
        }
        if let Some(socket) = self.socket.lock().unwrap_or_else(PoisonError::into_inner).take() {
            remove_socket(&socket);
        }
        exit_now(ORPHANED);
    }
}
