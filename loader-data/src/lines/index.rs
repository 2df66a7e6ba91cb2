//! The index of the lines of files, in memory that all workers share.

use std::{iter, ops::Range};

use loader_core::{Element, Tensor, TensorError};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::{
    BYTE_ORDER_MARK, LineRules,
    scan::{PartLines, first_byte, scan, scan_records},
};
use crate::{
    error::{DataError, DataProblem, Result},
    index::{self, IndexKind, IndexPlace, IndexStatus, StoredIndex},
    parallel,
    source::{Blob, DataFile, Files, Location},
};

/// Number of bytes that one thread reads at a time while the index is made.
const PART_BYTES: u64 = 16 << 20;

/// Number of lines of a file, besides the first, whose beginnings are compared with a stored index.
const CHECKED_LINES: usize = 2;

/// Maximum number of files whose lines are compared with a stored index. Of more files, a random part is drawn:
/// opening a file of a network disk takes milliseconds.
const CHECKED_FILES: usize = 256;

/// Seed of this random part. It is fixed, so that each process checks the same files.
const CHECKED_FILES_SEED: u64 = 0;

/// Number of words of a run of blank lines: rows before it, blank lines up to its end, offset of its
/// beginning.
const GAP_WORDS: usize = 3;

/// Where the lines of files begin: 8 bytes for each line, and 24 bytes for each run of blank lines that are
/// skipped.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct LineIndex {
    /// For each line, the offset in its file.
    starts: Tensor<u64>,
    /// Runs of blank lines, shape `[runs, GAP_WORDS]`. Rows and blank lines are counted from the beginning of
    /// the file.
    gaps: Tensor<u64>,
    /// For each file, the index of its first line; then the number of lines.
    first_lines: Tensor<u64>,
    /// For each file, the number of its first run; then the number of runs.
    first_gaps: Tensor<u64>,
}

/// A line of a file.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Line {
    /// Index of the line in all files.
    pub(super) index: usize,
    /// The file.
    pub(super) file: usize,
    /// Its bytes, with the line break.
    pub(super) bytes: Range<u64>,
}

impl LineIndex {
    /// Loads the stored indexes of `files`, and makes and stores those that are missing or stale.
    pub(super) fn open(files: &Files, rules: LineRules, place: &IndexPlace) -> Result<Self> {
        let kind = kind(rules);
        let mut words = parallel::map(files.len(), |number| {
            let file = files.get(number);
            let words = index::load(place, kind, &file);
            let is_of_file = |words: &Vec<u64>| status(words, &file, files, number) == IndexStatus::Current;
            Ok::<_, DataError>(words.filter(is_of_file))
        })?;
        let mut parts = Vec::new();
        for (number, _) in words.iter().enumerate().filter(|(_, words)| words.is_none()) {
            let len = files.get(number).len;
            // Where a record of CSV begins depends on all bytes before it.
            let part_bytes = if rules.csv.is_some() { len.max(1) } else { PART_BYTES };
            let part = |start: u64| (number, start..start.saturating_add(part_bytes).min(len));
            parts.extend((0..len).step_by(part_bytes as usize).map(part));
        }
        let scanned = parallel::map(parts.len(), |part| scan_part(files, &parts[part], rules))?;
        let mut scanned = iter::zip(parts, scanned).peekable();
        for (number, words) in words.iter_mut().enumerate().filter(|(_, words)| words.is_none()) {
            let of_file = iter::from_fn(|| scanned.next_if(|((file, _), _)| *file == number));
            let made = joined(of_file.map(|(_, part)| part));
            index::store(place, kind, &files.get(number), &made);
            *words = Some(made);
        }
        Self::of_files(words.into_iter().flatten())
            .map_err(|error| DataError::new("the index of lines", DataProblem::Memory(error.to_string())))
    }

    /// Describes the stored indexes of `files`.
    pub(super) fn check(files: &Files, rules: LineRules, place: &IndexPlace) -> Result<Vec<StoredIndex>> {
        parallel::map(files.len(), |number| {
            let file = files.get(number);
            Ok(index::check(place, kind(rules), &file, |words| status(words, &file, files, number)))
        })
    }

