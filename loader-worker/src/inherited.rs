//! What this process has from the process that started it: what it must not keep, such as descriptors that the host has
//! left open by accident, and main's pidfd from a template.

use std::{
    io,
    os::fd::{OwnedFd, RawFd},
    sync::{Mutex, OnceLock, PoisonError},
};

use loader_ipc::{
    default_sigchld, ignore_by_default, ignore_sigpipe, is_close_on_exec, lifeline::Lifeline,
    oom::prefer_this_process, open_descriptors, process::signals_for_main,
};
use nix::{sys::signal::SigSet, unistd::close};

/// The first descriptor after the standard streams.
const FIRST_FD: RawFd = 3;

/// What a worker has from the template that has forked it.
static FROM_TEMPLATE: OnceLock<FromTemplate> = OnceLock::new();

#[derive(Debug)]
struct FromTemplate {
    /// Main's pidfd. The template opened it, as main's child.
    main: OwnedFd,
    /// `None` once the worker has taken it.
    lifeline: Mutex<Option<Lifeline>>,
}

/// Notes what a worker has from the template that has forked it: main's pidfd, and the worker's lifeline.
///
/// # Errors
/// If it was noted before.
pub(crate) fn note_template(main: OwnedFd, lifeline: Lifeline) -> io::Result<()> {
    let from = FromTemplate { main, lifeline: Mutex::new(Some(lifeline)) };
    FROM_TEMPLATE.set(from).map_err(|_| io::Error::other("this process is a worker already"))
}

/// Returns main's pidfd in a worker that a template has forked, and `None` in any other process.
pub(crate) fn main_pidfd() -> Option<&'static OwnedFd> {
    FROM_TEMPLATE.get().map(|from| &from.main)
}

/// Takes the lifeline of a worker that a template has forked.
pub(crate) fn take_lifeline() -> Option<Lifeline> {
    FROM_TEMPLATE.get()?.lifeline.lock().unwrap_or_else(PoisonError::into_inner).take()
}

/// Removes from this process, which main has started, what it has inherited from main: descriptors, the signal
/// mask, and signal actions. Makes the OOM killer prefer this process to main.
pub(crate) fn leave_host() -> io::Result<()> {
    close_inherited();
    leave_signals()?;
    ignore_sigpipe();
    prefer_this_process();
    Ok(())
}

/// Removes the signal mask and signal actions of main from this process, which main has started or forked.
pub(crate) fn leave_signals() -> io::Result<()> {
    signals_for_main().try_for_each(ignore_by_default)?;
    default_sigchld();
    // A signal mask is inherited across `exec`. Main blocks these signals while it starts this process, and the
    // thread that started it may have blocked others.
    SigSet::empty().thread_set_mask()?;
    Ok(())
}

/// Closes every descriptor from 3 on that is not close-on-exec.
///
/// C libraries of the host may open files without that flag. Every program that the host starts then inherits
/// them: for example a listening socket, whose port stays in use; the write end of a pipe, whose reader never
/// sees the end; or a lock, which is not released.
///
/// Descriptors with the flag are kept: `exec` closes such descriptors, so this process has opened them. The
/// Rust standard library and the loader set the flag on everything they open. This function also closes a
/// descriptor without the flag that this process has opened before its `main`. Python does the same in the
/// programs that it starts, and PyTorch in its workers.
fn close_inherited() {
    for fd in open_descriptors() {
        if fd >= FIRST_FD && is_close_on_exec(fd) == Some(false) {
            // `close` fails only if another thread has closed the descriptor already.
            let _ = close(fd);
        }
    }
}
