//! Files that consist of lines: an index for random access, and a stream of blocks. The formats built on this
//! module parse the lines.

mod blocks;
mod index;
mod iterable;
mod quotes;
mod reader;
mod scan;
mod stream;

use std::iter;

use serde::{Deserialize, Serialize};

use crate::{
    error::{DataError, DataProblem, Position, Result},
    index::{IndexPlace, StoredIndex},
    source::{Compression, Files},
};
use index::{Line, LineIndex};

pub(crate) use iterable::line_stream;
pub(crate) use quotes::Quotes;

pub use stream::LineSnapshot;
pub(crate) use stream::LineStream;
pub(crate) use stream::first_line;

/// Default of the maximum number of bytes of a line, 64 MiB.
pub(crate) const MAX_LINE_BYTES: u64 = 64 << 20;

/// Bytes that some programs write at the beginning of a text file.
pub(crate) const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// `get_many` reads lines together that are in at most this many bytes...
const MAX_READ: u64 = 1 << 20;

/// ...and have at most this many bytes between them.
const MAX_GAP: u64 = 4 << 10;

/// Where lines end, and which of them are samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LineRules {
    blank_lines: BlankLines,
    /// Rules of CSV; a "line" is then a record, which may have line breaks in quotes.
    csv: Option<CsvRules>,
}

/// Whether lines without content are samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum BlankLines {
    /// Lines of only spaces, tabs and the like are not samples.
    Skip,
    /// Only lines of nothing but a line break are not samples.
    SkipEmpty,
    Keep,
}

/// How CSV is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CsvRules {
    /// Byte between fields.
    pub(crate) delimiter: u8,
    /// True if a field that begins with a quotation mark ends at the next one.
    pub(crate) has_quotes: bool,
    /// True if the first record of a file is not a sample.
    pub(crate) has_header: bool,
}

impl LineRules {
    /// Each line is a sample.
    pub(crate) const ALL: Self = Self { blank_lines: BlankLines::Keep, csv: None };
    /// Each line that is not blank is a sample.
    pub(crate) const NOT_BLANK: Self = Self { blank_lines: BlankLines::Skip, csv: None };

    /// Each record of CSV is a sample.
    pub(crate) fn csv(rules: CsvRules) -> Self {
        Self { blank_lines: BlankLines::SkipEmpty, csv: Some(rules) }
    }

    /// True if a line without its byte order mark is not a sample.
    fn is_skipped(self, line: &[u8]) -> bool {
        match self.blank_lines {
            BlankLines::Skip => line.trim_ascii().is_empty(),
            BlankLines::SkipEmpty => matches!(line, b"\n" | b"\r\n" | b"\r"),
            BlankLines::Keep => false,
        }
    }

    /// State of a reader at the beginning of a record.
    pub(crate) fn quotes(self) -> Option<Quotes> {
        self.csv.filter(|csv| csv.has_quotes).map(|csv| Quotes::new(csv.delimiter))
    }
}

/// The lines of files, with random access.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Lines {
    files: Files,
    index: LineIndex,
    rules: LineRules,
    max_line_bytes: u64,
}

impl Lines {
    /// Makes the index of `files`, or loads what is stored of it.
    pub(crate) fn open(
        files: Files,
        rules: LineRules,
        place: &IndexPlace,
        max_line_bytes: u64,
    ) -> Result<Self> {
        for location in (0..files.len()).map(|file| files.get(file).location) {
            if Compression::of(&location).is_some() {
                let reason = "a compressed file has no random access; open it as a stream, or decompress it";
                return Err(DataError::new(location, DataProblem::Unsupported(reason.to_owned())));
            }
        }
        let index = LineIndex::open(&files, rules, place)?;
        Ok(Self { files, index, rules, max_line_bytes })
    }

    /// Describes the stored indexes of `files`.
    pub(crate) fn indexes(files: &Files, rules: LineRules, place: &IndexPlace) -> Result<Vec<StoredIndex>> {
        LineIndex::check(files, rules, place)
    }

    pub(crate) fn set_max_line_bytes(&mut self, bytes: u64) {
        self.max_line_bytes = bytes;
    }

