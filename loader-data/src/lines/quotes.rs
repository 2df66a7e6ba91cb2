//! Line breaks that end a record of CSV.

use memchr::{memchr, memchr2};

use super::BYTE_ORDER_MARK;

/// Byte that begins and ends a quoted field.
const QUOTE: u8 = b'"';

/// Finds where records end, with the rules of the crate `csv`: a field that begins with a quotation mark is
/// quoted up to the next one; two of them inside stand for one; in other fields they have no meaning.
#[derive(Debug, Clone)]
pub(crate) struct Quotes {
    delimiter: u8,
    is_quoted: bool,
    /// What is before the next byte.
    before: Before,
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
        Self { delimiter, is_quoted: false, before: Before::FieldStart }
    }

    /// Returns the index of the line break in `chunk` that ends the record; `None` if it does not end there.
    /// The next chunk follows this one, or the line break.
    pub(crate) fn find_end(&mut self, chunk: &[u8], is_file_start: bool) -> Option<usize> {
        let mut at =
            if is_file_start && chunk.starts_with(BYTE_ORDER_MARK) { BYTE_ORDER_MARK.len() } else { 0 };
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
                self.before = Before::FieldStart;
                return Some(at - 1);
            }
            // After a quoted field, a quotation mark continues it: it is the second of two.
            let was_quoted = self.is_quoted;
            self.is_quoted = !was_quoted && self.before != Before::Other;
            self.before = if was_quoted { Before::Quoted } else { Before::Other };
        }
    }

    /// True if the record that has been searched ends within quotes.
    #[cfg(feature = "csv")]
    pub(crate) fn is_quoted(&self) -> bool {
        self.is_quoted
    }
}
