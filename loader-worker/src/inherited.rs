//! Descriptors that this process inherited and that are not its business.

use std::{fs, os::fd::RawFd};

use loader_ipc::process::open_descriptors;
use nix::{libc::O_CLOEXEC, unistd::close};

/// The first one that is not a standard stream.
const FIRST: RawFd = 3;

/// Closes every descriptor from 3 on that is not close-on-exec.
///
/// The host's C libraries open files without that flag, and so they come along into every program that the host starts: a listening
/// socket whose port stays taken, the write end of a pipe whose reader waits for its end, a lock that is not released.
///
/// Only those without the flag, because a descriptor with it cannot have come through an exec: this process has opened it itself, as
/// the Rust standard library and the loader open everything. One without it that this process has opened already, before its `main`, is lost too;
/// Python does the same to the programs that it starts, and so does PyTorch to its workers.
pub(crate) fn close_inherited() {
    let Ok(numbers) = open_descriptors() else { return };
    for fd in numbers.into_iter().filter(|&fd| fd >= FIRST && is_inherited(fd)) {
        // A failure can only mean that it is closed.
        let _ = close(fd);
    }
}

fn is_inherited(fd: RawFd) -> bool {
    fs::read_to_string(format!("/proc/self/fdinfo/{fd}"))
        .is_ok_and(|info| is_close_on_exec(&info) == Some(false))
}

/// What the system says of a descriptor: a line with its flags, in octal.
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
