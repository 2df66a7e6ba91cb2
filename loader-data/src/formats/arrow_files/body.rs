//! The bytes of the buffers of a record batch.

use std::{collections::HashMap, io::Read, ops::Range, sync::Arc};

use bytes::Bytes;
use loader_core::Phase;
use ruzstd::decoding::StreamingDecoder;

use super::malformed;
use crate::{
    error::{DataProblem, Result},
    source::{Blob, ReadAhead},
};

/// How each buffer of a record batch is compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Codec {
    None,
    Lz4,
    Zstd,
}

impl Codec {
    const ALL: [Self; 3] = [Self::None, Self::Lz4, Self::Zstd];

    /// Returns the codec of this number in the index.
    pub(super) fn of(number: u64) -> Self {
        Self::ALL[number as usize]
    }
}

/// A buffer: its offset in the file and its length there.
pub(super) type Buffer = [u64; 2];

/// The buffers of a record batch as they are in the file.
pub(super) struct Stored {
    blob: Arc<Blob>,
    /// The buffers that have bytes; `None` if they are read from the file.
    read: Option<Vec<Bytes>>,
}

impl Stored {
    /// Leaves the buffers in the file.
    pub(super) fn in_file(blob: Arc<Blob>) -> Self {
        Self { blob, read: None }
    }

    /// Reads `buffers`, which may have at most `max` bytes. `ahead` may be fetching them.
    ///
    /// # Errors
    /// Returns an error if a buffer cannot be read, or if there are more than `max` bytes.
    pub(super) fn read(
        blob: Arc<Blob>,
        buffers: &[Buffer],
        max: u64,
        ahead: Option<ReadAhead>,
    ) -> Result<Self> {
        let ranges = ranges(buffers);
        let bytes = ranges.iter().map(|range| range.end - range.start).fold(0, u64::saturating_add);
        if bytes > max {
            return Err(blob.error(ranges[0].start, too_large(bytes, max)));
        }
        let read = ahead.map_or_else(|| blob.read_ranges(&ranges), ReadAhead::read)?;
        Ok(Self { blob, read: Some(read) })
    }
}

/// Where the buffers of a record batch are read.
#[derive(Debug)]
pub(super) struct Body {
    pub(super) blob: Arc<Blob>,
    /// The buffers by their offset in the file; `None` if they are read from the file.
    loaded: Option<HashMap<u64, Bytes>>,
    /// Number of bytes of the loaded buffers.
    pub(super) bytes: u64,
}

impl Body {
    /// Decompresses the `buffers` that were read into `stored`. They may have at most `max` bytes.
    ///
    /// # Errors
    /// Returns an error if a buffer is damaged, or if there are more than `max` bytes.
    pub(super) fn new(stored: Stored, buffers: &[Buffer], codec: Codec, max: u64) -> Result<Self> {
        let Stored { blob, read } = stored;
        let Some(read) = read else { return Ok(Self { blob, loaded: None, bytes: 0 }) };
        let mut loaded = HashMap::with_capacity(read.len());
        let mut total = 0_u64;
        for (Range { start, .. }, bytes) in ranges(buffers).into_iter().zip(read) {
            let failed = |problem| blob.error(start, problem);
            let (len, packed) = match codec {
                Codec::None => (bytes.len() as u64, None),
                Codec::Lz4 | Codec::Zstd => declared(&bytes).map_err(failed)?,
            };
            total = total.saturating_add(len);
            if total > max {
                return Err(failed(too_large(total, max)));
            }
            let bytes = match packed {
                None => bytes.slice(bytes.len() - len as usize..),
                Some(packed) => Phase::Decode.measure(|| decompress(packed, len, codec)).map_err(failed)?,
            };
            loaded.insert(start, bytes);
        }
        Ok(Self { blob, loaded: Some(loaded), bytes: total })
    }

    /// Returns the bytes of parts of buffers.
    ///
    /// # Errors
    /// Returns an error if a part is not inside its buffer, or cannot be read.
    pub(super) fn read(&self, parts: &[(Buffer, Range<u64>)]) -> Result<Vec<Bytes>> {
        let outside = |[offset, _]: Buffer| self.blob.error(offset, malformed("a buffer is too short"));
        let Some(loaded) = &self.loaded else {
            let range = |([offset, len], part): &(Buffer, Range<u64>)| {
                if part.start <= part.end && part.end <= *len {
                    Ok(offset + part.start..offset + part.end)
                } else {
                    Err(outside([*offset, *len]))
                }
            };
            return self.blob.read_ranges(&parts.iter().map(range).collect::<Result<Vec<_>>>()?);
        };
        let part = |(buffer, part): &(Buffer, Range<u64>)| {
            let empty = Bytes::new();
            let bytes = loaded.get(&buffer[0]).filter(|_| buffer[1] > 0).unwrap_or(&empty);
            if part.start <= part.end && part.end <= bytes.len() as u64 {
                Ok(bytes.slice(part.start as usize..part.end as usize))
            } else {
                Err(outside(*buffer))
            }
        };
        parts.iter().map(part).collect()
    }
}

/// Returns the ranges in the file of the buffers that have bytes.
pub(super) fn ranges(buffers: &[Buffer]) -> Vec<Range<u64>> {
    let buffers = buffers.iter().filter(|[_, len]| *len > 0);
    buffers.map(|[offset, len]| *offset..offset + len).collect()
}

fn too_large(len: u64, max: u64) -> DataProblem {
    DataProblem::TooLarge { len, max, option: "max_batch_bytes" }
}

/// Returns the length of a buffer before compression, and its compressed bytes; `None` if it is not
/// compressed.
fn declared(bytes: &Bytes) -> Result<(u64, Option<&[u8]>), DataProblem> {
    let (len, packed) = bytes.split_first_chunk().ok_or(DataProblem::Truncated)?;
    match i64::from_le_bytes(*len) {
        -1 => Ok((packed.len() as u64, None)),
        len => match u64::try_from(len) {
            Ok(len) => Ok((len, Some(packed))),
            Err(_) => Err(malformed(format!("a compressed buffer says that it has {len} bytes"))),
        },
    }
}

/// Decompresses `packed` to `len` bytes. Memory is taken as bytes are decompressed, not as `len` says.
fn decompress(packed: &[u8], len: u64, codec: Codec) -> Result<Bytes, DataProblem> {
    let damaged =
        |error: &dyn ToString| malformed(format!("a buffer cannot be decompressed: {}", error.to_string()));
    let mut bytes = Vec::new();
    // One byte more, to notice a buffer that is longer than it says.
    let limit = len.saturating_add(1);
    match codec {
        Codec::Zstd => {
            let decoder = StreamingDecoder::new(packed).map_err(|error| damaged(&error))?;
            decoder.take(limit).read_to_end(&mut bytes)
        }
        _ => lz4_flex::frame::FrameDecoder::new(packed).take(limit).read_to_end(&mut bytes),
    }
    .map_err(|error| damaged(&error))?;
    if bytes.len() as u64 == len {
        Ok(bytes.into())
    } else {
        Err(damaged(&format!("it has {} bytes or more where it says {len}", bytes.len())))
    }
}
