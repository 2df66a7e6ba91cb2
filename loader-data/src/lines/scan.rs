//! Finds the lines of a part of a file.

use std::{
    io::{self, BufRead},
    ops::Range,
};

use memchr::memchr;

use super::{BYTE_ORDER_MARK, LineRules, reader::LineReader};

/// The lines that begin in a part of a file.
#[derive(Debug, Default, PartialEq)]
pub(super) struct PartLines {
    /// Where each line begins.
    pub(super) starts: Vec<u64>,
    /// Runs of blank lines that are skipped, in order.
    pub(super) gaps: Vec<Gap>,
}

/// A run of blank lines that are skipped.
#[derive(Debug, PartialEq)]
pub(super) struct Gap {
    /// Number of lines in the part before the run, without those that are skipped.
    pub(super) row: u64,
    /// Number of blank lines in the run.
    pub(super) count: u64,
    /// Where the run begins.
    pub(super) start: u64,
}

/// Finds the lines whose first byte is in `range` of a file. A line break is `\n`; the last line may have
/// none. The byte order mark at the beginning of the file is no part of the first line.
///
/// `reader` begins at [`first_byte`]. It is not read further than needed, which is at most to the first byte
/// after the range that is not blank.
pub(super) fn scan(mut reader: impl BufRead, range: Range<u64>, rules: LineRules) -> io::Result<PartLines> {
    let may_be_blank = rules == LineRules::NOT_BLANK;
    let mut part = PartLines::default();
    let mut position = first_byte(range.start);
    // Where the current line begins; `None` for one that begins before the range.
    let mut line = None;
    let mut is_blank = may_be_blank;
    if range.start == 0 {
        position = skip_byte_order_mark(&mut reader)?;
        line = Some(position);
    }
    loop {
        let chunk = reader.fill_buf()?;
        let len = chunk.len();
        let mut rest = chunk;
        while !rest.is_empty() {
            let newline = memchr(b'\n', rest);
            let content = &rest[..newline.unwrap_or(rest.len())];
            is_blank = is_blank && content.iter().all(u8::is_ascii_whitespace);
            let Some(newline) = newline else { break };
            if let Some(start) = line {
                part.push(start, is_blank);
            }
            rest = &rest[newline + 1..];
            let next = position + (len - rest.len()) as u64;
            if next >= range.end {
                return Ok(part);
            }
            line = Some(next);
            is_blank = may_be_blank;
        }
        position += len as u64;
        reader.consume(len);
        // Only a line that has been blank so far must be read further.
        if len == 0 || position >= range.end && !(is_blank && line.is_some()) {
            break;
        }
    }
    // After a line break at the end of the file there is no further line.
    if let Some(start) = line.filter(|&start| start < position) {
        part.push(start, is_blank);
    }
    Ok(part)
}

/// Finds the records of a file of CSV. The header counts as a line that is skipped.
pub(super) fn scan_records(
    mut reader: impl BufRead + Send + 'static,
    rules: LineRules,
    mut has_header: bool,
) -> io::Result<PartLines> {
    /// Number of bytes that tell whether a record is skipped.
    const KEPT: u64 = 2;
    let position = skip_byte_order_mark(&mut reader)?;
    let mut reader = LineReader::new(reader, position, rules.quotes());
    let (mut part, mut record) = (PartLines::default(), Vec::new());
    loop {
        let start = reader.position();
        let len = reader.read_line(&mut record, KEPT)?;
        if len == 0 {
            return Ok(part);
        }
        let is_empty = len <= KEPT && rules.is_skipped(&record);
        part.push(start, is_empty || has_header);
        has_header = has_header && is_empty;
    }
}

/// Returns where a reader of the lines that begin at `start` or later must begin: the byte before `start`
/// tells whether a line begins there.
pub(super) fn first_byte(start: u64) -> u64 {
    start.saturating_sub(1)
}

/// Consumes the byte order mark, if there is one, and returns its length.
fn skip_byte_order_mark(reader: &mut impl BufRead) -> io::Result<u64> {
    // The buffer of a file of at least 3 bytes has them, because it is filled from the beginning of the file.
    let is_marked = reader.fill_buf()?.starts_with(BYTE_ORDER_MARK);
    let len = if is_marked { BYTE_ORDER_MARK.len() } else { 0 };
    reader.consume(len);
    Ok(len as u64)
}

impl PartLines {
    fn push(&mut self, start: u64, is_blank: bool) {
        let row = self.starts.len() as u64;
        match self.gaps.last_mut() {
            _ if !is_blank => self.starts.push(start),
            Some(gap) if gap.row == row => gap.count += 1,
            _ => self.gaps.push(Gap { row, count: 1, start }),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufReader, Cursor, Seek, SeekFrom};

    use proptest::prelude::*;

    use super::*;

    /// Starts of the lines, and for each whether it is blank, by a plain split.
    fn split(bytes: &[u8]) -> Vec<(u64, bool)> {
        let (mut start, content) = match bytes.strip_prefix(BYTE_ORDER_MARK) {
            Some(content) => (3, content),
            None => (0, bytes),
        };
        let mut lines = Vec::new();
        for line in content.split_inclusive(|&byte| byte == b'\n') {
            lines.push((start, line.iter().all(u8::is_ascii_whitespace)));
            start += line.len() as u64;
        }
        lines
    }

    proptest! {
        #[test]
        fn the_parts_together_have_the_lines_of_the_file(
            bytes in proptest::collection::vec(
                prop_oneof![3 => Just(b'\n'), 2 => Just(b' '), 1 => Just(b'\r'), 1 => Just(b'a'), 1 => any::<u8>()], 0..60
            ),
            is_marked in any::<bool>(),
            part_len in 1u64..20,
            buffer in 3usize..12,
        ) {
            let bytes = if is_marked { [BYTE_ORDER_MARK, &bytes].concat() } else { bytes };
            let lines = split(&bytes);
            for rules in [LineRules::NOT_BLANK, LineRules::ALL] {
                let skips = rules == LineRules::NOT_BLANK;
                let mut starts = Vec::new();
                let mut skipped = 0;
                for start in (0..bytes.len() as u64).step_by(part_len as usize) {
                    let mut file = Cursor::new(&bytes);
                    file.seek(SeekFrom::Start(first_byte(start))).unwrap();
                    let reader = BufReader::with_capacity(buffer, file);
                    let part = scan(reader, start..start + part_len, rules).unwrap();
                    for gap in &part.gaps {
                        // The run begins with a blank line that is after as many other lines as it says.
                        let first = lines.iter().position(|&(start, _)| start == gap.start).unwrap();
                        prop_assert!(lines[first..first + gap.count as usize].iter().all(|&(_, blank)| blank));
                        let before = lines[..first].iter().filter(|&&(_, blank)| !blank).count();
                        prop_assert_eq!(before, starts.len() + gap.row as usize);
                        skipped += gap.count as usize;
                    }
                    starts.extend(part.starts);
                }
                let expected: Vec<u64> =
                    lines.iter().filter(|&&(_, blank)| !(skips && blank)).map(|&(start, _)| start).collect();
                prop_assert_eq!(&starts, &expected);
                prop_assert_eq!(starts.len() + skipped, lines.len());
            }
        }
    }
}
