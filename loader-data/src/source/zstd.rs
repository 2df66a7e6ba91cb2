//! Decompresses Zstandard: any number of frames, with their checksums.

use std::{
    error::Error,
    fmt,
    io::{self, BufRead, Read},
    iter,
};

use ruzstd::decoding::{
    BlockDecodingStrategy, FrameDecoder,
    errors::{FrameDecoderError, ReadFrameHeaderError},
};

/// Number of bytes that are decompressed at a time: the maximum size of a block.
const STEP: usize = 128 << 10;

/// Reads what Zstandard has compressed into `source`. A frame may need a window of at most 128 MiB;
/// `zstd --ultra --long=31` writes larger ones.
pub(crate) struct Zstd<R> {
    source: FrameSource<R>,
    decoder: FrameDecoder,
    /// True if `source` has a frame.
    has_frame: bool,
}

impl<R: BufRead> Zstd<R> {
    pub(super) fn new(source: R) -> Self {
        Self {
            source: FrameSource { inner: source, failed: None },
            decoder: FrameDecoder::new(),
            has_frame: false,
        }
    }

    /// Begins the next frame. Returns false if there is none, which is an error for the first one.
    fn next_frame(&mut self) -> io::Result<bool> {
        if let Some(stored) = self.decoder.get_checksum_from_data()
            && self.decoder.get_calculated_checksum() != Some(stored)
        {
            return Err(io::Error::other("the checksum of a frame does not match its content"));
        }
        loop {
            if self.source.inner.fill_buf()?.is_empty() {
                return if self.has_frame { Ok(false) } else { Err(io::ErrorKind::UnexpectedEof.into()) };
            }
            self.has_frame = true;
            match self.decoder.reset(&mut self.source) {
                Ok(()) => return Ok(true),
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                    length,
                    ..
                })) => discard(&mut self.source.inner, length.into())?,
                Err(error) => return Err(self.source.error(error)),
            }
        }
    }
}

impl<R: BufRead> Read for Zstd<R> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        while !bytes.is_empty() && self.decoder.can_collect() == 0 {
            if !self.decoder.is_finished() {
                let step = BlockDecodingStrategy::UptoBytes(STEP);
                let decoded = self.decoder.decode_blocks(&mut self.source, step);
                decoded.map_err(|error| self.source.error(error))?;
            } else if !self.next_frame()? {
                return Ok(0);
            }
        }
        self.decoder.read(bytes)
    }
}

/// Keeps the error of the compressed file, which the decoder would make a part of its own error.
struct FrameSource<R> {
    inner: R,
    failed: Option<io::Error>,
}

impl<R> FrameSource<R> {
    /// Returns the error of the file if there is one. If not, keeps the kind of an I/O error below, such as the
    /// unexpected end of the file.
    fn error(&mut self, error: FrameDecoderError) -> io::Error {
        if let Some(failed) = self.failed.take() {
            return failed;
        }
        let first: &(dyn Error + 'static) = &error;
        let cause = iter::successors(Some(first), |error| (*error).source())
            .find_map(|error| error.downcast_ref::<io::Error>());
        io::Error::new(cause.map_or(io::ErrorKind::Other, io::Error::kind), error)
    }
}

impl<R: Read> Read for FrameSource<R> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.inner.read(bytes).map_err(|error| {
            let kind = error.kind();
            self.failed = Some(error);
            kind.into()
        })
    }
}

/// Skips `count` bytes of `reader`.
fn discard(reader: &mut impl BufRead, count: u64) -> io::Result<()> {
    match io::copy(&mut reader.take(count), &mut io::sink())? {
        skipped if skipped < count => Err(io::ErrorKind::UnexpectedEof.into()),
        _ => Ok(()),
    }
}

impl<R> fmt::Debug for Zstd<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Zstd").finish_non_exhaustive()
    }
}
