//! Sets signal actions that main and workers need, or that a worker must not inherit, and removes pending signals.

use std::{
    io,
    mem::{self, MaybeUninit},
    os::fd::{AsFd, BorrowedFd},
    ptr,
    sync::Arc,
};

use nix::{
    errno::Errno,
    libc::{self, c_int},
    sys::signal::{SigHandler, SigSet, Signal, signal},
    unistd::getpid,
};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair};
use signal_hook::SigId;

use crate::{advice::permitted, held_fd::HeldFd};

/// Restores the default action of SIGCHLD. A process inherits an ignored signal through exec, and a worker
/// whose host ignores SIGCHLD could not wait for the programs that its dataset starts.
pub fn default_sigchld() {
    // SAFETY: the default action installs no handler, so no code can run at a wrong time.
    let set = unsafe { signal(Signal::SIGCHLD, SigHandler::SigDfl) };
    // The call cannot fail for a valid signal. If it did, the action would not change.
    let _ = set;
}

/// Makes the signal of the number `which` do nothing in this process if another process or a terminal sends it, and if
/// its action is the default one, which ends the process. A handler that user code has installed, and an inherited
/// SIG_IGN, stay. A signal that this process sends to itself still ends it, and so does what the kernel raises for this
/// process itself, at a limit of CPU time or the end of a timer.
///
/// Installs a handler instead of SIG_IGN, because programs that this process starts would inherit SIG_IGN. User code
/// that installs a handler later replaces this one.
///
/// # Errors
/// If the system refuses.
pub fn ignore_by_default(which: c_int) -> io::Result<()> {
    if present_action(which)? == libc::SIG_DFL {
        // SAFETY: zeros are a valid value of each of its fields. `SigAction` has no real-time signals.
        let mut action: libc::sigaction = unsafe { mem::zeroed() };
        action.sa_sigaction = ignore_sent as *const () as libc::sighandler_t;
        action.sa_flags = libc::SA_RESTART | libc::SA_ONSTACK | libc::SA_SIGINFO;
        // Blocks all signals in the handler: the frames of several signals at once do not fit on an alternative stack.
        action.sa_mask = *SigSet::all().as_ref();
        // SAFETY: `action` outlives the call. The handler has the parameters of SA_SIGINFO, and only makes calls that
        // are safe in a handler.
        Errno::result(unsafe { libc::sigaction(which, &action, ptr::null_mut()) })?;
    }
    Ok(())
}

/// Restores the default action of `which` if [`ignore_by_default`] has replaced it.
///
/// # Errors
/// If the system refuses.
pub fn end_ignoring(which: Signal) -> io::Result<()> {
    if is_ignoring(which as c_int)? {
        // SAFETY: the default action installs no handler, so no code can run at a wrong time.
        unsafe { signal(which, SigHandler::SigDfl) }?;
    }
    Ok(())
}

/// Returns the set of the signals of these numbers.
pub(crate) fn signal_set(numbers: impl IntoIterator<Item = c_int>) -> SigSet {
    let mut set = *SigSet::empty().as_ref();
    for number in numbers {
        // SAFETY: the set outlives the call. The call returns an error if `number` is not that of a signal.
        unsafe { libc::sigaddset(&mut set, number) };
    }
    // SAFETY: the set was initialized. The loader never asks nix for its elements, of which nix knows no real-time
    // signal.
    unsafe { SigSet::from_sigset_t_unchecked(set) }
}

