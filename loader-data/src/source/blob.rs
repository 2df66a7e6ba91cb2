//! An open data file.

use std::{
    fs::{File, OpenOptions},
    io::{self, BufRead, Read, Seek, SeekFrom},
    ops::Range,
    os::unix::fs::{FileExt, OpenOptionsExt},
    sync::Arc,
    time::SystemTime,
};

use bytes::Bytes;
use loader_core::{DatasetMemory, Phase, internal::Reclaimable};

use super::{
    DataFile, Location, ReadAhead,
    remote::{Ahead, Object},
};
use crate::error::{DataError, DataProblem, Position, Result};

/// Number of bytes that a [`BlobReader`] reads at once from a local file.
const CHUNK: u64 = 256 << 10;

/// The same for a file on a server: of the first chunk, and at most. Each chunk is four times as large as the
/// one before, so that a short read stays cheap.
const REMOTE_CHUNKS: (u64, u64) = (512 << 10, 8 << 20);

/// The beginning of the text that Git LFS puts in place of a file, and the maximum number of its bytes.
const LFS_POINTER: [u8; 39] = *b"version https://git-lfs.github.com/spec";
const MAX_LFS_POINTER: u64 = 1024;

/// Bytes between two ranges up to which fetching them from a server costs less than another request does.
pub(super) const GAP: u64 = 1 << 20;

/// Number of bytes after the part that a [`BlobReader`] is expected to read, which it reads together with the part: of
/// a local file, and of a file on a server, where another request costs more.
const TAILS: (u64, u64) = (4 << 10, 64 << 10);

/// Number of bytes of the first chunk of a file on a server that is fetched before it is needed.
const BEGUN_CHUNK: u64 = 2 << 20;

/// An open data file that is read at any position.
///
/// It reads with system calls instead of a memory map: a map would turn a file that another program truncates
/// into a signal that ends the process, and costs a page fault where a read costs a copy.
#[derive(Debug)]
pub(crate) struct Blob {
    file: DataFile,
    inner: Inner,
}

#[derive(Debug)]
enum Inner {
    Local {
        file: File,
        /// Time of the last modification, which is that of the listed file.
        modified: SystemTime,
    },
    Remote(Object),
}

