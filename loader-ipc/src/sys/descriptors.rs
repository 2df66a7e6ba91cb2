//! Duplicates descriptors of which only the number is known.

use std::{
    fs, io,
    os::fd::{BorrowedFd, OwnedFd, RawFd},
};

/// Returns the numbers of the descriptors that this process has open.
///
/// # Errors
/// If `/proc` is not available.
pub fn open_descriptors() -> io::Result<Vec<RawFd>> {
    let listing = fs::read_dir("/proc/self/fd")?;
    // Collecting closes the listing, whose own descriptor is one of the numbers.
    Ok(listing.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect())
}

/// Returns a new descriptor of the file that this process has open under `number`.
///
/// # Errors
/// If `number` is not open, or the process is out of descriptors.
pub(crate) fn duplicate(number: RawFd) -> io::Result<OwnedFd> {
    if number < 0 {
        return Err(nix::errno::Errno::EBADF.into());
    }
    // SAFETY: the number is not -1. It is used for one call, which fails if the descriptor is not open.
    unsafe { BorrowedFd::borrow_raw(number) }.try_clone_to_owned()
}

/// Duplicates each open socket of this process, one at a time, to find a socket that a library keeps private.
/// Other descriptors are not duplicated, because closing a duplicate of a file releases the process's locks
/// on the file.
///
/// # Errors
/// If `/proc` is missing. The iterator gives an error for a socket if the process is out of descriptors.
pub(crate) fn duplicate_sockets() -> io::Result<impl Iterator<Item = io::Result<OwnedFd>>> {
    let is_socket = |number: &RawFd| {
        fs::read_link(format!("/proc/self/fd/{number}"))
            .is_ok_and(|target| target.as_os_str().as_encoded_bytes().starts_with(b"socket:"))
    };
    let numbers = open_descriptors()?.into_iter().filter(is_socket);
    Ok(numbers.filter_map(|number| {
        // If another thread has closed the descriptor meanwhile, the call fails or duplicates another
        // descriptor with this number.
        let socket = duplicate(number);
        let is_closed = matches!(&socket, Err(error) if error.raw_os_error() == Some(nix::libc::EBADF));
        (!is_closed).then_some(socket)
    }))
}
