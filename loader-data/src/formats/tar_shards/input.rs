//! The bytes of an archive, decompressed if necessary.

use std::{
    io::{self, BufRead, Read},
    ops::Range,
    sync::Arc,
};

use crate::{
    error::{DataProblem, Result},
    source::{Blob, BlobReader, Compression, Decompressor, problem},
};

/// Size of the blocks that an archive consists of.
pub(super) const BLOCK: u64 = 512;

/// Maximum number of bytes of an archive that is not compressed that are read ahead.
pub(super) const CHUNK: usize = 256 << 10;

/// Maximum number of bytes of a file on a server that are read and dropped, because a new request takes longer.
const MAX_DISCARDED: u64 = 4 << 20;

/// Number of bytes at the beginning of a file that identify its compression.
const START: usize = 512;

/// Reads the bytes of an archive from a position on.
#[derive(Debug)]
pub(super) struct Input {
    source: InputSource,
    /// Offset in the archive (after decompression) of the byte that is read next.
    position: u64,
    /// True if the end of the archive was read.
    has_ended: bool,
    /// Number of bytes that may still be read.
    budget: u64,
}

#[derive(Debug)]
enum InputSource {
    Plain(Plain),
    /// A file on a server, which is read ahead in chunks that grow.
    Remote(BlobReader, Arc<Blob>),
    Compressed(Compression, Decompressor),
}

impl Input {
    /// Opens an archive at the beginning. The first bytes decide whether it is compressed. `begun` may be a reader of
    /// the whole file that has read nothing yet.
    pub(super) fn open(blob: &Arc<Blob>, begun: Option<BlobReader>) -> Result<Self> {
        let mut begun = begun.filter(|_| blob.is_remote());
        let start = match &mut begun {
            Some(reader) => {
                let chunk = reader.fill_buf().map_err(|error| blob.read_error(0, error))?;
                chunk[..chunk.len().min(START)].to_vec()
            }
            None => blob.read(0..blob.len().min(START as u64))?,
        };
        let compression = compression(blob, &start).map_err(|problem| blob.error(0, problem))?;
        let reader = || begun.unwrap_or_else(|| blob.reader(0..blob.len()));
        Ok(Self::new(match compression {
            Some(compression) => InputSource::Compressed(compression, compression.reader(reader())),
            None if blob.is_remote() => InputSource::Remote(reader(), Arc::clone(blob)),
            None => InputSource::Plain(Plain::new(blob, 0..blob.len(), CHUNK)),
        }))
    }

    /// Reads a range of an archive that is not compressed, up to `ahead` bytes at a time. Offsets are those
    /// of the whole archive.
    pub(super) fn part(blob: &Arc<Blob>, range: Range<u64>, ahead: usize) -> Self {
        let position = range.start;
        Self { position, ..Self::new(InputSource::Plain(Plain::new(blob, range, ahead))) }
    }

    fn new(source: InputSource) -> Self {
        Self { source, position: 0, has_ended: false, budget: u64::MAX }
    }

    pub(super) fn is_compressed(&self) -> bool {
        matches!(self.source, InputSource::Compressed(..))
    }

    pub(super) fn position(&self) -> u64 {
        self.position
    }

    /// Number of bytes that follow, if it is known.
    pub(super) fn remaining(&self) -> Option<u64> {
        match &self.source {
            InputSource::Plain(plain) => Some(plain.end.saturating_sub(self.position)),
            InputSource::Remote(_, blob) => Some(blob.len().saturating_sub(self.position)),
            InputSource::Compressed(..) => None,
        }
    }

