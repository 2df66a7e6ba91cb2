//! An open data file.

use std::{
    fs::{File, OpenOptions},
    io::{self, BufRead, Read},
    ops::Range,
    os::unix::fs::{FileExt, OpenOptionsExt},
    sync::Arc,
};

use super::{DataFile, Location};
use crate::error::{DataError, DataProblem, Position, Result};

/// Number of bytes that a [`BlobReader`] reads at once.
const CHUNK: usize = 256 << 10;

/// An open data file that is read at any position.
///
/// It reads with system calls instead of a memory map: a map would turn a file that another program truncates into a
/// signal that ends the process, and costs a page fault where a read costs a copy.
#[derive(Debug)]
pub(crate) struct Blob {
    file: DataFile,
    inner: Inner,
}

#[derive(Debug)]
enum Inner {
    Local(File),
}

impl Blob {
    /// Opens `file`.
    ///
    /// # Errors
    /// Returns an error if the file cannot be opened, or is not the one that was listed.
    pub(crate) fn open(file: DataFile) -> Result<Self> {
        let Location::Path(path) = &file.location else {
            unreachable!("`Files::list` refuses URLs");
        };
        let failed = |error: io::Error| match error.kind() {
            io::ErrorKind::NotFound => DataError::new(&file.location, DataProblem::NotFound),
            _ => DataError::new(&file.location, error),
        };
        // Opening a named pipe would wait for a writer without this flag.
        let flags = rustix::fs::OFlags::NONBLOCK.bits() as i32;
        let open = OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(failed)?;
        let metadata = open.metadata().map_err(failed)?;
        file.check_unchanged(&DataFile::of(file.location.clone(), &metadata)?)?;
        Ok(Self { file, inner: Inner::Local(open) })
    }

    /// The file as it was listed.
    pub(crate) fn file(&self) -> &DataFile {
        &self.file
    }

    /// Number of bytes.
    pub(crate) fn len(&self) -> u64 {
        self.file.len
    }

    /// Fills `bytes` with the content at `offset`.
    ///
    /// # Errors
    /// Returns [`DataProblem::Truncated`] if the file ends before `bytes` is full.
    pub(crate) fn read_exact_at(&self, bytes: &mut [u8], offset: u64) -> Result<()> {
        let Inner::Local(file) = &self.inner;
        file.read_exact_at(bytes, offset).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => self.error(offset, DataProblem::Truncated),
            _ => self.error(offset, error),
        })
    }

    /// Returns the bytes of `range`.
    ///
    /// # Errors
    /// As for [`read_exact_at`](Self::read_exact_at). The range is checked before memory is allocated for it.
    pub(crate) fn read(&self, range: Range<u64>) -> Result<Vec<u8>> {
        if range.start > range.end || range.end > self.len() {
            return Err(self.error(range.start, DataProblem::Truncated));
        }
        let mut bytes = vec![0; (range.end - range.start) as usize];
        self.read_exact_at(&mut bytes, range.start)?;
        Ok(bytes)
    }

    /// Returns a reader of `range`, for reading from its beginning to its end.
    pub(crate) fn reader(self: &Arc<Self>, range: Range<u64>) -> BlobReader {
        BlobReader {
            blob: Arc::clone(self),
            next: range.start,
            end: range.end.min(self.len()),
            chunk: Vec::new(),
            taken: 0,
        }
    }

    /// Returns the error of a [`BlobReader`] of this file, or of a decoder on top of it.
    pub(crate) fn read_error(&self, offset: u64, error: io::Error) -> DataError {
        match error.downcast::<DataError>() {
            Ok(error) => error,
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                self.error(offset, DataProblem::Truncated)
            }
            Err(error) => self.error(offset, error),
        }
    }

    /// Returns an error about this file at `offset`.
    pub(crate) fn error(&self, offset: u64, problem: impl Into<DataProblem>) -> DataError {
        DataError::new(&self.file.location, problem).at(Position::Offset(offset))
    }
}

/// Reads a range of a [`Blob`] in large chunks.
#[derive(Debug)]
pub(crate) struct BlobReader {
    blob: Arc<Blob>,
    /// Offset of the next chunk.
    next: u64,
    end: u64,
    chunk: Vec<u8>,
    /// Number of bytes of the chunk that were consumed.
    taken: usize,
}

impl BlobReader {
    /// Offset in the file of the next byte that is returned.
    pub(crate) fn position(&self) -> u64 {
        self.next - (self.chunk.len() - self.taken) as u64
    }
}

impl BufRead for BlobReader {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.taken == self.chunk.len() {
            let len = (self.end - self.next).min(CHUNK as u64);
            self.chunk.resize(len as usize, 0);
            self.taken = self.chunk.len();
            self.blob.read_exact_at(&mut self.chunk, self.next).map_err(io::Error::other)?;
            self.next += len;
            self.taken = 0;
        }
        Ok(&self.chunk[self.taken..])
    }

    fn consume(&mut self, amount: usize) {
        self.taken = (self.taken + amount).min(self.chunk.len());
    }
}

impl Read for BlobReader {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let chunk = self.fill_buf()?;
        let len = chunk.len().min(bytes.len());
        bytes[..len].copy_from_slice(&chunk[..len]);
        self.consume(len);
        Ok(len)
    }
}
