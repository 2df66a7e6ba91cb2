//! Read-only memory that no process can change any more.

use std::{
    io,
    num::NonZeroUsize,
    ops::Deref,
    os::fd::{AsFd, BorrowedFd},
    slice,
};

use nix::fcntl::{FcntlArg, SealFlag, fcntl};

use super::{Access, Mapping};

/// Bytes of a memfd that is sealed against writing, shrinking and growing, shared by every process that maps
/// them. It derefs to `[u8]`.
#[derive(Debug)]
pub struct SealedMap {
    /// `None` if there are no bytes.
    mapping: Option<Mapping>,
}

impl SealedMap {
    /// Maps the first `len` bytes of `fd`.
    ///
    /// # Errors
    /// `InvalidInput` if `fd` is not sealed against writing, shrinking and growing, or is shorter than `len`;
    /// otherwise the error of the system call.
    pub fn map(fd: impl AsFd, len: usize) -> io::Result<Self> {
        require_seals(
            fd.as_fd(),
            len,
            SealFlag::F_SEAL_WRITE | SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW,
        )?;
        let mapping = match NonZeroUsize::new(len) {
            Some(len) => Some(Mapping::new(fd.as_fd(), len, Access::Read)?),
            None => None,
        };
        Ok(Self { mapping })
    }
}

impl Deref for SealedMap {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let Some(mapping) = &self.mapping else { return &[] };
        // SAFETY: the range is mapped while `self` exists, and is not longer than the file, whose size is
        // sealed. The kernel refuses every write to a memfd with F_SEAL_WRITE, in every process, so the bytes
        // never change.
        unsafe { slice::from_raw_parts(mapping.start().as_ptr(), mapping.len()) }
    }
}

/// Refuses memory that can still shrink or is shorter than `len`: accessing its mapping could raise a signal.
pub(super) fn require_fixed_size(fd: BorrowedFd<'_>, len: usize) -> io::Result<()> {
    require_seals(fd, len, SealFlag::F_SEAL_SHRINK)
}

fn require_seals(fd: BorrowedFd<'_>, len: usize, wanted: SealFlag) -> io::Result<()> {
    let seals = SealFlag::from_bits_truncate(fcntl(fd, FcntlArg::F_GET_SEALS)?);
    let size = nix::sys::stat::fstat(fd)?.st_size;
    if seals.contains(wanted) && usize::try_from(size).is_ok_and(|size| size >= len) {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::InvalidInput,
        "the shared memory is not sealed, or is shorter than announced",
    ))
}