    /// Moves on to `position`, without reading what is between if the archive is not compressed.
    pub(super) fn skip_to(&mut self, position: u64) -> io::Result<()> {
        if let Some(remaining) = self.remaining() {
            self.has_ended = position.saturating_sub(self.position) > remaining;
            if self.has_ended {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        match &mut self.source {
            InputSource::Plain(_) => {
                self.position = position;
                return Ok(());
            }
            InputSource::Remote(reader, _) if position.saturating_sub(self.position) > MAX_DISCARDED => {
                reader.skip_to(position);
                self.position = position;
                return Ok(());
            }
            _ => {}
        }
        let mut buffer = vec![0; position.saturating_sub(self.position).min(32 << 10) as usize];
        while self.position < position {
            let len = (position - self.position).min(buffer.len() as u64);
            self.read_exact(&mut buffer[..len as usize])?;
        }
        Ok(())
    }

    /// Calls `read`, which may read `budget` bytes.
    pub(super) fn limited<T>(&mut self, budget: u64, read: impl FnOnce(&mut Self) -> T) -> T {
        self.budget = budget;
        let result = read(self);
        self.budget = u64::MAX;
        result
    }

    /// Returns what an error means that a reader of this input has returned.
    pub(super) fn problem(&self, error: io::Error) -> DataProblem {
        let format = match self.source {
            InputSource::Plain(_) | InputSource::Remote(..) => "tar",
            InputSource::Compressed(Compression::Gzip, _) => "tar in gzip",
            InputSource::Compressed(Compression::Zstd, _) => "tar in Zstandard",
        };
        match problem(format, error) {
            // The crate `tar` has an error of its own for an archive that ends in a member.
            DataProblem::Malformed { .. } if self.has_ended => DataProblem::Truncated,
            problem => problem,
        }
    }
}

impl Read for Input {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let len = usize::try_from(self.budget).map_or(bytes.len(), |budget| bytes.len().min(budget));
        if len < bytes.len() && len == 0 {
            return Err(io::Error::other("the headers of one member have more than 1 MiB"));
        }
        let bytes = &mut bytes[..len];
        let len = match &mut self.source {
            InputSource::Plain(plain) => plain.read(bytes, self.position)?,
            InputSource::Remote(reader, _) => reader.read(bytes)?,
            InputSource::Compressed(_, reader) => reader.read(bytes)?,
        };
        self.has_ended = len == 0 && !bytes.is_empty();
        self.position += len as u64;
        self.budget -= len as u64;
        Ok(len)
    }
}

/// A range of a file, read ahead in chunks.
#[derive(Debug)]
struct Plain {
    blob: Arc<Blob>,
    end: u64,
    /// Maximum number of bytes that are read ahead.
    ahead: usize,
    chunk: Vec<u8>,
    /// Offset of the chunk in the file.
    chunk_start: u64,
}

impl Plain {
    fn new(blob: &Arc<Blob>, range: Range<u64>, ahead: usize) -> Self {
        let end = range.end.min(blob.len());
        Self { blob: Arc::clone(blob), end, ahead, chunk: Vec::new(), chunk_start: range.start }
    }

    /// Reads up to `bytes.len()` bytes at `position`; 0 bytes at the end.
    fn read(&mut self, bytes: &mut [u8], position: u64) -> io::Result<usize> {
        let len = self.end.saturating_sub(position).min(bytes.len() as u64) as usize;
        let bytes = &mut bytes[..len];
        let mut offset = position.checked_sub(self.chunk_start);
        if offset.is_none_or(|offset| offset >= self.chunk.len() as u64) {
            if len >= self.ahead {
                self.blob.read_exact_at(bytes, position).map_err(io::Error::other)?;
                return Ok(len);
            }
            let chunk = (self.end.saturating_sub(position)).min(self.ahead as u64) as usize;
            self.chunk.resize(chunk, 0);
            self.chunk_start = position;
            offset = Some(0);
            let read = self.blob.read_exact_at(&mut self.chunk, position);
            read.map_err(|error| {
                self.chunk.clear();
                io::Error::other(error)
            })?;
        }
        let chunk = &self.chunk[offset.unwrap_or_default() as usize..];
        let len = len.min(chunk.len());
        bytes[..len].copy_from_slice(&chunk[..len]);
        Ok(len)
    }
}

/// Recognises the compression of an archive by its first bytes, which must agree with its name.
fn compression(blob: &Blob, start: &[u8]) -> Result<Option<Compression>, DataProblem> {
    if start.is_empty() {
        return Err(DataProblem::Truncated);
    }
    if start.starts_with(b"PK\x03\x04") {
        let reason = "the file is a zip archive; pack it again with tar".to_owned();
        return Err(DataProblem::Unsupported(reason));
    }
    if let Some(found) = Compression::of_start(start)? {
        return Ok(Some(found));
    }
    let location = &blob.file().location;
    let is_tgz = location.file_name().to_ascii_lowercase().ends_with(".tgz");
    let named = if is_tgz { Some(Compression::Gzip) } else { Compression::of(location) };
    let is_tar = start.get(257..262) == Some(b"ustar") || start.iter().all(|&byte| byte == 0);
    match named {
        Some(named) if !is_tar => {
            let reason = "the first bytes are those of another format".to_owned();
            Err(DataProblem::Malformed { format: named.name(), reason })
        }
        _ => Ok(None),
    }
}
