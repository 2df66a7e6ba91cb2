//! A range of memory mapped from a descriptor; unmapped on drop.

use std::{io, num::NonZeroUsize, os::fd::BorrowedFd, ptr::NonNull};

use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};

#[derive(Debug)]
pub(super) struct Mapping {
    start: NonNull<u8>,
    len: NonZeroUsize,
}

pub(super) enum Access {
    Read,
    Write,
}

// SAFETY: the mapping belongs to the process, not to a thread; the value hands out addresses only, and the types built on it
// say who may read or write what.
unsafe impl Send for Mapping {}
// SAFETY: as above; `&Mapping` gives an address and a length.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `len` bytes of `fd`, shared with every other process that maps it.
    pub(super) fn new(fd: BorrowedFd<'_>, len: NonZeroUsize, access: Access) -> io::Result<Self> {
        let protection = match access {
            Access::Read => ProtFlags::PROT_READ,
            Access::Write => ProtFlags::PROT_READ | ProtFlags::PROT_WRITE,
        };
        // SAFETY: no address is asked for, so no existing mapping is replaced; length is not zero.
        let start = unsafe { mmap(None, len, protection, MapFlags::MAP_SHARED, fd, 0) }?;
        Ok(Self { start: start.cast(), len })
    }

    pub(super) fn start(&self) -> NonNull<u8> {
        self.start
    }

    pub(super) fn len(&self) -> usize {
        self.len.get()
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: exactly the range that `mmap` gave; every type that hands out references into it holds this value.
        // A failure can only mean a wrong range, which the first half rules out.
        let _ = unsafe { munmap(self.start.cast(), self.len.get()) };
    }
}
