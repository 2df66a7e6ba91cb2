//! A shared page of 64-bit words, reached as atomics only.

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
    /// `InvalidInput` when `fd` can still shrink or is shorter; else what `mmap` says.
    pub fn map(fd: impl AsFd, len: NonZeroUsize) -> io::Result<Self> {
        let bytes = len.checked_mul(const { NonZeroUsize::new(size_of::<u64>()).unwrap() });
        let bytes = bytes.ok_or(io::ErrorKind::InvalidInput)?;
        require_fixed_size(fd.as_fd(), bytes.get())?;
        Ok(Self { mapping: Mapping::new(fd.as_fd(), bytes, Access::Write)? })
    }

    /// The words of memory that is this process's alone.
    pub(super) fn over(mapping: Mapping) -> Self {
        Self { mapping }
    }

    /// Words that only threads of this process share: what Miri can map.
    #[cfg(test)]
    pub(crate) fn of_this_process(len: NonZeroUsize) -> io::Result<Self> {
        let bytes = len.checked_mul(const { NonZeroUsize::new(size_of::<u64>()).unwrap() });
        Ok(Self::over(Mapping::anonymous(bytes.ok_or(io::ErrorKind::InvalidInput)?)?))
    }

    /// The words.
    pub fn words(&self) -> &[AtomicU64] {
        let first = self.mapping.start().cast::<AtomicU64>();
        // SAFETY: mapped and page-aligned; atomics may be shared with other processes; every access anywhere is atomic.
        unsafe { slice::from_raw_parts(first.as_ptr(), self.mapping.len() / size_of::<u64>()) }
    }
}