/// Ends this process, as without a handler, if this process has sent the signal, or if the kernel has raised it for
/// this process.
extern "C" fn ignore_sent(which: c_int, info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    // A handler that a library has installed later may call this one without the information about the signal.
    if !matches!(is_ignoring(which), Ok(true)) {
        return;
    }
    // SAFETY: the kernel has called this handler, which has SA_SIGINFO, so `info` is the information about the signal.
    let info = unsafe { &*info };
    // SAFETY: the structure has room for this number, which has a meaning only if a process has sent the signal.
    let sender = unsafe { info.si_pid() };
    let ends = match info.si_code {
        // A handler that passes on what another process has sent restores this handler and raises the signal. Python's
        // `faulthandler` does so with the signals that launchers send.
        libc::SI_USER | libc::SI_QUEUE | libc::SI_TKILL => {
            sender == getpid().as_raw() && !matches!(which, libc::SIGUSR1 | libc::SIGUSR2)
        }
        // For a terminal, the kernel raises these in the whole process group.
        libc::SI_KERNEL => !matches!(which, libc::SIGHUP | libc::SIGINT | libc::SIGQUIT),
        _ => true,
    };
    if !ends {
        return;
    }
    // SAFETY: the call is safe in a handler, and the default action installs none.
    unsafe { libc::signal(which, libc::SIG_DFL) };
    // SAFETY: the call is safe in a handler. The signal is blocked until this handler returns.
    unsafe { libc::raise(which) };
}

/// True if the action of the signal is that of [`ignore_by_default`].
fn is_ignoring(which: c_int) -> io::Result<bool> {
    Ok(present_action(which)? == ignore_sent as *const () as libc::sighandler_t)
}

fn present_action(which: c_int) -> io::Result<libc::sighandler_t> {
    let mut present = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: without a new action the call only writes the present one into `present`, which outlives the call.
    Errno::result(unsafe { libc::sigaction(which, ptr::null(), present.as_mut_ptr()) })?;
    // SAFETY: the call has succeeded, so it has written the action.
    Ok(unsafe { present.assume_init() }.sa_sigaction)
}

/// The end of a pair of sockets that wakes a thread of this process.
#[derive(Debug)]
pub struct WakeSocket(HeldFd);

/// The end that the thread polls.
#[derive(Debug)]
pub struct WokenSocket(HeldFd);

/// Makes a pair of sockets for wake-ups within this process.
///
/// # Errors
/// If the process is out of descriptors.
pub fn wake_sockets() -> io::Result<(WakeSocket, WokenSocket)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let made = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None);
    let (wake, woken) = permitted("socketpair", made)?;
    Ok((WakeSocket(HeldFd::new(wake)), WokenSocket(HeldFd::new(woken))))
}

impl WakeSocket {
    /// Wakes the thread. Never blocks. Does nothing if the program has closed the socket.
    pub fn wake(&self) {
        if self.0.is_same_file() {
            // If the socket is full, the thread wakes up anyway.
            let _ = send(&self.0, &[0], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
        }
    }
}

impl WokenSocket {
    /// Removes the wake-ups that have arrived.
    pub fn clear(&self) {
        let mut bytes = [0; 64];
        while self
            .0
            .get()
            .is_ok_and(|socket| matches!(recv(socket, &mut bytes, RecvFlags::DONTWAIT), Ok((_, 64))))
        {
        }
    }
}

impl AsFd for WokenSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Wakes a thread at each SIGCHLD, after the handlers that were installed before. To end that, pass the returned
/// id to `signal_hook::low_level::unregister`.
///
/// # Errors
/// If the system refuses.
pub fn wake_on_sigchld(socket: Arc<WakeSocket>) -> io::Result<SigId> {
    let action = move || {
        let before = Errno::last_raw();
        socket.wake();
        Errno::set_raw(before);
    };
    // SAFETY: the action only compares numbers and calls `fstat` and `send`, which are safe in a signal
    // handler, and it restores `errno`. It allocates nothing and takes no lock. signal-hook drops it, with its
    // socket, in `unregister`.
    unsafe { signal_hook::low_level::register(libc::SIGCHLD, action) }
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

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_signal_that_another_process_sends_does_nothing() {
        for which in [libc::SIGPWR, libc::SIGXCPU, libc::SIGRTMIN() + 5] {
            ignore_by_default(which).unwrap();
            let kill = format!("kill -{which} $PPID");
            assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
        }
    }

    #[test]
    fn a_set_has_real_time_signals() {
        let set = signal_set([libc::SIGPWR, libc::SIGRTMAX()]);
        // SAFETY: the set outlives the call.
        let has = |which| unsafe { libc::sigismember(set.as_ref(), which) };
        assert_eq!([libc::SIGPWR, libc::SIGRTMAX(), libc::SIGALRM].map(has), [1, 1, 0]);
    }
}
