//! Sending to a process that may be gone, without dying of it. The error says that it is gone; SIGPIPE, which comes with it, is
//! deadly in a program that has it at its default, and ipc-channel cannot be told to leave it out.

use std::sync::atomic::{AtomicBool, Ordering};

use nix::sys::signal::{SigSet, SigmaskHow, Signal};

use crate::sys;

static IS_IGNORED: AtomicBool = AtomicBool::new(false);

/// Ignores SIGPIPE in this process, as Rust does before `main`: a worker may have begun before that, and user code that writes to a
/// closed pipe must get an error there too.
pub fn ignore_sigpipe() {
    sys::ignore_sigpipe();
    // Relaxed: it only saves system calls.
    IS_IGNORED.store(true, Ordering::Relaxed);
}

/// Runs `send`; a SIGPIPE that it brings about is never delivered.
pub(crate) fn without_sigpipe<T, E>(send: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
    if IS_IGNORED.load(Ordering::Relaxed) {
        return send();
    }
    let pipe = SigSet::from(Signal::SIGPIPE);
    // It cannot fail for a valid signal.
    let Ok(before) = pipe.thread_swap_mask(SigmaskHow::SIG_BLOCK) else { return send() };
    let sent = send();
    // Where the program has it blocked, it may wait for one of its own.
    if sent.is_err() && !before.contains(Signal::SIGPIPE) {
        sys::take_pending(&pipe);
    }
    let _ = before.thread_set_mask();
    sent
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
    fn a_signal_of_a_broken_pipe_is_not_left_pending() {
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
