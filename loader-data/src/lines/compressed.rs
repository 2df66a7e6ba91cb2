//! Compressed files of lines.

use std::{
    io::{BufRead, BufReader},
    sync::Arc,
};

use flate2::bufread::MultiGzDecoder;

use crate::{
    error::{DataProblem, Result},
    source::{Blob, DataFile},
};

/// Number of bytes that are decompressed at a time.
const CHUNK: usize = 64 << 10;

/// How a file is compressed.
#[derive(Debug, Clone, Copy)]
pub(super) enum Compression {
    Gzip,
    /// Recognised, so that its bytes are not taken for text.
    Zstd,
}

impl Compression {
    /// Recognises the compression of a file by its name.
    pub(super) fn of(file: &DataFile) -> Option<Self> {
        let name = file.location.file_name().to_ascii_lowercase();
        match name {
            name if name.ends_with(".gz") => Some(Self::Gzip),
            name if name.ends_with(".zst") => Some(Self::Zstd),
            _ => None,
        }
    }

    /// Returns a reader of what was compressed into `blob`.
    pub(super) fn reader(self, blob: &Arc<Blob>) -> Result<impl BufRead + Send + use<>> {
        match self {
            Self::Gzip => {
                let decoder = MultiGzDecoder::new(blob.reader(0..blob.len()));
                Ok(BufReader::with_capacity(CHUNK, decoder))
            }
            Self::Zstd => {
                let reason = "Zstandard files of lines; decompress it, or compress it with gzip";
                Err(blob.error(0, DataProblem::Unsupported(reason.to_owned())))
            }
        }
    }
}
