//! System calls with signals held back: those that a signal must not interrupt, and those that bring one about with their error, which
//! is deadly where the program has it at its default.

use std::sync::atomic::{AtomicBool, Ordering};

use nix::sys::signal::{SigSet, SigmaskHow, Signal};

use crate::sys;

static IS_SIGPIPE_IGNORED: AtomicBool = AtomicBool::new(false);

/// Ignores SIGPIPE in this process, as Rust does before `main`: a worker may have begun before that, and user code that writes to a
/// closed pipe must get an error there too.
pub fn ignore_sigpipe() {
    sys::ignore_sigpipe();
    // Relaxed: it only saves system calls.
    IS_SIGPIPE_IGNORED.store(true, Ordering::Relaxed);
}

/// Runs `send`; the other side may be gone, and ipc-channel cannot be told to leave out the SIGPIPE that comes with that error.
pub(crate) fn without_sigpipe<T, E>(send: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
    if IS_SIGPIPE_IGNORED.load(Ordering::Relaxed) { send() } else { without(Signal::SIGPIPE, send) }
}

/// Runs `call`; a `signal` that comes with its error is never delivered.
pub(crate) fn without<T, E>(signal: Signal, call: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
    let set = SigSet::from(signal);
    while_blocked(&set, |before| {
        let result = call();
        // Where the program has it blocked, it may wait for one of its own.
        if result.is_err() && !before.contains(signal) {
            sys::take_pending(&set);
        }
        result
    })
}

/// Runs `call`, which no signal interrupts: one that begins from the start when it was interrupted might never end.
pub(crate) fn uninterrupted<T>(call: impl FnOnce() -> T) -> T {
    while_blocked(&SigSet::all(), |_| call())
}

/// Runs `call`, given the signals that were blocked before, with `signals` blocked in this thread too.
fn while_blocked<T>(signals: &SigSet, call: impl FnOnce(&SigSet) -> T) -> T {
    // It cannot fail: the arguments are valid.
    let Ok(before) = signals.thread_swap_mask(SigmaskHow::SIG_BLOCK) else { return call(&SigSet::all()) };
    let result = call(&before);
    let _ = before.thread_set_mask();
    result
}

#[cfg(test)]
mod tests {
    use nix::sys::signalfd::{SfdFlags, SignalFd};
    use rustix::{
        io::Errno,
        net::{AddressFamily, SendFlags, SocketFlags, SocketType, send, socketpair},
    };

    use super::*;

    #[test]
    fn the_signal_of_a_broken_pipe_is_not_left_pending() {
        let pipe = SigSet::from(Signal::SIGPIPE);
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        drop(theirs);
        let sent = without_sigpipe(|| send(&ours, b"hello", SendFlags::empty()));
        assert_eq!(sent, Err(Errno::PIPE));
        assert!(!SigSet::thread_get_mask().unwrap().contains(Signal::SIGPIPE), "the mask is as it was");
        pipe.thread_block().unwrap();
        let pending = SignalFd::with_flags(&pipe, SfdFlags::SFD_NONBLOCK).unwrap();
        assert!(pending.read_signal().unwrap().is_none());
    }
}
