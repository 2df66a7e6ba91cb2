//! A range of mapped memory, from a descriptor or anonymous, page-locked or not; unmapped on drop.

use std::{io, num::NonZeroUsize, os::fd::BorrowedFd, process, ptr::NonNull};

use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

use super::{
    forked::is_guarded,
    pinner::{Pinner, Registration},
};

#[derive(Debug)]
pub(super) struct Mapping {
    start: NonNull<u8>,
    len: NonZeroUsize,
    registration: Option<Registration>,
    /// The process that made the mapping, if its forked children do not get it.
    only_in: Option<u32>,
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
    /// Maps the first `len` bytes of `fd`, shared with every other process that maps it. A forked child of a process that is
    /// [guarded against forks](super::guard_against_forks) does not get memory that can be written.
    pub(super) fn new(fd: BorrowedFd<'_>, len: NonZeroUsize, access: Access) -> io::Result<Self> {
        let protection = match access {
            Access::Read => ProtFlags::PROT_READ,
            Access::Write => ProtFlags::PROT_READ | ProtFlags::PROT_WRITE,
        };
        // SAFETY: no address is asked for, so no existing mapping is replaced; length is not zero.
        let start = unsafe { mmap(None, len, protection, MapFlags::MAP_SHARED, fd, 0) }?;
        let mut mapping = Self { start: start.cast(), len, registration: None, only_in: None };
        if matches!(access, Access::Write) && is_guarded() {
            mapping.keep_from_children()?;
        }
        Ok(mapping)
    }

    fn keep_from_children(&mut self) -> io::Result<()> {
        // SAFETY: exactly the range of the mapping, whose content in this process does not change.
        unsafe { madvise(self.start.cast(), self.len.get(), MmapAdvise::MADV_DONTFORK) }?;
        self.only_in = Some(process::id());
        Ok(())
    }

    /// Zeroed memory of this process alone.
    pub(super) fn anonymous(len: NonZeroUsize) -> io::Result<Self> {
        // Private: in a forked child it is a copy.
        let (protection, flags) = (ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, MapFlags::MAP_PRIVATE);
        // SAFETY: no address is asked for, so no existing mapping is replaced; length is not zero.
        let start = unsafe { mmap_anonymous(None, len, protection, flags) }?;
        Ok(Self { start: start.cast(), len, registration: None, only_in: None })
    }

    /// Page-locks it until it is unmapped, if the driver does.
    pub(super) fn pin(&mut self, pinner: &Pinner) {
        if self.registration.is_none() {
            self.registration = pinner.register(self.start, self.len.get());
        }
    }

    /// True when it is page-locked in this process.
    pub(super) fn is_pinned(&self) -> bool {
        self.registration.as_ref().is_some_and(Registration::is_valid)
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
        if self.registration.take().is_some_and(|registration| !registration.end()) {
            return;
        }
        // In a forked child the range is not mapped, or is something else by now.
        if self.only_in.is_some_and(|owner| owner != process::id()) {
            return;
        }
        // SAFETY: exactly the range that `mmap` gave; every type that hands out references into it holds this value.
        // A failure can only mean a wrong range, which the first half rules out.
        let _ = unsafe { munmap(self.start.cast(), self.len.get()) };
    }
}
