//! Runs system calls with signals blocked: calls that no signal may interrupt, and calls whose failure raises
//! a signal. The default action of such a signal (SIGPIPE, SIGXFSZ) ends the process.

use std::sync::atomic::{AtomicBool, Ordering};

use nix::sys::signal::{SigSet, SigmaskHow, Signal};

use crate::sys;

static IS_SIGPIPE_IGNORED: AtomicBool = AtomicBool::new(false);

/// Ignores SIGPIPE in this process, as Rust's runtime does before `main`. A worker may begin before Rust's
/// runtime does this, and user code that writes to a closed pipe must get an error in the worker too.
pub fn ignore_sigpipe() {
    sys::ignore_sigpipe();
    // Relaxed: a thread that reads the old value only makes needless system calls.
    IS_SIGPIPE_IGNORED.store(true, Ordering::Relaxed);
}

/// Runs `send` without SIGPIPE. If the other process is gone, sending raises the signal, and ipc-channel
/// cannot suppress it.
pub(crate) fn without_sigpipe<T, E>(send: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
    if IS_SIGPIPE_IGNORED.load(Ordering::Relaxed) { send() } else { without(Signal::SIGPIPE, send) }
}

/// Runs `call`. If `call` fails and raises `signal`, the signal is never delivered.
pub(crate) fn without<T, E>(signal: Signal, call: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
    let set = SigSet::from(signal);
    while_blocked(&set, |before| {
        let result = call();
        // If the program itself blocks the signal, a pending one may be the program's own.
        if result.is_err() && !before.contains(signal) {
            sys::take_pending(&set);
        }
        result
    })
}

/// Runs `call` with all signals blocked. A call that starts over after each interruption might otherwise
/// never end.
pub(crate) fn uninterrupted<T>(call: impl FnOnce() -> T) -> T {
    while_blocked(&SigSet::all(), |_| call())
}

/// Runs `call` with `signals` blocked in this thread. `call` gets the signals that were blocked before.
fn while_blocked<T>(signals: &SigSet, call: impl FnOnce(&SigSet) -> T) -> T {
    // This cannot fail: the arguments are valid.
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
    fn sending_to_a_closed_socket_leaves_no_sigpipe_pending() {
        let pipe = SigSet::from(Signal::SIGPIPE);
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        drop(theirs);
        let sent = without_sigpipe(|| send(&ours, b"hello", SendFlags::empty()));
        assert_eq!(sent, Err(Errno::PIPE));
        assert!(!SigSet::thread_get_mask().unwrap().contains(Signal::SIGPIPE), "the mask is restored");
        pipe.thread_block().unwrap();
        let pending = SignalFd::with_flags(&pipe, SfdFlags::SFD_NONBLOCK).unwrap();
        assert!(pending.read_signal().unwrap().is_none());
    }
}
