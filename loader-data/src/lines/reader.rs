//! Reads lines one after the other.

use std::io::{self, BufRead};

use memchr::memchr;

use super::Quotes;

/// Reads lines one after the other and knows where it is.
pub(super) struct LineReader {
    input: Box<dyn BufRead + Send>,
    position: u64,
    /// State of a reader of CSV, which does not end a line within quotes.
    quotes: Option<Quotes>,
}

impl LineReader {
    /// Reads from `input`, whose first byte is at `position` and begins a line.
    pub(super) fn new(input: impl BufRead + Send + 'static, position: u64, quotes: Option<Quotes>) -> Self {
        Self { input: Box::new(input), position, quotes }
    }

    /// Offset of the next byte, after decompression.
    pub(super) fn position(&self) -> u64 {
        self.position
    }

    /// Reads up to the next line break, or to the end, into `line`. Returns the number of bytes, with the
    /// line break; 0 at the end. A line of more than `max` bytes is read to its end, but `line` does not have
    /// it.
    pub(super) fn read_line(&mut self, line: &mut Vec<u8>, max: u64) -> io::Result<u64> {
        line.clear();
        let mut len = 0;
        loop {
            let chunk = self.input.fill_buf()?;
            let newline = match &mut self.quotes {
                Some(quotes) => quotes.find_end(chunk),
                None => memchr(b'\n', chunk),
            };
            let taken = newline.map_or(chunk.len(), |newline| newline + 1);
            len += taken as u64;
            if len <= max {
                line.extend_from_slice(&chunk[..taken]);
            }
            let is_end = newline.is_some() || chunk.is_empty();
            self.consume(taken);
            if is_end {
                return Ok(len);
            }
        }
    }

    /// Consumes up to the next line break, but not more than the buffer if there is none before `end`.
    pub(super) fn skip_line(&mut self, end: u64) -> io::Result<()> {
        loop {
            let chunk = self.input.fill_buf()?;
            let newline = memchr(b'\n', chunk);
            let taken = newline.map_or(chunk.len(), |newline| newline + 1);
            self.consume(taken);
            if newline.is_some() || taken == 0 || self.position >= end {
                return Ok(());
            }
        }
    }

    /// Consumes the bytes before `position`.
    ///
    /// # Errors
    /// Returns an error if the input ends before.
    pub(super) fn skip_to(&mut self, position: u64) -> io::Result<()> {
        while self.position < position {
            let available = self.input.fill_buf()?.len() as u64;
            if available == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.consume(available.min(position - self.position) as usize);
        }
        Ok(())
    }

    fn consume(&mut self, len: usize) {
        self.input.consume(len);
        self.position += len as u64;
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufReader, Cursor};

    use super::*;

    #[test]
    fn long_lines_are_measured_and_not_kept() {
        let text = b"one\n\nthree three three\nlast";
        let mut reader = LineReader::new(BufReader::with_capacity(4, Cursor::new(text)), 10, None);
        let mut line = Vec::new();
        let mut lens = Vec::new();
        loop {
            let len = reader.read_line(&mut line, 4).unwrap();
            if len == 0 {
                break;
            }
            assert!(line.len() <= 4);
            lens.push((len, reader.position()));
        }
        assert_eq!(lens, [(4, 14), (1, 15), (18, 33), (4, 37)]);
        assert_eq!(line, b"");
        let mut reader = LineReader::new(Cursor::new(text), 0, None);
        reader.skip_to(5).unwrap();
        reader.skip_line(100).unwrap();
        assert_eq!(reader.position(), 23);
        assert_eq!(reader.skip_to(28).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }
}
