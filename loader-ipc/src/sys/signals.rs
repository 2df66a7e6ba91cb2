//! Signal actions that a worker must not keep as it finds them, and a signal that is taken instead of delivered.

use std::ptr;

use nix::{
    libc,
    sys::signal::{SigHandler, SigSet, Signal, signal},
};

/// Puts SIGCHLD back to its default. "Ignored" is inherited through exec, and a worker whose host ignores SIGCHLD could not wait for
/// the programs that its dataset starts.
pub fn default_sigchld() {
    // SAFETY: setting a default action installs no code, so nothing can be called at a wrong time.
    let set = unsafe { signal(Signal::SIGCHLD, SigHandler::SigDfl) };
    // It cannot fail for a valid signal, and if it did, all would be as before.
    let _ = set;
}

/// Ignores SIGPIPE, as Rust does before `main`: a worker may have begun before that, and user code that writes to a closed pipe must
/// get an error there too.
pub(crate) fn ignore_sigpipe() {
    // SAFETY: ignoring a signal installs no code, so nothing can be called at a wrong time.
    let set = unsafe { signal(Signal::SIGPIPE, SigHandler::SigIgn) };
    // As above.
    let _ = set;
}

/// Takes one of `signals` that is pending, if this thread has them blocked, so that it is never delivered.
pub(crate) fn take_pending(signals: &SigSet) {
    let at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: both pointers are to values that outlive the call; that nobody wants to know more of the signal may be null.
    let taken = unsafe { libc::sigtimedwait(signals.as_ref(), ptr::null_mut(), &at_once) };
    // None was pending, or one was taken: either is fine.
    let _ = taken;
}
