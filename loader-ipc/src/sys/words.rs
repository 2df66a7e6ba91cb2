//! Shared 64-bit words, which are accessed only as atomics.

use std::{io, num::NonZeroUsize, os::fd::AsFd, slice, sync::atomic::AtomicU64};

use super::{Access, Mapping, require_fixed_size};

/// `len` shared 64-bit words.
#[derive(Debug)]
pub struct SharedWords {
    mapping: Mapping,
}

impl SharedWords {
    /// Maps the first `len` words of `fd`.
    ///
    /// # Errors
    /// `InvalidInput` if `fd` can still shrink or is too short; otherwise the error of the system call.
    pub fn map(fd: impl AsFd, len: NonZeroUsize) -> io::Result<Self> {
        let bytes = len.checked_mul(const { NonZeroUsize::new(size_of::<u64>()).unwrap() });
        let bytes = bytes.ok_or(io::ErrorKind::InvalidInput)?;
        require_fixed_size(fd.as_fd(), bytes.get())?;
        Ok(Self { mapping: Mapping::new(fd.as_fd(), bytes, Access::Write)? })
    }

    /// Uses the words of `mapping`, which is private memory of this process.
    pub(super) fn over(mapping: Mapping) -> Self {
        Self { mapping }
    }

    /// Maps words that only the threads of this process share, which Miri supports.
    #[cfg(test)]
    pub(crate) fn of_this_process(len: NonZeroUsize) -> io::Result<Self> {
        let bytes = len.checked_mul(const { NonZeroUsize::new(size_of::<u64>()).unwrap() });
        Ok(Self::over(Mapping::anonymous(bytes.ok_or(io::ErrorKind::InvalidInput)?)?))
    }

    /// Returns the words.
    pub fn words(&self) -> &[AtomicU64] {
        let first = self.mapping.start().cast::<AtomicU64>();
        // SAFETY: the memory is mapped while `self` exists, and page-aligned. Atomics may be shared with
        // other processes, and every process accesses these words only as atomics.
        unsafe { slice::from_raw_parts(first.as_ptr(), self.mapping.len() / size_of::<u64>()) }
    }
}
