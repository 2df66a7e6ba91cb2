//! Splits a record into its fields.

use std::{
    borrow::Cow,
    str,
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

use csv_core::{ReadRecordResult, ReaderBuilder, Terminator};
use memchr::{memchr, memchr_iter};
use serde::{Deserialize, Serialize};

use super::malformed;
use crate::{
    error::DataProblem,
    lines::{BYTE_ORDER_MARK, CsvRules, LineRules},
};

/// Splits records into their fields.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Splitter {
    pub(super) rules: CsvRules,
    /// It takes longer to build than a record takes to parse, and its clones do not work.
    #[serde(skip)]
    core: OnceLock<Arc<Mutex<csv_core::Reader>>>,
}

/// The fields of a record, without quotation marks.
#[derive(Debug)]
pub(super) struct Fields<'a> {
    text: Cow<'a, str>,
    /// Where each field ends in the text.
    ends: Vec<usize>,
    /// Number of bytes between two fields.
    gap: usize,
}

impl Fields<'_> {
    pub(super) fn get(&self, field: usize) -> &str {
        let start = if field == 0 { 0 } else { self.ends[field - 1] + self.gap };
        &self.text[start..self.ends[field]]
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &str> {
        (0..self.ends.len()).map(|field| self.get(field))
    }
}

impl Splitter {
    pub(super) fn new(rules: CsvRules) -> Self {
        Self { rules, core: OnceLock::new() }
    }

    /// Splits a record into its fields, of which there must be `count`, if given.
    pub(super) fn split<'a>(&self, line: &'a [u8], count: Option<usize>) -> Result<Fields<'a>, DataProblem> {
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        // Joined files have this mark before records. `csv_core`, which starts again with each record, removes it.
        let unmarked = line.strip_prefix(BYTE_ORDER_MARK).unwrap_or(line);
        let has_quotes = self.rules.has_quotes && memchr(b'"', line).is_some();
        // `csv_core` takes an empty line for no record.
        let (text, ends, gap) = if has_quotes || unmarked.is_empty() {
            let (bytes, ends) = self.unquote(line, count)?;
            (String::from_utf8(bytes).map(Cow::Owned).map_err(|error| error.utf8_error()), ends, 0)
        } else {
            let mut ends = Vec::with_capacity(count.unwrap_or(0));
            ends.extend(memchr_iter(self.rules.delimiter, unmarked));
            ends.push(unmarked.len());
            (str::from_utf8(unmarked).map(Cow::Borrowed), ends, 1)
        };
        if let Some(count) = count
            && count != ends.len()
        {
            return Err(wrong_count(&ends.len().to_string(), count));
        }
        let text = text.map_err(|error| {
            let field = ends.iter().filter(|&&end| end <= error.valid_up_to()).count() + 1;
            malformed(format!("field {field} is not UTF-8"))
        })?;
        // Fields without delimiters between them may together be UTF-8 although a single field is not.
        match ends.iter().position(|&end| !text.is_char_boundary(end)) {
            Some(field) => Err(malformed(format!("field {} is not UTF-8", field + 1))),
            None => Ok(Fields { text, ends, gap }),
        }
    }

    /// Splits a record that has quotation marks or is empty, with `csv_core`. Returns the bytes of all fields, and where
    /// each ends.
    fn unquote(&self, line: &[u8], count: Option<usize>) -> Result<(Vec<u8>, Vec<usize>), DataProblem> {
        if let Some(mut quotes) = LineRules::csv(self.rules).quotes() {
            quotes.find_end(line);
            if quotes.is_quoted() {
                return Err(malformed("a field begins with a quotation mark and has none at its end"));
            }
        }
        let core = self.core.get_or_init(|| Arc::new(Mutex::new(reader(self.rules))));
        let mut core = core.lock().unwrap_or_else(PoisonError::into_inner);
        core.reset();
        let mut bytes = vec![0; line.len()];
        let mut ends = vec![0; count.unwrap_or(line.len()) + 1];
        let (_, _, written, mut fields) = core.read_record(line, &mut bytes, &mut ends);
        let (result, _, last_written, last) =
            core.read_record(&[], &mut bytes[written..], &mut ends[fields..]);
        fields += last;
        if result != ReadRecordResult::Record {
            return Err(wrong_count("more", count.unwrap_or(0)));
        }
        bytes.truncate(written + last_written);
        ends.truncate(fields);
        Ok((bytes, ends))
    }
}

fn wrong_count(found: &str, columns: usize) -> DataProblem {
    malformed(format!("it has {found} fields where there are {columns} columns"))
}

fn reader(rules: CsvRules) -> csv_core::Reader {
    // The line break at the end of a record was removed; another one is inside quotes.
    ReaderBuilder::new()
        .delimiter(rules.delimiter)
        .quoting(rules.has_quotes)
        .terminator(Terminator::Any(b'\n'))
        .build()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MARK: char = '\u{feff}';
    const LINES: &str = "[a\",é \r\u{feff}]{1,12}";

    proptest! {
        #[test]
        fn fields_are_those_of_the_crate(line in LINES, has_quotes: bool) {
            let mut reader = csv::ReaderBuilder::new();
            reader.has_headers(false).quoting(has_quotes).terminator(csv::Terminator::Any(b'\n'));
            let without_end = line.strip_suffix('\r').unwrap_or(&line);
            let expected = reader.from_reader(without_end.as_bytes()).records().next();
            let expected = expected.map(|record| record.unwrap().iter().map(str::to_owned).collect::<Vec<_>>());
            let rules = CsvRules { delimiter: b',', has_quotes, has_header: false };
            let splitter = Splitter::new(rules);
            match splitter.split(line.as_bytes(), None) {
                Ok(fields) => {
                    let count = fields.ends.len();
                    prop_assert_eq!(Some(fields.iter().map(str::to_owned).collect()), expected);
                    prop_assert!(splitter.split(line.as_bytes(), Some(count)).is_ok());
                    prop_assert!(splitter.split(line.as_bytes(), Some(count + 1)).is_err());
                }
                // The crate takes an empty line for none, and ends a quoted field at the end of the file.
                Err(_) => {
                    let is_empty = without_end.trim_start_matches(MARK).is_empty();
                    prop_assert!(is_empty || has_quotes && line.contains('"'));
                }
            }
        }
    }
}
