//! The bytes of a Parquet file, as the library reads them.

use std::{
    any::Any,
    io::{self, BufRead, Read},
    ops::Range,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Mutex, PoisonError},
};

use bytes::{Buf, Bytes, buf};
use parquet::{
    errors::{ParquetError, Result as ParquetResult},
    file::reader::{ChunkReader, Length},
};

use crate::{
    error::{DataError, DataProblem, Result},
    source::{Blob, BlobReader, ReadAhead},
};

/// Name of the format in errors.
pub(super) const FORMAT: &str = "Parquet";

/// Maximum number of bytes of the columns of a row group that are read together. Larger columns are read page by page.
const MAX_TOGETHER: u64 = 64 << 20;

/// Reads a file by position. The library's own reader of files shares one offset among all its parts.
#[derive(Debug, Clone)]
pub(super) struct ParquetFile {
    blob: Arc<Blob>,
    /// The columns that were read together, each with its offset.
    parts: Vec<(u64, Bytes)>,
    /// The row group that is read, for errors.
    group: Option<usize>,
    /// The first error. The library passes errors on as text.
    failed: Arc<Mutex<Option<DataError>>>,
}

impl ParquetFile {
    pub(super) fn new(blob: Arc<Blob>) -> Self {
        Self { blob, parts: Vec::new(), group: None, failed: Arc::default() }
    }

    /// Returns the same source for reading row group `group`, which errors then name.
    pub(super) fn of_group(blob: Arc<Blob>, group: usize) -> Self {
        Self { group: Some(group), ..Self::new(blob) }
    }

    /// Reads the columns at `ranges` together, if they are not too large. `ahead` may be fetching them.
    ///
    /// # Errors
    /// Returns an error if a range cannot be read.
    pub(super) fn load(&mut self, ranges: &[Range<u64>], ahead: Option<ReadAhead>) -> Result<()> {
        if are_read_together(ranges) {
            let parts = ahead.map_or_else(|| self.blob.read_ranges(ranges), ReadAhead::read)?;
            self.parts = ranges.iter().map(|range| range.start).zip(parts).collect();
        }
        Ok(())
    }

    /// Runs `call`, which calls the library on this source. A panic of the library is an error: a damaged
    /// file may cause one.
    ///
    /// # Errors
    /// Returns the error of the file, if it cannot be read, or else the library's error.
    pub(super) fn guard<T, E: ToString>(&self, call: impl FnOnce() -> Result<T, E>) -> Result<T> {
        // The library may have recovered from an error of an earlier call.
        self.failed.lock().unwrap_or_else(PoisonError::into_inner).take();
        let reason = match catch_unwind(AssertUnwindSafe(call)) {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(error)) => error.to_string(),
            Err(payload) => format!("the decoder panicked: {}", panic_message(&*payload)),
        };
        let failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner).take();
        Err(failed.unwrap_or_else(|| self.malformed(reason)))
    }

    /// Returns an error about the content of the file.
    pub(super) fn malformed(&self, reason: impl Into<String>) -> DataError {
        let group = self.group.map_or_else(String::new, |group| format!("row group {group}: "));
        DataError::new(&self.blob.file().location, malformed(group + &reason.into()))
    }

    fn part(&self, start: u64) -> Option<Bytes> {
        let inside = |(at, part): &&(u64, Bytes)| *at <= start && start - at < part.len() as u64;
        let (at, part) = self.parts.iter().find(inside)?;
        Some(part.slice((start - at) as usize..))
    }

    fn fail_io(&self, error: io::Error) -> io::Error {
        io::Error::other(self.fail(self.blob.read_error(0, error)))
    }

    fn fail(&self, error: DataError) -> ParquetError {
        let text = error.to_string();
        self.failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        ParquetError::General(text)
    }
}

/// True if the columns at `ranges` are small enough to be read together.
pub(super) fn are_read_together(ranges: &[Range<u64>]) -> bool {
    ranges.iter().map(|range| range.end - range.start).sum::<u64>() <= MAX_TOGETHER
}

/// Returns the problem of content that is not valid Parquet.
pub(super) fn malformed(reason: impl Into<String>) -> DataProblem {
    DataProblem::Malformed { format: FORMAT, reason: reason.into() }
}

fn panic_message(payload: &(dyn Any + Send)) -> &str {
    match payload.downcast_ref::<String>() {
        Some(text) => text,
        None => payload.downcast_ref::<&str>().copied().unwrap_or("no message"),
    }
}

impl Length for ParquetFile {
    fn len(&self) -> u64 {
        self.blob.len()
    }
}

impl ChunkReader for ParquetFile {
    type T = PartReader;

    fn get_read(&self, start: u64) -> ParquetResult<PartReader> {
        Ok(match self.part(start) {
            Some(part) => PartReader::Memory(part.reader()),
            None => {
                let reader = self.blob.reader(start.min(self.blob.len())..self.blob.len());
                PartReader::File(reader, self.clone())
            }
        })
    }

    fn get_bytes(&self, start: u64, length: usize) -> ParquetResult<Bytes> {
        if let Some(part) = self.part(start)
            && part.len() >= length
        {
            return Ok(part.slice(..length));
        }
        let read = self.blob.read(start..start.saturating_add(length as u64));
        read.map(Bytes::from).map_err(|error| self.fail(error))
    }
}

/// Reads from a column that was read together with the others, or from the file.
#[derive(Debug)]
pub(super) enum PartReader {
    Memory(buf::Reader<Bytes>),
    File(BlobReader, ParquetFile),
}

impl Read for PartReader {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Memory(reader) => reader.read(bytes),
            Self::File(reader, source) => {
                let chunk = reader.fill_buf().map_err(|error| source.fail_io(error))?;
                let len = chunk.len().min(bytes.len());
                bytes[..len].copy_from_slice(&chunk[..len]);
                reader.consume(len);
                Ok(len)
            }
        }
    }
}