impl Blob {
    /// Opens `file`, which lies on the local file system.
    ///
    /// # Errors
    /// Returns an error if the file cannot be opened, or is not the one that was listed.
    pub(crate) fn open(file: DataFile) -> Result<Self> {
        let Location::Path(path) = &file.location else {
            return Err(super::without_cloud(&file.location));
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
        let mut start = [0; LFS_POINTER.len()];
        if metadata.len() <= MAX_LFS_POINTER
            && open.read_exact_at(&mut start, 0).is_ok()
            && start == LFS_POINTER
        {
            return Err(DataError::new(&file.location, DataProblem::GitLfsPointer));
        }
        let modified = metadata.modified().map_err(failed)?;
        Ok(Self { file, inner: Inner::Local { file: open, modified } })
    }

    /// Takes a file on a server.
    pub(super) fn remote(object: Object, file: DataFile) -> Self {
        Self { file, inner: Inner::Remote(object) }
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
    /// Returns [`DataProblem::Changed`] if the file is not what was listed, and [`DataProblem::Truncated`] if
    /// it ends before `bytes` is full.
    pub(crate) fn read_exact_at(&self, bytes: &mut [u8], offset: u64) -> Result<()> {
        Phase::Read.measure(|| self.fill(bytes, offset))
    }

    fn fill(&self, bytes: &mut [u8], offset: u64) -> Result<()> {
        match &self.inner {
            Inner::Local { file, modified } => {
                let read = file.read_exact_at(bytes, offset);
                // After the read, because a write sets the time before it changes the content.
                self.check_unchanged(file, *modified)?;
                read.map_err(|error| self.read_error(offset, error))
            }
            Inner::Remote(_) => {
                let end = offset.saturating_add(bytes.len() as u64);
                let read = self.read_ranges(std::slice::from_ref(&(offset..end)))?;
                bytes.copy_from_slice(&read[0]);
                Ok(())
            }
        }
    }

    /// Returns an error if the open file has another size or time than the listed file.
    fn check_unchanged(&self, file: &File, modified: SystemTime) -> Result<()> {
        let failed = |error: io::Error| DataError::new(&self.file.location, error);
        let now = file.metadata().map_err(failed)?;
        if (now.len(), now.modified().map_err(failed)?) == (self.file.len, modified) {
            return Ok(());
        }
        self.file.check_unchanged(&DataFile::of(self.file.location.clone(), &now)?)
    }

    /// Returns the bytes of `range`.
    ///
    /// # Errors
    /// As for [`read_exact_at`](Self::read_exact_at). The range is checked before memory is allocated for it.
    pub(crate) fn read(&self, range: Range<u64>) -> Result<Vec<u8>> {
        if self.is_remote() {
            return self.read_ranges(std::slice::from_ref(&range)).map(|mut read| read.remove(0).into());
        }
        self.check(&range)?;
        let mut bytes = vec![0; (range.end - range.start) as usize];
        self.read_exact_at(&mut bytes, range.start)?;
        Ok(bytes)
    }

    /// Returns the bytes of each range. From a server, it fetches ranges near each other with one request,
    /// and others at the same time, so that one call for all rows of a batch costs much less than one call
    /// per row.
    ///
    /// # Errors
    /// As for [`read`](Self::read).
    pub(crate) fn read_ranges(&self, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        self.read_ranges_within(ranges, GAP)
    }

    /// As [`read_ranges`](Self::read_ranges), but from a server with one request only for ranges with at most `gap` bytes
    /// between them.
    ///
    /// # Errors
    /// As for [`read`](Self::read).
    pub(crate) fn read_ranges_within(&self, ranges: &[Range<u64>], gap: u64) -> Result<Vec<Bytes>> {
        ranges.iter().try_for_each(|range| self.check(range))?;
        Phase::Read.measure(|| self.read_checked(ranges, gap))
    }

    fn read_checked(&self, ranges: &[Range<u64>], gap: u64) -> Result<Vec<Bytes>> {
        match &self.inner {
            Inner::Local { file, modified } => {
                let mut failed = None;
                let mut read = Vec::with_capacity(ranges.len());
                for range in ranges {
                    let mut bytes = vec![0; (range.end - range.start) as usize];
                    if let Err(error) = file.read_exact_at(&mut bytes, range.start) {
                        failed = Some((range.start, error));
                        break;
                    }
                    read.push(bytes.into());
                }
                // Once for all of them: a check costs about as much as a small read.
                self.check_unchanged(file, *modified)?;
                failed.map_or(Ok(read), |(offset, error)| Err(self.read_error(offset, error)))
            }
            Inner::Remote(object) => {
                object.read(ranges, gap).map_err(|problem| self.ranges_error(ranges, problem))
            }
        }
    }

    /// Passes the number and the bytes of each range to `take`, in order. The bytes of a local file are read into
    /// `buffer`, which grows to the length of the longest range.
    ///
    /// # Errors
    /// As for [`read`](Self::read), and the errors of `take`.
    pub(crate) fn read_each(
        &self,
        ranges: &[Range<u64>],
        buffer: &mut Vec<u8>,
        mut take: impl FnMut(usize, &[u8]) -> Result<()>,
    ) -> Result<()> {
        match &self.inner {
            Inner::Local { file, modified } => {
                ranges.iter().try_for_each(|range| self.check(range))?;
                let taken = ranges.iter().enumerate().try_for_each(|(number, range)| {
                    let len = (range.end - range.start) as usize;
                    if buffer.len() < len {
                        buffer.resize(len, 0);
                    }
                    let bytes = &mut buffer[..len];
                    let read = Phase::Read.measure(|| file.read_exact_at(bytes, range.start));
                    read.map_err(|error| self.read_error(range.start, error))?;
                    take(number, bytes)
                });
                // Once for all of them, and before an error of bytes that may be those of another file.
                self.check_unchanged(file, *modified)?;
                taken
            }
            Inner::Remote(_) => {
                let read = self.read_ranges(ranges)?;
                read.iter().enumerate().try_for_each(|(number, bytes)| take(number, bytes))
            }
        }
    }

    fn check(&self, range: &Range<u64>) -> Result<()> {
        if range.start > range.end || range.end > self.len() {
            return Err(self.error(range.start, DataProblem::Truncated));
        }
        Ok(())
    }

    /// Returns a reader of `range`, for reading from its beginning to its end.
    pub(crate) fn reader(self: &Arc<Self>, range: Range<u64>) -> BlobReader {
        BlobReader {
            blob: Arc::clone(self),
            next: range.start,
            end: range.end.min(self.len()),
            expected_end: u64::MAX,
            chunk: Vec::new(),
            taken: 0,
            max_chunk: if self.is_remote() { REMOTE_CHUNKS.0 } else { CHUNK },
            ahead: None,
            memory: DatasetMemory::default(),
        }
    }

    /// Starts to read ranges of a file on a server, see [`ReadAhead::start`].
    pub(super) fn read_ahead(
        &self,
        ranges: &[Range<u64>],
        memory: &DatasetMemory,
    ) -> Option<Reclaimable<Ahead>> {
        match &self.inner {
            Inner::Local { .. } => None,
            Inner::Remote(object) => {
                ranges.iter().try_for_each(|range| self.check(range)).ok()?;
                object.read_ahead(ranges.to_vec(), memory)
            }
        }
    }

    pub(crate) fn is_remote(&self) -> bool {
        match &self.inner {
            Inner::Local { .. } => false,
            Inner::Remote(_) => true,
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

    /// Returns the error of a reader of this file, as [`read_error`](Self::read_error) does if the problem is
    /// that it cannot be read.
    pub(crate) fn problem(&self, offset: u64, problem: DataProblem) -> DataError {
        match problem {
            DataProblem::Unreadable(error) => self.read_error(offset, error),
            problem => self.error(offset, problem),
        }
    }

    /// Returns an error about ranges of this file.
    pub(super) fn ranges_error(&self, ranges: &[Range<u64>], problem: DataProblem) -> DataError {
        let offset = ranges.iter().map(|range| range.start).min().unwrap_or_default();
        self.error(offset, problem)
    }

    /// Returns an error about this file at `offset`.
    pub(crate) fn error(&self, offset: u64, problem: impl Into<DataProblem>) -> DataError {
        DataError::new(&self.file.location, problem).at(Position::Offset(offset))
    }
}

/// Reads a range of a [`Blob`] in large chunks. From a server, it fetches the next chunk while the last one
/// is used.
#[derive(Debug)]
pub(crate) struct BlobReader {
    blob: Arc<Blob>,
    /// Offset of the next chunk.
    next: u64,
    end: u64,
    /// Chunks end here, and nothing after it is read ahead.
    expected_end: u64,
    chunk: Vec<u8>,
    /// Number of bytes of the chunk that were consumed.
    taken: usize,
    /// Maximum number of bytes of the next chunk.
    max_chunk: u64,
    /// The next chunk, which is being fetched.
    ahead: Option<ReadAhead>,
    /// The account of the bytes of `ahead`.
    memory: DatasetMemory,
}

impl BlobReader {
    /// Makes the reader read ahead only what `memory` has room for. Without this call, the reader has no limit.
    pub(crate) fn with_memory(self, memory: &DatasetMemory) -> Self {
        Self { memory: memory.clone(), ..self }
    }

    /// Moves on to `position`, and drops what was read ahead.
    pub(crate) fn skip_to(&mut self, position: u64) {
        *self = self.blob.reader(position..self.end).with_memory(&self.memory);
    }

    /// Expects that the caller stops near `end`, and reads little after it before the caller asks for more.
    pub(crate) fn expect_end(mut self, end: u64) -> Self {
        let tail = if self.blob.is_remote() { TAILS.1 } else { TAILS.0 };
        self.expected_end = end.saturating_add(tail);
        self
    }

    /// Starts to fetch the first chunk from a server, so that it is there when the caller reads it. Does nothing for a
    /// local file.
    pub(crate) fn begin(&mut self) {
        if self.blob.is_remote() && self.next < self.end {
            self.max_chunk = BEGUN_CHUNK;
            self.read_ahead();
        }
    }

    /// Starts to fetch the next chunk, or half of it, a quarter and so on, down to the length of a first chunk, if
    /// `memory` has no room for more.
    fn read_ahead(&mut self) {
        let mut len = self.chunk_end(self.next) - self.next;
        loop {
            let range = self.next..self.next + len;
            self.ahead = ReadAhead::start(&self.blob, vec![range], &self.memory);
            if self.ahead.is_some() || len <= REMOTE_CHUNKS.0 {
                return;
            }
            len = (len / 2).max(REMOTE_CHUNKS.0);
        }
    }

    /// Returns the end of the chunk that begins at `start`.
    fn chunk_end(&self, start: u64) -> u64 {
        if start < self.expected_end {
            self.end.min(self.expected_end).min(start + self.max_chunk)
        } else {
            self.end.min(start + self.max_chunk.min(REMOTE_CHUNKS.0))
        }
    }

    fn read_chunk(&mut self) -> Result<()> {
        // With the wait for what is read ahead.
        Phase::Read.measure(|| self.read_next_chunk())
    }

    fn read_next_chunk(&mut self) -> Result<()> {
        self.chunk = match self.ahead.take() {
            Some(ahead) => ahead.read()?.remove(0).into(),
            None if self.blob.is_remote() => self.blob.read(self.next..self.chunk_end(self.next))?,
            None => {
                let end = self.chunk_end(self.next);
                let mut chunk = std::mem::take(&mut self.chunk);
                chunk.resize((end - self.next) as usize, 0);
                self.blob.read_exact_at(&mut chunk, self.next)?;
                chunk
            }
        };
        // What was read ahead may be shorter than `max_chunk`.
        self.next += self.chunk.len() as u64;
        self.taken = 0;
        if self.blob.is_remote() && self.next < self.end.min(self.expected_end) {
            self.max_chunk = (self.max_chunk * 4).min(REMOTE_CHUNKS.1);
            self.read_ahead();
        }
        Ok(())
    }
}

impl BufRead for BlobReader {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.taken == self.chunk.len() && self.next < self.end {
            let read = self.read_chunk();
            if read.is_err() {
                (self.chunk, self.taken) = (Vec::new(), 0);
            }
            read.map_err(io::Error::other)?;
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

/// Reads and seeks in a [`Blob`], without a buffer: each call of `read` reads the file.
pub(crate) struct BlobCursor {
    blob: Arc<Blob>,
    position: u64,
}

impl BlobCursor {
    pub(crate) fn new(blob: &Arc<Blob>) -> Self {
        Self { blob: Arc::clone(blob), position: 0 }
    }

    /// Number of bytes of the file.
    #[cfg(feature = "audio")]
    pub(crate) fn len(&self) -> u64 {
        self.blob.len()
    }
}

impl Read for BlobCursor {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let len = self.blob.len().saturating_sub(self.position).min(bytes.len() as u64);
        self.blob.read_exact_at(&mut bytes[..len as usize], self.position).map_err(io::Error::other)?;
        self.position += len;
        Ok(len as usize)
    }
}

impl Seek for BlobCursor {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let position = match to {
            SeekFrom::Start(position) => Some(position),
            SeekFrom::End(offset) => self.blob.len().checked_add_signed(offset),
            SeekFrom::Current(offset) => self.position.checked_add_signed(offset),
        };
        self.position = position.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.position)
    }
}