    /// Copies the indexes of the files into tensors.
    fn of_files(words: impl Iterator<Item = Vec<u64>>) -> Result<Self, TensorError> {
        let words: Vec<_> = words.collect();
        let (mut first_lines, mut first_gaps) = (vec![0], vec![0]);
        for words in &words {
            let file = FileIndex::of(words);
            first_lines.push(last(&first_lines) + file.starts.len() as u64);
            first_gaps.push(last(&first_gaps) + (file.gaps.len() / GAP_WORDS) as u64);
        }
        let mut starts = Tensor::zeros([last(&first_lines) as usize])?;
        let mut gaps = Tensor::zeros([last(&first_gaps) as usize, GAP_WORDS])?;
        let (mut free_starts, mut free_gaps) = (starts.as_mut_slice()?, gaps.as_mut_slice()?);
        // Each index is dropped when it has been copied: together they may need much memory.
        for words in words {
            let file = FileIndex::of(&words);
            free_starts = append(free_starts, file.starts);
            free_gaps = append(free_gaps, file.gaps);
        }
        let prefix = |numbers: &[u64]| Tensor::from_slice(numbers, [numbers.len()]);
        Ok(Self { starts, gaps, first_lines: prefix(&first_lines)?, first_gaps: prefix(&first_gaps)? })
    }

    /// Number of lines in all files.
    pub(super) fn len(&self) -> usize {
        self.starts.len()
    }

    /// Returns line `index`, or `None` if there is no such line.
    pub(super) fn locate(&self, files: &Files, index: usize) -> Option<Line> {
        let start = *self.starts.as_slice().get(index)?;
        // The last file that begins at or before the line. A file without lines begins where the next one
        // does.
        let file =
            self.first_lines.as_slice().partition_point(|&first| first <= index as u64).checked_sub(1)?;
        let row = index as u64 - self.first_lines.as_slice()[file];
        let gaps = self.gaps_of(file);
        let gap = gaps.partition_point(|gap| gap[0] <= row);
        let is_last = index as u64 + 1 == *self.first_lines.as_slice().get(file + 1)?;
        let end = match gaps.get(gap) {
            Some(gap) if gap[0] == row + 1 => gap[2],
            _ if is_last => files.get(file).len,
            _ => *self.starts.as_slice().get(index + 1)?,
        };
        Some(Line { index, file, bytes: start..end.max(start) })
    }

    /// Returns the index of `line` among the lines of its file that are samples.
    pub(super) fn row(&self, line: &Line) -> u64 {
        line.index as u64 - self.first_lines.as_slice()[line.file]
    }

    /// Returns where the first line of a file begins that begins at `offset` or later.
    pub(super) fn first_at(&self, file: usize, offset: u64) -> Option<u64> {
        let first = self.first_lines.as_slice();
        let starts = &self.starts.as_slice()[first[file] as usize..first[file + 1] as usize];
        starts.get(starts.partition_point(|&start| start < offset)).copied()
    }

    /// Returns the number of `line` in its file, counted from 1, with the blank lines.
    pub(super) fn number(&self, line: &Line) -> u64 {
        let row = self.row(line);
        let gaps = self.gaps_of(line.file);
        let blank = gaps.partition_point(|gap| gap[0] <= row).checked_sub(1).map_or(0, |gap| gaps[gap][1]);
        row + blank + 1
    }

    fn gaps_of(&self, file: usize) -> &[[u64; GAP_WORDS]] {
        let first = self.first_gaps.as_slice();
        let gaps: &[[u64; GAP_WORDS]] = bytemuck::cast_slice(self.gaps.as_slice());
        &gaps[first[file] as usize..first[file + 1] as usize]
    }
}

/// The index of one file: the number of runs of blank lines, the runs, the starts of the lines.
struct FileIndex<'a> {
    gaps: &'a [u64],
    starts: &'a [u64],
}

impl<'a> FileIndex<'a> {
    /// Takes apart an index that was checked or made here.
    fn of(words: &'a [u64]) -> Self {
        let (gaps, starts) = words[1..].split_at(words[0] as usize * GAP_WORDS);
        Self { gaps, starts }
    }

    /// Checks a stored index of a file with `len` bytes. Returns `None` if it cannot be one.
    fn parse(words: &'a [u64], len: u64) -> Option<Self> {
        let (&runs, rest) = words.split_first()?;
        let gap_words = usize::try_from(runs).ok()?.checked_mul(GAP_WORDS)?;
        let (gaps, starts) = rest.split_at_checked(gap_words)?;
        let is_ascending = starts.is_sorted_by(|one, other| one < other);
        let is_inside = starts.last().is_none_or(|&last| last < len);
        let runs: &[[u64; GAP_WORDS]] = bytemuck::cast_slice(gaps);
        let are_runs =
            runs.is_sorted() && runs.iter().all(|&[row, _, start]| row <= starts.len() as u64 && start < len);
        (is_ascending && is_inside && are_runs).then_some(Self { gaps, starts })
    }