    /// Returns the same lines as a stream.
    pub(crate) fn stream(&self) -> Result<LineStream> {
        let index = Some(self.index.clone());
        LineStream::divide(self.files.clone(), index, self.rules, None, self.max_line_bytes)
    }

    /// Number of lines.
    pub(crate) fn len(&self) -> usize {
        self.index.len()
    }

    pub(crate) fn files(&self) -> &Files {
        &self.files
    }

    /// Reads line `index` and returns what `parse` makes of it. The line has its line break.
    ///
    /// # Errors
    /// Returns an error if there is no such line, or it is too long, or cannot be read or parsed.
    pub(crate) fn get<T>(&self, index: usize, parse: impl Fn(&[u8]) -> Result<T, DataProblem>) -> Result<T> {
        let line = self.locate(index)?;
        let bytes = self.files.open(line.file)?.read(line.bytes.clone())?;
        parse(&bytes).map_err(|problem| self.error(&line, problem))
    }

    /// Reads the lines `indices`, as [`get`](Self::get) does. Lines that are near each other are read
    /// together.
    pub(crate) fn get_many<T>(
        &self,
        indices: &[usize],
        parse: impl Fn(&[u8]) -> Result<T, DataProblem>,
    ) -> Result<Vec<T>> {
        let mut wanted = Vec::with_capacity(indices.len());
        for (position, &index) in indices.iter().enumerate() {
            wanted.push((self.locate(index)?, position));
        }
        wanted.sort_unstable_by_key(|(line, _)| line.index);
        let mut parsed: Vec<Option<T>> = indices.iter().map(|_| None).collect();
        for of_file in wanted.chunk_by(|(one, _), (other, _)| one.file == other.file) {
            let runs = runs(of_file);
            let range = |run: &&[(Line, usize)]| run[0].0.bytes.start..run[run.len() - 1].0.bytes.end;
            let ranges: Vec<_> = runs.iter().map(range).collect();
            let blob = self.files.open(of_file[0].0.file)?;
            for (run, bytes) in iter::zip(runs, blob.read_ranges(&ranges)?) {
                let start = run[0].0.bytes.start;
                for (line, position) in run {
                    let line_bytes = (line.bytes.start - start) as usize..(line.bytes.end - start) as usize;
                    let value = parse(&bytes[line_bytes]).map_err(|problem| self.error(line, problem))?;
                    parsed[*position] = Some(value);
                }
            }
        }
        Ok(parsed.into_iter().map(|value| value.expect("each position is in one run")).collect())
    }

    /// Finds line `index` and checks its length.
    fn locate(&self, index: usize) -> Result<Line> {
        let Some(line) = self.index.locate(&self.files, index) else {
            let reason =
                format!("there are {} lines, and line {index} (counted from 0) was asked for", self.len());
            return Err(DataError::new(
                "the index of lines",
                DataProblem::Malformed { format: "an index", reason },
            ));
        };
        let len = line.bytes.end - line.bytes.start;
        if len > self.max_line_bytes {
            return Err(self.error(&line, too_long(len, self.max_line_bytes)));
        }
        Ok(line)
    }

    fn error(&self, line: &Line, problem: DataProblem) -> DataError {
        let position = match self.rules.csv {
            Some(_) => Position::Row(self.index.row(line)),
            None => Position::Line(self.index.number(line)),
        };
        DataError::new(&self.files.get(line.file).location, problem).at(position)
    }
}

/// Splits `lines` of one file, which are sorted, into runs that are read together.
fn runs(mut lines: &[(Line, usize)]) -> Vec<&[(Line, usize)]> {
    let mut runs = Vec::new();
    while let Some((first, _)) = lines.first() {
        let fits = |pair: &[(Line, usize)]| {
            let (before, line) = (&pair[0].0.bytes, &pair[1].0.bytes);
            line.end - first.bytes.start <= MAX_READ && line.start.saturating_sub(before.end) <= MAX_GAP
        };
        let len = 1 + lines.windows(2).take_while(|pair| fits(pair)).count();
        let (run, rest) = lines.split_at(len);
        runs.push(run);
        lines = rest;
    }
    runs
}

fn too_long(len: u64, max: u64) -> DataProblem {
    DataProblem::TooLarge { len, max, option: "max_line_bytes" }
}
