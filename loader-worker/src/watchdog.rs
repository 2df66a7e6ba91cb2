//! The thread that ends this process when its main process is gone, whatever the other threads are stuck in.

use std::{
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use loader_ipc::{
    exit_now,
    lifeline::{Lifeline, poll_until},
};
use nix::unistd::getppid;
use rustix::{
    event::{PollFd, PollFlags},
    process::{Pid, PidfdFlags, pidfd_open},
};

/// The slow poll under the two descriptors: it notices a parent that died in a way that neither of them shows.
const SLOW_POLL: Duration = Duration::from_millis(500);
/// Exit code of a worker whose main process is gone; nobody is left to read it.
const ORPHANED: i32 = 1;

/// Starts watching. The process ends at once when the lifeline is closed (main died, exec'ed, or dropped it), or main's pidfd
/// says that it died (a forked child of it may hold the lifeline open).
///
/// Not `PR_SET_PDEATHSIG`: it fires when the *thread* that started this process ends.
pub(crate) fn start(lifeline: Arc<Lifeline>) -> std::io::Result<()> {
    let parent = getppid();
    let pidfd: Option<OwnedFd> =
        Pid::from_raw(parent.as_raw()).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
    thread::Builder::new().name("loader-watchdog".into()).stack_size(64 * 1024).spawn(move || {
        loop {
            // POLLHUP is always reported; POLLIN is not asked for, since messages are the other thread's.
            let mut fds = vec![PollFd::from_borrowed_fd(lifeline.as_fd(), PollFlags::RDHUP)];
            fds.extend(pidfd.as_ref().map(|pidfd| PollFd::new(pidfd, PollFlags::IN)));
            let gone = poll_until(&mut fds, Instant::now() + SLOW_POLL).unwrap_or(true);
            if gone || getppid() != parent {
                exit_now(ORPHANED);
            }
        }
    })?;
    Ok(())
}

/// Ends the process if its parent is not `main_pid`: main died before the watchdog had its pidfd.
pub(crate) fn check_parent(main_pid: u32) {
    if u32::try_from(getppid().as_raw()) != Ok(main_pid) {
        exit_now(ORPHANED);
    }
}