    /// Returns false if some of the lines do not follow a line break, because the content of the file is
    /// another one with the same size and time. Only a file on the local file system can change so.
    ///
    /// Alternative considered: compare the inode and the time of the last change of the inode. Rejected because
    /// machines that share an index may have copies of the data file.
    fn fits_content(&self, blob: &Blob) -> Result<bool> {
        let Some(last) = self.starts.len().checked_sub(1) else { return Ok(true) };
        for line in 0..=CHECKED_LINES {
            let start = self.starts[last * line / CHECKED_LINES];
            // A line at the beginning may follow a byte order mark.
            if start > BYTE_ORDER_MARK.len() as u64 && blob.read(start - 1..start)? != b"\n" {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Returns the status of the words of a stored index of `file`, which is file `number` of `files`.
///
/// A file that cannot be read is no reason to make another index: its samples are errors.
fn status(words: &[u64], file: &DataFile, files: &Files, number: usize) -> IndexStatus {
    let Some(parsed) = FileIndex::parse(words, file.len) else { return IndexStatus::Damaged };
    if !matches!(file.location, Location::Path(_)) || !is_checked(number, files.len()) {
        return IndexStatus::Current;
    }
    // Not `Files::open`: its lock would let one thread at a time open a file.
    match Blob::open(file.clone()).and_then(|blob| parsed.fits_content(&blob)) {
        Ok(false) => IndexStatus::Stale,
        Ok(true) | Err(_) => IndexStatus::Current,
    }
}

/// True if file `number` of `count` is in the random part of the files that is checked.
fn is_checked(number: usize, count: usize) -> bool {
    let drawn = xxh3_64_with_seed(&(number as u64).to_le_bytes(), CHECKED_FILES_SEED);
    count <= CHECKED_FILES || drawn % (count as u64) < CHECKED_FILES as u64
}

fn kind(rules: LineRules) -> IndexKind {
    let Some(csv) = rules.csv else {
        return if rules == LineRules::ALL { *b"lines--1" } else { *b"rows---1" };
    };
    // The kind is part of the name of a file.
    let hex = |digit: u8| char::from_digit(u32::from(digit), 16).map_or(b'-', |digit| digit as u8);
    let (quotes, header) =
        (if csv.has_quotes { b'q' } else { b'-' }, if csv.has_header { b'h' } else { b'-' });
    [b'c', b's', b'v', hex(csv.delimiter >> 4), hex(csv.delimiter & 15), quotes, header, b'2']
}

/// Finds the lines of one part of a file.
fn scan_part(files: &Files, (file, range): &(usize, Range<u64>), rules: LineRules) -> Result<PartLines> {
    let blob = files.open(*file)?;
    let reader = blob.reader(first_byte(range.start)..blob.len()).expect_end(range.end);
    let found = match rules.csv {
        Some(csv) => scan_records(reader, rules, csv.has_header),
        None => scan(reader, range.clone(), rules),
    };
    found.map_err(|error| blob.read_error(range.start, error))
}

/// Joins the parts of a file to its index.
fn joined(parts: impl Iterator<Item = PartLines>) -> Vec<u64> {
    let mut gaps = Vec::new();
    let mut starts = Vec::new();
    let mut blank = 0;
    for part in parts {
        for gap in part.gaps {
            blank += gap.count;
            gaps.extend([starts.len() as u64 + gap.row, blank, gap.start]);
        }
        starts.extend(part.starts);
    }
    [vec![(gaps.len() / GAP_WORDS) as u64], gaps, starts].concat()
}

fn last(numbers: &[u64]) -> u64 {
    numbers.last().copied().unwrap_or(0)
}

/// Copies `items` to the beginning of `free` and returns the rest.
fn append<'a, T: Element>(free: &'a mut [T], items: &[T]) -> &'a mut [T] {
    let (room, rest) = free.split_at_mut(items.len());
    room.copy_from_slice(items);
    rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_files_a_part_is_checked() {
        let checked = |count| (0..count).filter(|&number| is_checked(number, count)).count();
        assert_eq!(checked(CHECKED_FILES), CHECKED_FILES);
        let of_many = checked(50_000);
        assert!((CHECKED_FILES / 2..CHECKED_FILES * 2).contains(&of_many), "{of_many}");
    }
}
