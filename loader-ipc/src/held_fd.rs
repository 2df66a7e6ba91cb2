//! A descriptor of the loader that the program may have closed.

use std::{
    fs, io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd},
};

use nix::sys::{
    stat::fstat,
    statfs::{FsType, fstatfs},
};

/// A descriptor of the loader. A program may close descriptors that it has not opened: a daemon closes all of
/// them after its `fork`, and `os.closerange` and `closefrom` close a range. The number then names a file that
/// the program opens later, to which the loader must not write, and which it must not close.
///
/// So a `HeldFd` knows its file by device and inode. [`get`](Self::get) gives out the descriptor only as long
/// as it is of that file, and a drop closes it only then.
///
/// Linux gives all epolls one inode, so these are told from other files but not from each other. Before 6.9 it gives
/// all pidfds one inode. There a `HeldFd` also knows the process of its pidfd; it cannot tell its own pidfd from
/// another one whose process was reaped, because the kernel then shows no process.
///
/// Alternatives considered: a `pthread_atfork` handler that closes the descriptors in a child. Rejected because
/// a child by a direct system call does not run it, and because a program also closes descriptors without a
/// fork. One file of the loader whose descriptor is checked in place of all others. Rejected because a range
/// may end before it.
#[derive(Debug)]
pub struct HeldFd {
    /// `None` only while it is dropped.
    fd: Option<OwnedFd>,
    identity: Option<Identity>,
    /// The process of a pidfd, if all pidfds have one inode.
    process: Option<i32>,
}

/// File system of pidfds that have inodes of their own (Linux 6.9).
const PIDFS: FsType = FsType(0x5049_4446);
/// What the kernel shows in place of a process that was reaped.
const REAPED: i32 = -1;
/// Stands for a file that is no pidfd.
const NO_PIDFD: i32 = -2;

/// Device and inode.
type Identity = (u64, u64);

/// The program has closed a descriptor of the loader.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the program has closed descriptor {number}, which belongs to the loader: make a new loader, or close only \
     descriptors that the program has opened"
)]
pub struct ClosedByProgram {
    /// Number of the descriptor.
    pub number: RawFd,
}

impl HeldFd {
    /// Takes over a descriptor that was just made.
    pub fn new(fd: OwnedFd) -> Self {
        Self { identity: identity(&fd), fd: Some(fd), process: None }
    }

    /// Takes over a pidfd that was just made.
    pub fn of_pidfd(pidfd: OwnedFd) -> Self {
        let has_own_inode = fstatfs(&pidfd).is_ok_and(|system| system.filesystem_type() == PIDFS);
        let process = if has_own_inode { None } else { process_of(&pidfd) };
        Self { identity: identity(&pidfd), fd: Some(pidfd), process }
    }

    /// Returns the number in `/proc` of the process of a pidfd; `None` if the process was reaped or `/proc` is not
    /// mounted.
    pub(crate) fn number_in_proc(&self) -> Option<u32> {
        process_of(self).and_then(|process| process.try_into().ok())
    }

    /// Returns the descriptor.
    ///
    /// # Errors
    /// [`ClosedByProgram`], as the inner error, if it is no longer of the same file.
    pub fn get(&self) -> io::Result<BorrowedFd<'_>> {
        if self.is_same_file() {
            Ok(self.as_fd())
        } else {
            Err(io::Error::other(ClosedByProgram { number: self.as_fd().as_raw_fd() }))
        }
    }

    /// True if the descriptor is still of the same file. Safe in a signal handler except for a pidfd, but changes
    /// `errno`.
    pub(crate) fn is_same_file(&self) -> bool {
        // A failure to read, for example at the limit on open files, does not show another file.
        let is_of = |process| process_of(self).is_none_or(|now| now == process || now == REAPED);
        identity(self) == self.identity && self.process.is_none_or(is_of)
    }
}

/// Gives out the descriptor without a check, for what has no effect on another file: polls and maps.
impl AsFd for HeldFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_ref().expect("only `drop` takes it").as_fd()
    }
}

impl Drop for HeldFd {
    fn drop(&mut self) {
        let is_same_file = self.is_same_file();
        let fd = self.fd.take().expect("only `drop` takes it");
        if !is_same_file {
            // Another file may have the number.
            let _ = fd.into_raw_fd();
        }
    }
}

fn identity(fd: impl AsFd) -> Option<Identity> {
    fstat(fd).ok().map(|status| (status.st_dev, status.st_ino))
}

/// Returns the process of a pidfd, [`REAPED`], or [`NO_PIDFD`]; `None` if that cannot be read, for example because
/// `/proc` is not mounted.
fn process_of(pidfd: impl AsFd) -> Option<i32> {
    let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", pidfd.as_fd().as_raw_fd())).ok()?;
    let process = info.lines().find_map(|line| line.strip_prefix("Pid:"));
    Some(process.and_then(|process| process.trim().parse().ok()).unwrap_or(NO_PIDFD))
}

#[cfg(test)]
mod tests {
    use std::{
        fs::File,
        process::{Child, Command},
    };

    use rustix::process::{Pid, PidfdFlags, pidfd_open};

    use super::*;

    fn names(number: RawFd, path: &str) -> bool {
        fs::read_link(format!("/proc/self/fd/{number}")).is_ok_and(|name| name.as_os_str() == path)
    }

    #[test]
    fn a_number_that_names_another_file_is_neither_used_nor_closed() {
        let (reader, _writer) = io::pipe().unwrap();
        let mut held = HeldFd::new(reader.into());
        let number = held.get().unwrap().as_raw_fd();
        // As a program does that closes the number and opens a file.
        rustix::io::dup2(File::open("/dev/null").unwrap(), held.fd.as_mut().unwrap()).unwrap();
        let error = held.get().unwrap_err();
        let closed = *error.get_ref().unwrap().downcast_ref::<ClosedByProgram>().unwrap();
        assert_eq!(closed, ClosedByProgram { number });
        drop(held);
        assert!(names(number, "/dev/null"));
    }

    #[test]
    fn a_drop_closes_the_descriptor() {
        let held = HeldFd::new(File::open("/dev/zero").unwrap().into());
        let number = held.get().unwrap().as_raw_fd();
        assert!(names(number, "/dev/zero"));
        drop(held);
        assert!(!names(number, "/dev/zero"));
    }

    fn pidfd(child: &Child) -> OwnedFd {
        pidfd_open(Pid::from_child(child), PidfdFlags::empty()).unwrap()
    }

    #[test]
    fn pidfds_with_one_inode_are_told_apart_by_their_processes() {
        let sleep = || Command::new("sleep").arg("60").spawn().unwrap();
        let mut children = [sleep(), sleep()];
        let [ours, theirs] = children.each_ref().map(pidfd);
        let processes = children.each_ref().map(|child| Some(child.id().cast_signed()));
        assert_eq!([process_of(&ours), process_of(&theirs)], processes);
        // As before Linux 6.9: the identity does not tell them apart.
        let mut held = HeldFd { identity: identity(&theirs), process: process_of(&ours), fd: Some(ours) };
        let number = held.fd.as_ref().unwrap().as_raw_fd();
        rustix::io::dup2(&theirs, held.fd.as_mut().unwrap()).unwrap();
        assert!(held.get().is_err());
        drop(held);
        assert!(fs::exists(format!("/proc/self/fd/{number}")).unwrap(), "the program's pidfd stays open");
        // The process of the loader's own pidfd ends and is reaped.
        let held = HeldFd { identity: identity(&theirs), process: process_of(&theirs), fd: Some(theirs) };
        for child in &mut children {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        assert!(held.get().is_ok());
    }
}
