//! Line breaks that end a record of CSV.

use std::iter;

use memchr::{memchr, memchr2};

use super::BYTE_ORDER_MARK;

/// Byte that begins and ends a quoted field.
const QUOTE: u8 = b'"';

/// Finds where records end, with the rules of the crate `csv`: a field that begins with a quotation mark is
/// quoted up to the next one; two of them inside stand for one; in other fields they have no meaning. A byte order mark
/// at the beginning of a record is not part of its first field.
#[derive(Debug, Clone)]
pub(crate) struct Quotes {
    delimiter: u8,
    is_quoted: bool,
    /// What is before the next byte.
    before: Before,
    /// Number of bytes of the record so far, if they are the beginning of a byte order mark that is not yet complete.
    mark: Option<usize>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Before {
    /// A delimiter, or the end of a record: a field begins.
    FieldStart,
    /// The quotation mark that has ended a quoted field.
    Quoted,
    Other,
}

impl Quotes {
    pub(super) fn new(delimiter: u8) -> Self {
        Self { delimiter, is_quoted: false, before: Before::FieldStart, mark: Some(0) }
    }

    /// Returns the index of the line break in `chunk` that ends the record; `None` if it does not end there.
    /// The next chunk follows this one, or the line break.
    pub(crate) fn find_end(&mut self, chunk: &[u8]) -> Option<usize> {
        let mut at = self.pass_mark(chunk);
        loop {
            let rest = &chunk[at..];
            let found = if self.is_quoted { memchr(QUOTE, rest) } else { memchr2(QUOTE, b'\n', rest) };
            let passed = &rest[..found.unwrap_or(rest.len())];
            if let Some(&last) = passed.last() {
                self.before = if last == self.delimiter { Before::FieldStart } else { Before::Other };
            }
            let found = found?;
            at += found + 1;
            if rest[found] == b'\n' {
                (self.before, self.mark) = (Before::FieldStart, Some(0));
                return Some(at - 1);
            }
            // After a quoted field, a quotation mark continues it: it is the second of two.
            let was_quoted = self.is_quoted;
            self.is_quoted = !was_quoted && self.before != Before::Other;
            self.before = if was_quoted { Before::Quoted } else { Before::Other };
        }
    }

    /// Returns the number of bytes at the beginning of `chunk` that end a byte order mark.
    fn pass_mark(&mut self, chunk: &[u8]) -> usize {
        let Some(passed) = self.mark else { return 0 };
        let missing = &BYTE_ORDER_MARK[passed..];
        let common = iter::zip(missing, chunk).take_while(|(mark, byte)| mark == byte).count();
        self.mark = (common == chunk.len() && common < missing.len()).then_some(passed + common);
        if common == missing.len() {
            self.before = Before::FieldStart;
            common
        } else {
            0
        }
    }

    /// True if the record that has been searched ends within quotes.
    pub(crate) fn is_quoted(&self) -> bool {
        self.is_quoted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_may_begin_with_a_byte_order_mark() {
        let text = b"a\n\xef\xbb\xbf\"b\nc\"\n\xef\xbb\"d\n\xef\xbb\xbf\xef\xbb\xbf\"e\n";
        for len in 1..=text.len() {
            let (mut quotes, mut ends, mut start) = (Quotes::new(b','), Vec::new(), 0);
            for chunk in text.chunks(len) {
                let mut at = 0;
                while let Some(end) = quotes.find_end(&chunk[at..]) {
                    at += end + 1;
                    ends.push(start + at);
                }
                start += chunk.len();
            }
            assert_eq!(ends, [2, 11, 16, 25], "chunks of {len} bytes");
        }
    }
}
