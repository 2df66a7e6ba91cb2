//! The members of an archive, read with the crate `tar`.

use std::{
    io::{self, Read, Seek, SeekFrom},
    ops::Range,
    sync::Arc,
};

use serde::{Deserialize, Serialize};
use tar::Archive;

use super::input::{BLOCK, CHUNK, Input};
use crate::{
    error::{DataError, DataProblem, Position, Result},
    source::{Blob, BlobReader},
};

/// Maximum number of bytes of all headers of one member: its name, and other attributes that tar stores before
/// it.
const MAX_HEADERS: u64 = 1 << 20;

/// Number of bytes that are read ahead where most data is skipped.
const HEADERS_AHEAD: usize = 16 << 10;

/// Number of bytes that are allocated for data before any of it has been read.
const FIRST_BYTES: u64 = 1 << 20;

/// Reads the members of an archive in order.
#[derive(Debug)]
pub(super) struct Members {
    blob: Arc<Blob>,
    input: Input,
    /// Offset of the next header.
    next: u64,
    end: End,
}

/// What may follow the last member.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum End {
    /// A block of zeros. An archive without it may have been cut off between two members.
    Marker,
    /// A block of zeros, or nothing.
    Any,
}

/// A member, up to its data.
#[derive(Debug, PartialEq)]
pub(super) struct Member {
    pub(super) name: Vec<u8>,
    /// Offset of its first header in the archive.
    pub(super) start: u64,
    /// Number of bytes of its data.
    pub(super) size: u64,
    /// True if it is a file, not a folder or a link.
    pub(super) is_file: bool,
}

/// What the headers of a member say.
struct Headers {
    name: Vec<u8>,
    size: u64,
    is_file: bool,
    is_sparse: bool,
}

impl Members {
    /// Opens an archive. The next member is the one whose headers begin at `start`. `begun` may be a reader of the
    /// whole file that has read nothing yet.
    pub(super) fn open(blob: &Arc<Blob>, begun: Option<BlobReader>, start: u64, end: End) -> Result<Self> {
        Ok(Self { blob: Arc::clone(blob), input: Input::open(blob, begun)?, next: start, end })
    }

    /// Opens the members in `range` of an archive that is not compressed. If only `some` of them are needed,
    /// the data of the others is not read.
    pub(super) fn part(blob: &Arc<Blob>, range: Range<u64>, some: bool) -> Self {
        let ahead = if some { HEADERS_AHEAD } else { (range.end - range.start).min(CHUNK as u64) as usize };
        let next = range.start;
        Self { blob: Arc::clone(blob), input: Input::part(blob, range, ahead), next, end: End::Any }
    }

    /// Opens an archive for reading the headers of all members.
    ///
    /// # Errors
    /// Returns an error if it is compressed: what is between the headers could not be skipped.
    pub(super) fn headers(blob: &Arc<Blob>, end: End) -> Result<Self> {
        let input = Input::open(blob, None)?;
        if input.is_compressed() {
            let advice = "random access needs an archive that is not compressed; decompress it, or read it as a stream";
            return Err(blob.error(0, DataProblem::Unsupported(advice.to_owned())).at(Position::File));
        }
        let part = || Input::part(blob, 0..blob.len(), HEADERS_AHEAD);
        // From a server, reading everything is faster than one request per member.
        let input = if blob.is_remote() { input } else { part() };
        Ok(Self { blob: Arc::clone(blob), input, next: 0, end })
    }

    /// Offset of the headers of the next member.
    pub(super) fn position(&self) -> u64 {
        self.next
    }

    /// Reads the headers of the next member. Data of the last member that was not read is skipped.
    ///
    /// # Errors
    /// Returns an error if the archive is damaged. It cannot be read further.
    pub(super) fn next(&mut self) -> Result<Option<Member>> {
        let start = self.next;
        let error = |members: &Self, error| members.blob.error(start, members.input.problem(error));
        self.input.skip_to(start).map_err(|problem| error(self, problem))?;
        let headers = self.input.limited(MAX_HEADERS, Headers::read);
        let Some(headers) = headers.map_err(|problem| error(self, problem))? else {
            let found = self.check_end(start).map_err(|problem| error(self, problem))?;
            return found.map_or(Ok(None), |problem| Err(self.blob.error(start, problem)));
        };
        let Headers { name, size, is_file, is_sparse } = headers;
        let member = Member { name, start, size, is_file };
        if is_sparse {
            let advice = "the member is sparse; pack the archive again without `--sparse`";
            return Err(self.error(&member, DataProblem::Unsupported(advice.to_owned())));
        }
        let next =
            size.checked_next_multiple_of(BLOCK).and_then(|size| self.input.position().checked_add(size));
        self.next = next.ok_or_else(|| self.error(&member, DataProblem::Truncated))?;
        Ok(Some(member))
    }

