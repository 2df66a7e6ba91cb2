//! Examines and duplicates descriptors of which only the number is known.

use std::{
    fs, io,
    os::fd::{BorrowedFd, OwnedFd, RawFd},
};

use nix::{
    libc::EBADF,
    sys::stat::{SFlag, fstat},
};
use rustix::{
    io::{FdFlags, fcntl_getfd},
    process::{Resource, getrlimit},
};

/// Without `/proc`, the numbers below this one are tried.
const MAX_TRIED: u64 = 1 << 16;

/// Calls `call` with the descriptor `number`, which may not be open. `call` uses it for one system call, which fails in
/// that case.
///
/// # Errors
/// EBADF if the number is negative; otherwise the errors of `call`.
fn borrowed<R>(number: RawFd, call: impl FnOnce(BorrowedFd<'_>) -> io::Result<R>) -> io::Result<R> {
    if number < 0 {
        return Err(io::Error::from_raw_os_error(EBADF));
    }
    // SAFETY: the number is not -1. The descriptor is borrowed for one call, which fails if it is not open. If another
    // thread has closed it meanwhile, the call may concern another file with this number.
    call(unsafe { BorrowedFd::borrow_raw(number) })
}

/// Returns the numbers of the descriptors that this process has open.
pub fn open_descriptors() -> Vec<RawFd> {
    match fs::read_dir("/proc/self/fd") {
        // Collecting closes the listing, whose own descriptor is one of the numbers.
        Ok(listing) => listing.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect(),
        Err(_) => {
            let end = getrlimit(Resource::Nofile).current.unwrap_or(MAX_TRIED).min(MAX_TRIED);
            (0..end as RawFd).filter(|&number| is_close_on_exec(number).is_some()).collect()
        }
    }
}

/// Returns whether `exec` closes the descriptor `number`; `None` if it is not open.
pub fn is_close_on_exec(number: RawFd) -> Option<bool> {
    let flags = borrowed(number, |fd| Ok(fcntl_getfd(fd)?));
    flags.ok().map(|flags| flags.contains(FdFlags::CLOEXEC))
}

/// Returns a new descriptor of the file that this process has open under `number`.
///
/// # Errors
/// If `number` is not open, or the process is out of descriptors.
pub(crate) fn duplicate(number: RawFd) -> io::Result<OwnedFd> {
    borrowed(number, |fd| fd.try_clone_to_owned())
}

/// Duplicates each open socket of this process, one at a time, to find a socket that a library keeps private.
/// Other descriptors are not duplicated, because closing a duplicate of a file releases the process's locks
/// on the file. The iterator gives an error for a socket if the process is out of descriptors.
pub(crate) fn duplicate_sockets() -> impl Iterator<Item = io::Result<OwnedFd>> {
    let is_socket = |number: &RawFd| {
        let status = borrowed(*number, |fd| Ok(fstat(fd)?));
        status
            .is_ok_and(|status| SFlag::from_bits_truncate(status.st_mode) & SFlag::S_IFMT == SFlag::S_IFSOCK)
    };
    open_descriptors().into_iter().filter(is_socket).filter_map(|number| {
        let socket = duplicate(number);
        let is_closed = matches!(&socket, Err(error) if error.raw_os_error() == Some(EBADF));
        (!is_closed).then_some(socket)
    })
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn open_and_closed_numbers_are_told_apart() {
        let (reader, writer) = io::pipe().unwrap();
        let number = reader.as_raw_fd();
        assert!(open_descriptors().contains(&number));
        assert_eq!(is_close_on_exec(number), Some(true));
        rustix::io::fcntl_setfd(&reader, FdFlags::empty()).unwrap();
        assert_eq!(is_close_on_exec(number), Some(false));
        assert_eq!(duplicate(-1).unwrap_err().raw_os_error(), Some(EBADF));
        assert_eq!(is_close_on_exec(RawFd::MAX), None);
        drop(writer);
    }
}
