//! A range of mapped memory, from a descriptor or anonymous, which is unmapped on drop. It may be
//! page-locked.

use std::{io, num::NonZeroUsize, os::fd::BorrowedFd, process, ptr::NonNull};

use loader_pinning::{Pinner, Registration};
use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

use super::forked::is_guarded;

#[derive(Debug)]
pub(super) struct Mapping {
    start: NonNull<u8>,
    len: NonZeroUsize,
    registration: Option<Registration>,
    /// The process that made the mapping; `None` if its forked children get the mapping too.
    only_in: Option<u32>,
}

pub(super) enum Access {
    Read,
    Write,
}

// SAFETY: the mapping belongs to the process, not to a thread. The value gives only addresses; the types
// built on it decide who may read or write which bytes.
unsafe impl Send for Mapping {}
// SAFETY: as above. `&Mapping` gives only an address and a length.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `len` bytes of `fd`, shared with every other process that maps them. Forked children of
    /// a process that is [guarded against forks](super::guard_against_forks) do not get memory that is mapped
    /// for writing.
    pub(super) fn new(fd: BorrowedFd<'_>, len: NonZeroUsize, access: Access) -> io::Result<Self> {
        let protection = match access {
            Access::Read => ProtFlags::PROT_READ,
            Access::Write => ProtFlags::PROT_READ | ProtFlags::PROT_WRITE,
        };
        // SAFETY: the call names no address, so it replaces no existing mapping. The length is not zero.
        let start = unsafe { mmap(None, len, protection, MapFlags::MAP_SHARED, fd, 0) }?;
        let mut mapping = Self { start: start.cast(), len, registration: None, only_in: None };
        if matches!(access, Access::Write) && is_guarded() {
            mapping.keep_from_children();
        }
        Ok(mapping)
    }

    /// Does nothing if the system refuses, as a sandbox may.
    fn keep_from_children(&mut self) {
        // SAFETY: the range is exactly that of the mapping. Its content in this process does not change.
        let advised = unsafe { madvise(self.start.cast(), self.len.get(), MmapAdvise::MADV_DONTFORK) };
        self.only_in = advised.is_ok().then(process::id);
    }

    /// Maps zeroed memory that only this process has.
    pub(super) fn anonymous(len: NonZeroUsize) -> io::Result<Self> {
        // Private: a forked child gets a copy.
        let (protection, flags) = (ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, MapFlags::MAP_PRIVATE);
        // SAFETY: the call names no address, so it replaces no existing mapping. The length is not zero.
        let start = unsafe { mmap_anonymous(None, len, protection, flags) }?;
        Ok(Self { start: start.cast(), len, registration: None, only_in: None })
    }

    /// Page-locks memory that is mapped for writing until it is unmapped, if the driver can.
    pub(super) fn pin(&mut self, pinner: &Pinner) {
        if self.registration.is_none() {
            // SAFETY: the range is mapped, and `drop` unmaps it only when the registration has ended.
            self.registration = unsafe { pinner.register(self.start, self.len.get()) };
        }
    }

    /// True if the memory is page-locked in this process.
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
        // The driver still has the range registered: it stays mapped, see `Registration::end`.
        if self.registration.take().is_some_and(|registration| !registration.end()) {
            return;
        }
        // In a forked child, the range is not mapped, or another mapping has taken its place.
        if self.only_in.is_some_and(|owner| owner != process::id()) {
            return;
        }
        // SAFETY: exactly the range that `mmap` returned; every type that gives references into it holds this
        // value. The call fails only for an invalid range, so its result can be ignored.
        let _ = unsafe { munmap(self.start.cast(), self.len.get()) };
    }
}
