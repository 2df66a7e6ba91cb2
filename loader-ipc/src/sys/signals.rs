//! Sets signal actions that a worker must not inherit, and removes pending signals.

use std::ptr;

use nix::{
    libc,
    sys::signal::{SigHandler, SigSet, Signal, signal},
};

/// Restores the default action of SIGCHLD. A process inherits an ignored signal through exec, and a worker
/// whose host ignores SIGCHLD could not wait for the programs that its dataset starts.
pub fn default_sigchld() {
    // SAFETY: the default action installs no handler, so no code can run at a wrong time.
    let set = unsafe { signal(Signal::SIGCHLD, SigHandler::SigDfl) };
    // The call cannot fail for a valid signal. If it did, the action would not change.
    let _ = set;
}

/// Ignores SIGPIPE, as Rust does before `main`. A worker may begin before that, and user code that writes to
/// a closed pipe must get an error there too.
pub(crate) fn ignore_sigpipe() {
    // SAFETY: ignoring a signal installs no handler, so no code can run at a wrong time.
    let set = unsafe { signal(Signal::SIGPIPE, SigHandler::SigIgn) };
    // This call cannot fail either.
    let _ = set;
}

/// Removes one pending signal of `signals`, which this thread must have blocked, so that the signal is never
/// delivered.
pub(crate) fn take_pending(signals: &SigSet) {
    let no_wait = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the set and the time outlive the call, and the pointer for details about the signal may be
    // null.
    let taken = unsafe { libc::sigtimedwait(signals.as_ref(), ptr::null_mut(), &no_wait) };
    // An error only means that no such signal was pending.
    let _ = taken;
}
