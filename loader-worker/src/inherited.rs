//! Closes the descriptors that this process has inherited from the host by accident.

use std::os::fd::RawFd;

use loader_ipc::{is_close_on_exec, open_descriptors};
use nix::unistd::close;

/// The first descriptor after the standard streams.
const FIRST_FD: RawFd = 3;

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
pub(crate) fn close_inherited() {
    for fd in open_descriptors() {
        if fd >= FIRST_FD && is_close_on_exec(fd) == Some(false) {
            // `close` fails only if another thread has closed the descriptor already.
            let _ = close(fd);
        }
    }
}
