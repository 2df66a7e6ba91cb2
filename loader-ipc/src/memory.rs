//! Anonymous memory files (memfd). They have no name in `/dev/shm`, so nothing is left to clean up after a
//! crash.

use std::{fs::File, io, io::Write, num::NonZeroUsize, os::fd::OwnedFd};

use nix::{
    fcntl::{FallocateFlags, FcntlArg, SealFlag, fallocate, fcntl},
    sys::{
        memfd::{MFdFlags, memfd_create},
        signal::Signal,
    },
    unistd::ftruncate,
};

use crate::{
    advice::permitted,
    held_fd::HeldFd,
    signals::{uninterrupted, without},
    sys::{SealedMap, SharedWords},
};

/// Bytes that are written once and that every process shares read-only: a dataset's encoding, the rows of a
/// shared vector.
#[derive(Debug)]
pub struct SealedMemory {
    fd: HeldFd,
    map: SealedMap,
}

impl SealedMemory {
    /// Copies `bytes` into sealed memory.
    ///
    /// # Errors
    /// If the system is out of memory or descriptors.
    pub fn new(bytes: &[u8]) -> io::Result<Self> {
        let mut writer = SealedWriter::create()?;
        writer.write_all(bytes)?;
        writer.seal()
    }

    /// Maps memory that another process has sealed.
    ///
    /// # Errors
    /// If the memory is not sealed, or cannot be mapped.
    pub fn open(fd: OwnedFd) -> io::Result<Self> {
        let len = nix::sys::stat::fstat(&fd)?.st_size;
        let len = usize::try_from(len).map_err(|_| io::ErrorKind::InvalidData)?;
        let map = SealedMap::map(&fd, len)?;
        Ok(Self { fd: HeldFd::new(fd), map })
    }

    /// Returns the bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.map
    }

    /// Returns the descriptor, to be sent to another process.
    pub fn fd(&self) -> &HeldFd {
        &self.fd
    }
}

/// Writes a [`SealedMemory`] in parts, so that large content needs no second copy on the heap.
#[derive(Debug)]
pub struct SealedWriter {
    file: File,
}

impl SealedWriter {
    /// Creates empty memory.
    ///
    /// # Errors
    /// If the system is out of memory or descriptors.
    pub fn create() -> io::Result<Self> {
        Ok(Self { file: File::from(memfd(c"loader-sealed")?) })
    }

    /// Seals the memory against every further change, and maps it.
    ///
    /// # Errors
    /// If the memory cannot be sealed or mapped.
    pub fn seal(self) -> io::Result<SealedMemory> {
        let fd = OwnedFd::from(self.file);
        seal(&fd, SealFlag::F_SEAL_WRITE | SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW)?;
        SealedMemory::open(fd)
    }
}

