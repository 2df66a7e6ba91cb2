//! Recognises and decompresses compressed files.

use std::io::{self, BufRead, Read};

use flate2::bufread::MultiGzDecoder;
use loader_core::Phase;

use super::{BlobReader, Location, zstd::Zstd};
use crate::error::{DataError, DataProblem};

/// How a file is compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Compression {
    Gzip,
    Zstd,
}

/// The first bytes of a file of gzip.
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// The extensions that a compression adds to the name of a file.
const EXTENSIONS: [(&str, Compression); 2] = [(".gz", Compression::Gzip), (".zst", Compression::Zstd)];

impl Compression {
    /// Recognises the compression of a file by its name.
    pub(crate) fn of(location: &Location) -> Option<Self> {
        Self::split(&location.file_name().to_ascii_lowercase()).1
    }

    /// Splits the extension of a compression, if there is one, off `name`, which must be in lower case.
    pub(crate) fn split(name: &str) -> (&str, Option<Self>) {
        let found = EXTENSIONS.into_iter().find_map(|(end, found)| Some((name.strip_suffix(end)?, found)));
        found.map_or((name, None), |(name, found)| (name, Some(found)))
    }

    /// Returns `extensions`, and each of them followed by the extension of each compression.
    pub(crate) fn extensions(extensions: &[&str]) -> Vec<String> {
        let compressed = extensions.iter().flat_map(|start| EXTENSIONS.map(|(end, _)| [start, end].concat()));
        extensions.iter().map(|&extension| extension.to_owned()).chain(compressed).collect()
    }

    /// Recognises the compression of a file by its first bytes.
    ///
    /// # Errors
    /// Returns [`DataProblem::Unsupported`] for a compression that cannot be read.
    pub(crate) fn of_start(start: &[u8]) -> Result<Option<Self>, DataProblem> {
        let name = match start {
            [0x1f, 0x8b, ..] => return Ok(Some(Self::Gzip)),
            [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => {
                return Ok(Some(Self::Zstd));
            }
            [b'B', b'Z', b'h', b'1'..=b'9', b'1', b'A', b'Y', ..] => "bzip2",
            [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => "xz",
            [0x04, 0x22, 0x4d, 0x18, ..] => "LZ4",
            _ => return Ok(None),
        };
        let text = format!("the file is in {name}; decompress it, or compress it with gzip or Zstandard");
        Err(DataProblem::Unsupported(text))
    }

    /// Name of the format in errors.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Gzip => "gzip",
            Self::Zstd => "Zstandard",
        }
    }

    /// Returns a reader of the decompressed content of a file, which `reader` reads from its beginning: of all members
    /// of gzip, or all frames of Zstandard.
    pub(crate) fn reader(self, mut reader: BlobReader) -> Decompressor {
        match self {
            Self::Gzip => {
                // The decoder reports an error of the file. An empty file and one that ends here are cut off.
                let start = reader.fill_buf().unwrap_or_default();
                let is_gzip = start.starts_with(&GZIP[..start.len().min(GZIP.len())]);
                Decompressor::Gzip(Box::new(MultiGzDecoder::new(reader)), is_gzip)
            }
            Self::Zstd => Decompressor::Zstd(Box::new(Zstd::new(reader))),
        }
    }
}

/// Decompresses a file from its beginning to its end, and verifies its checksums.
#[derive(Debug)]
pub(crate) enum Decompressor {
    /// The flag is false if the file does not begin as one of gzip.
    Gzip(Box<MultiGzDecoder<BlobReader>>, bool),
    Zstd(Box<Zstd<BlobReader>>),
}

impl Read for Decompressor {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        Phase::Decode.measure(|| match self {
            Self::Gzip(_, false) => {
                let text = "it does not begin as a file of gzip; if it is not compressed, remove `.gz` from its name";
                Err(io::Error::new(io::ErrorKind::InvalidData, text))
            }
            Self::Gzip(reader, true) => reader.read(bytes),
            Self::Zstd(reader) => reader.read(bytes),
        })
    }
}

/// Converts an error of a [`Decompressor`], or of a reader of `format` that reads from one, to a problem.
pub(crate) fn problem(format: &'static str, error: io::Error) -> DataProblem {
    match error.downcast::<DataError>() {
        Ok(error) => error.problem,
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => DataProblem::Truncated,
        // Errors of the system have a code; those of the decoders have a text.
        Err(error) if error.raw_os_error().is_some() => DataProblem::Unreadable(error),
        Err(error) => DataProblem::Malformed { format, reason: error.to_string() },
    }
}
