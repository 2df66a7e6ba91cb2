//! Closes the descriptors that this process has inherited from the host by accident.

use std::{fs, os::fd::RawFd};

use loader_ipc::open_descriptors;
use nix::{libc::O_CLOEXEC, unistd::close};

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
    let Ok(numbers) = open_descriptors() else { return };
    for fd in numbers.into_iter().filter(|&fd| fd >= FIRST_FD && is_inherited(fd)) {
        // `close` fails only if another thread has closed the descriptor already.
        let _ = close(fd);
    }
}

fn is_inherited(fd: RawFd) -> bool {
    fs::read_to_string(format!("/proc/self/fdinfo/{fd}"))
        .is_ok_and(|info| is_close_on_exec(&info) == Some(false))
}

/// Reads the close-on-exec flag from `/proc/self/fdinfo/FD`, which has a line with the flags in octal.
fn is_close_on_exec(info: &str) -> Option<bool> {
    let flags = info.lines().find_map(|line| line.strip_prefix("flags:"))?;
    let flags = i32::from_str_radix(flags.trim(), 8).ok()?;
    Some(flags & O_CLOEXEC != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_octal() {
        assert_eq!(is_close_on_exec("pos:\t0\nflags:\t02100002\nmnt_id:\t15\n"), Some(true));
        assert_eq!(is_close_on_exec("pos:\t0\nflags:\t0100002\n"), Some(false));
        assert_eq!(is_close_on_exec(""), None);
    }
}
