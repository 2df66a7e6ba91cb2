//! Sets signal actions that a worker needs or must not inherit, and removes pending signals.

use std::{io, mem::MaybeUninit, ptr};

use nix::{
    errno::Errno,
    libc,
    sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction, signal},
};

/// Restores the default action of SIGCHLD. A process inherits an ignored signal through exec, and a worker
/// whose host ignores SIGCHLD could not wait for the programs that its dataset starts.
pub fn default_sigchld() {
    // SAFETY: the default action installs no handler, so no code can run at a wrong time.
    let set = unsafe { signal(Signal::SIGCHLD, SigHandler::SigDfl) };
    // The call cannot fail for a valid signal. If it did, the action would not change.
    let _ = set;
}

/// Makes `which` do nothing in this process if its action is the default one, which ends the process. A handler that
/// user code has installed, and an inherited SIG_IGN, stay.
///
/// Installs a handler instead of SIG_IGN, because programs that this process starts would inherit SIG_IGN. User code
/// that installs a handler later replaces this one.
///
/// # Errors
/// If the system refuses.
pub fn ignore_by_default(which: Signal) -> io::Result<()> {
    extern "C" fn do_nothing(_signal: libc::c_int) {}

    let mut present = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: without a new action the call only writes the present one into `present`, which outlives the call.
    Errno::result(unsafe { libc::sigaction(which as libc::c_int, ptr::null(), present.as_mut_ptr()) })?;
    // SAFETY: the call has succeeded, so it has written the action.
    let present = unsafe { present.assume_init() };
    if present.sa_sigaction == libc::SIG_DFL {
        let flags = SaFlags::SA_RESTART | SaFlags::SA_ONSTACK;
        // Blocks all signals in the handler: the frames of several signals at once do not fit on an alternative stack.
        let action = SigAction::new(SigHandler::Handler(do_nothing), flags, SigSet::all());
        // SAFETY: the handler does nothing, so it may run at any time.
        unsafe { sigaction(which, &action) }?;
    }
    Ok(())
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