impl Write for SealedWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        without(Signal::SIGXFSZ, || self.file.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Creates writable memory of a fixed size, with all pages reserved. Accessing it never raises a signal: it
/// cannot shrink, and `fallocate` has reserved its pages or returned an error.
///
/// # Errors
/// `OutOfMemory` or `StorageFull` if the system cannot reserve the pages; otherwise the error of the system
/// call.
pub fn reserve(len: NonZeroUsize) -> io::Result<HeldFd> {
    let fd = create(len)?;
    reserve_pages(&fd, 0, len)?;
    Ok(fd)
}

/// Creates writable memory of a fixed size without reserving pages: see [`reserve_pages`].
///
/// # Errors
/// The error of the system call.
pub fn create(len: NonZeroUsize) -> io::Result<HeldFd> {
    let fd = memfd(c"loader-slot")?;
    let size = to_offset(len.get())?;
    // A limit on the size of files (`ulimit -f`) applies to memfds too.
    permitted("ftruncate", without(Signal::SIGXFSZ, || ftruncate(&fd, size)))?;
    seal(&fd, SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW)?;
    Ok(HeldFd::new(fd))
}

/// Reserves the pages of `len` bytes from `start` on.
///
/// # Errors
/// As [`reserve`]. No page is then reserved.
pub fn reserve_pages(fd: &HeldFd, start: usize, len: NonZeroUsize) -> io::Result<()> {
    let (start, len) = (to_offset(start)?, to_offset(len.get())?);
    let file = fd.get()?;
    // If a signal interrupts the call, the kernel drops the pages reserved so far. A profiler's timer could
    // keep it from ending.
    let reserve = || uninterrupted(|| fallocate(file, FallocateFlags::empty(), start, len));
    permitted("fallocate", without(Signal::SIGXFSZ, reserve))
}

/// Gives the pages of `len` bytes from `start` on back to the system. Both are multiples of the page size.
/// The bytes read as zeros afterwards.
///
/// # Errors
/// The error of the system call.
pub fn release_pages(fd: &HeldFd, start: usize, len: NonZeroUsize) -> io::Result<()> {
    let (start, len) = (to_offset(start)?, to_offset(len.get())?);
    let flags = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
    let file = fd.get()?;
    permitted("fallocate", uninterrupted(|| fallocate(file, flags, start, len)))
}

fn to_offset(bytes: usize) -> io::Result<i64> {
    i64::try_from(bytes).map_err(|_| io::ErrorKind::InvalidInput.into())
}

/// [Reserves](reserve) `len` shared 64-bit words, all 0, and maps them. Returns them with the descriptor of
/// their memory.
///
/// # Errors
/// As [`reserve`], or if the words cannot be mapped.
pub fn reserve_words(len: NonZeroUsize) -> io::Result<(SharedWords, HeldFd)> {
    let bytes = len.checked_mul(const { NonZeroUsize::new(size_of::<u64>()).unwrap() });
    let fd = reserve(bytes.ok_or(io::ErrorKind::InvalidInput)?)?;
    Ok((SharedWords::map(&fd, len)?, fd))
}

fn memfd(name: &std::ffi::CStr) -> io::Result<OwnedFd> {
    permitted("memfd_create", memfd_create(name, MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING))
}

fn seal(fd: &OwnedFd, seals: SealFlag) -> io::Result<()> {
    permitted("fcntl(F_ADD_SEALS)", fcntl(fd, FcntlArg::F_ADD_SEALS(seals | SealFlag::F_SEAL_SEAL))).map(drop)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    fn copy(memory: &SealedMemory) -> OwnedFd {
        memory.fd().as_fd().try_clone_to_owned().unwrap()
    }

    #[test]
    fn sealed_memory_keeps_its_bytes_and_refuses_writes() {
        let memory = SealedMemory::new(b"rows").unwrap();
        assert_eq!(memory.bytes(), b"rows");
        let again = SealedMemory::open(copy(&memory)).unwrap();
        assert_eq!(again.bytes(), b"rows");
        let mut file = File::from(copy(&memory));
        assert!(file.write_all(b"more").is_err());
        assert_eq!(SealedMemory::new(b"").unwrap().bytes(), b"");
    }

    #[test]
    fn memory_that_can_still_change_is_refused() {
        let fd = reserve(NonZeroUsize::new(64).unwrap()).unwrap();
        assert!(SealedMemory::open(fd.as_fd().try_clone_to_owned().unwrap()).is_err());
    }

    #[test]
    fn pages_are_reserved_and_given_back() {
        let page = NonZeroUsize::new(4096).unwrap();
        let fd = create(page.checked_mul(NonZeroUsize::new(100).unwrap()).unwrap()).unwrap();
        let pages = || nix::sys::stat::fstat(&fd).unwrap().st_blocks / 8;
        assert_eq!(pages(), 0);
        reserve_pages(&fd, 4096, page).unwrap();
        reserve_pages(&fd, 3 * 4096, page).unwrap();
        assert_eq!(pages(), 2);
        release_pages(&fd, 4096, page).unwrap();
        assert_eq!(pages(), 1);
        assert!(reserve_pages(&fd, 100 * 4096, page).is_err(), "the range is behind the end");
    }

    #[test]
    fn reserved_memory_cannot_shrink() {
        let fd = reserve(NonZeroUsize::new(8192).unwrap()).unwrap();
        assert!(ftruncate(&fd, 0).is_err());
    }
}
