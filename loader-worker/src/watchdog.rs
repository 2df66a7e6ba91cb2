//! The thread that ends this process when its main process is gone, whatever the other threads are stuck in.

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

/// The slow poll under the two descriptors: it notices a parent that died in a way that neither of them shows.
const SLOW_POLL: Duration = Duration::from_millis(500);
/// Exit code of a worker whose main process is gone; nobody is left to read it.
const ORPHANED: i32 = 1;

/// The running thread.
#[derive(Debug)]
pub(crate) struct Watchdog {
    /// A socket to remove before the process ends.
    socket: Arc<Mutex<Option<PathBuf>>>,
}

impl Watchdog {
    /// Starts watching. The process ends at once when the lifeline is closed (main died, exec'ed, or dropped it), or main's
    /// pidfd says that it died (a forked child of it may hold the lifeline open). `socket` is removed then, with its folder.
    ///
    /// Not `PR_SET_PDEATHSIG`: it fires when the *thread* that started this process ends.
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

    /// Says that the socket is gone already.
    pub(crate) fn nothing_to_clean_up(&self) {
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
        let pid = rustix::process::Pid::from_raw(self.main.as_raw());
        let pidfd = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        // The parent is asked for after the pidfd is open: if it is still main, the pidfd is main's.
        while getppid() == self.main {
            // POLLHUP is always reported; POLLIN is not asked for, since messages are the other thread's.
            let mut fds = vec![PollFd::from_borrowed_fd(self.lifeline.as_fd(), PollFlags::RDHUP)];
            fds.extend(pidfd.as_ref().map(|pidfd| PollFd::new(pidfd, PollFlags::IN)));
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
