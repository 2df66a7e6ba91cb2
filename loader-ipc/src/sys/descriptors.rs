//! Descriptors known by number only.

use std::{
    fs, io,
    os::fd::{BorrowedFd, OwnedFd, RawFd},
};

use crate::process::open_descriptors;

/// A duplicate of each socket that this process has open, one at a time: for one that a library keeps to itself. Not of other
/// descriptors, since closing a duplicate of a file gives up the process's locks on it.
///
/// # Errors
/// When `/proc` is not there; of each, when there are no descriptors left.
pub(crate) fn duplicate_sockets() -> io::Result<impl Iterator<Item = io::Result<OwnedFd>>> {
    let is_socket = |number: &RawFd| {
        fs::read_link(format!("/proc/self/fd/{number}"))
            .is_ok_and(|target| target.as_os_str().as_encoded_bytes().starts_with(b"socket:"))
    };
    let numbers = open_descriptors()?.into_iter().filter(is_socket);
    Ok(numbers.filter_map(|number| {
        // SAFETY: not -1, since it is the name of an open descriptor. It is used for one call, which duplicates it; if another thread
        // has closed it meanwhile, that fails, or duplicates what has come to have the number.
        let duplicate = unsafe { BorrowedFd::borrow_raw(number) }.try_clone_to_owned();
        let is_closed = matches!(&duplicate, Err(error) if error.raw_os_error() == Some(nix::libc::EBADF));
        (!is_closed).then_some(duplicate)
    }))
}