    /// Reads the data of `member`, which must be the last member returned.
    ///
    /// # Errors
    /// As for [`next`](Self::next).
    pub(super) fn data(&mut self, member: &Member) -> Result<Vec<u8>> {
        let read = self.read_data(member.size);
        read.map_err(|error| self.error(member, self.input.problem(error)))
    }

    fn read_data(&mut self, size: u64) -> io::Result<Vec<u8>> {
        let available = self.input.remaining();
        if available.is_some_and(|available| size > available) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if available.is_some() || size <= FIRST_BYTES {
            let mut data = vec![0; size as usize];
            self.input.read_exact(&mut data)?;
            return Ok(data);
        }
        // The size may be wrong, so memory grows with what is read.
        let mut data = Vec::with_capacity(FIRST_BYTES as usize);
        (&mut self.input).take(size).read_to_end(&mut data)?;
        if data.len() as u64 == size { Ok(data) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }

    /// Checks what follows the last member, which ends at `start`. Reads to the end of the file, which also
    /// checks the checksum of the compression.
    fn check_end(&mut self, start: u64) -> io::Result<Option<DataProblem>> {
        let has_marker = self.input.position() > start;
        if !has_marker && self.end == End::Marker {
            return Ok(Some(DataProblem::Truncated));
        }
        let mut bytes = vec![0; 32 << 10];
        loop {
            let len = self.input.read(&mut bytes)?;
            if len == 0 {
                return Ok(None);
            }
            if bytes[..len].iter().any(|&byte| byte != 0) {
                let reason = "there is data after the end of the archive; if archives were joined, join them with \
                              `tar --concatenate`, or read them as separate files";
                return Ok(Some(DataProblem::Malformed { format: "tar", reason: reason.to_owned() }));
            }
        }
    }

    /// Returns an error about `member`.
    pub(super) fn error(&self, member: &Member, problem: DataProblem) -> DataError {
        let name = String::from_utf8_lossy(&member.name).into_owned();
        self.blob.error(0, problem).at(Position::Member(name))
    }
}

/// Input whose positions are counted from `start`. It only seeks forwards.
struct FromStart<'a> {
    input: &'a mut Input,
    start: u64,
}

impl Read for FromStart<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.input.read(bytes)
    }
}

impl Seek for FromStart<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let position = match to {
            SeekFrom::Current(offset @ 0..) => self.input.position().checked_add_signed(offset),
            _ => None,
        };
        self.input.skip_to(position.ok_or(io::ErrorKind::InvalidInput)?)?;
        Ok(self.input.position() - self.start)
    }
}

impl Headers {
    /// Reads the headers of one member, up to its data. Returns `None` at the end of the file, or after a
    /// block of zeros.
    fn read(input: &mut Input) -> io::Result<Option<Self>> {
        // An `Archive` for each member: its iterator borrows the archive and cannot be sent to another
        // thread. Without `Seek`, it clears 32 KiB before each header.
        let start = input.position();
        let mut archive = Archive::new(FromStart { input, start });
        let Some(entry) = archive.entries_with_seek()?.next() else { return Ok(None) };
        let mut entry = entry?;
        let (kind, size) = (entry.header().entry_type(), entry.size());
        let mut is_sparse = kind.is_gnu_sparse();
        if !kind.is_pax_global_extensions() && !kind.is_pax_local_extensions() {
            let (mut has_path, mut is_cut) = (false, false);
            for record in entry.pax_extensions()?.into_iter().flatten() {
                // The crate ends the value of a record at a line break, and ignores what follows.
                let Ok(record) = record else {
                    is_cut = true;
                    continue;
                };
                has_path |= record.key_bytes() == b"path";
                is_sparse |= record.key_bytes().starts_with(b"GNU.sparse.");
                // The crate ignores a size that it cannot read.
                if record.key_bytes() == b"size"
                    && record.value().ok().and_then(|text| text.parse().ok()) != Some(size)
                {
                    return Err(io::Error::other("the size in the extended header is invalid"));
                }
            }
            // A value with a line break, as attributes of macOS may have, is no error by itself. It is one if a later
            // record may have the name of the member: the header then has only the first 100 bytes of the name, or
            // question marks in place of letters that are not ASCII.
            let short_name = &entry.header().as_bytes()[..100];
            let is_complete = short_name.contains(&0) && !short_name.contains(&b'?');
            if is_cut && !has_path && !is_complete {
                return Err(io::Error::other(
                    "a line break in an extended header hides the name of a member; write the archive without extended \
                     attributes and comments",
                ));
            }
        }
        let name = entry.path_bytes().into_owned();
        Ok(Some(Self { name, size, is_file: kind.is_file() || kind.is_contiguous(), is_sparse }))
    }
}
