//! Descriptors known by number only.

use std::{
    fs, io,
    os::fd::{BorrowedFd, OwnedFd, RawFd},
};

/// A duplicate of each descriptor that this process has open, for what a library keeps to itself.
///
/// # Errors
/// When there are no descriptors left, or `/proc` is not there.
pub(crate) fn duplicate_all() -> io::Result<Vec<OwnedFd>> {
    // Collected first: the listing has a descriptor of its own.
    let names: Vec<_> = fs::read_dir("/proc/self/fd")?.flatten().map(|entry| entry.file_name()).collect();
    let numbers = names.iter().filter_map(|name| name.to_str()?.parse::<RawFd>().ok());
    let duplicates = numbers.map(|number| {
        // SAFETY: not -1, since it is the name of an open descriptor. It is used for one call, which changes nothing of it; if another
        // thread closes it meanwhile, the call fails, or duplicates what has come to have the number.
        unsafe { BorrowedFd::borrow_raw(number) }.try_clone_to_owned()
    });
    duplicates
        .filter(
            |duplicate| !matches!(duplicate, Err(error) if error.raw_os_error() == Some(nix::libc::EBADF)),
        )
        .collect()
}
