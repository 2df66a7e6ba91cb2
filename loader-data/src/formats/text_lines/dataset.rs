//! The datasets [`TextLines`] and [`TextLinesStream`].

use std::path::Path;

use loader_core::{Dataset, SampleContext};
use serde::{Deserialize, Serialize};

use super::{TextLinesOptions, text};
use crate::{
    error::{DataError, DataProblem},
    lines::{LineStream, Lines, line_stream},
};

/// The lines of text files, with random access. A sample is a `String` without the line break; a batch is a
/// `Vec<String>`.
///
/// Blank lines are samples too, so that the lines of two files can be paired. A line ends with `\n` or
/// `\r\n`; the last line may have no end. The text must be UTF-8; a byte order mark at the beginning of a
/// file is skipped. Opening the files makes an index, as [`JsonLines`](crate::JsonLines) does.
///
/// # Errors
/// A sample fails with a [`DataError`] that names the file and the line if the line is not UTF-8, or longer
/// than [`max_line_bytes`](Self::max_line_bytes), or if the file has changed since it was opened.
///
/// # Examples
/// ```
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("poem.txt");
/// # std::fs::write(&path, "one\n\nthree")?;
/// use loader_core::DataLoader;
/// use loader_data::TextLines;
///
/// let loader = DataLoader::builder(TextLines::open(&path)?).batch_size(3).build()?;
/// assert_eq!(loader.iter()?.next().unwrap()?, ["one", "", "three"]);
/// # anyhow::Ok(())
/// ```
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct TextLines {
    pub(super) lines: Lines,
}

impl TextLines {
    /// Opens the files that `pattern` stands for: a file, a folder (all files in it and its sub-folders whose
    /// names end with `.txt`, ordered by path), or a name with braces and wildcards.
    ///
    /// # Errors
    /// Returns [`DataError`] if there is no such file, or a file cannot be read. The text is not checked.
    pub fn open(pattern: impl AsRef<Path>) -> Result<Self, DataError> {
        TextLinesOptions::new(pattern).open()
    }

    /// Opens the files that `patterns` stand for, in this order.
    ///
    /// # Errors
    /// As for [`open`](Self::open).
    pub fn open_all<P: AsRef<Path>>(patterns: impl IntoIterator<Item = P>) -> Result<Self, DataError> {
        TextLinesOptions::new_all(patterns).open()
    }

    /// Sets the maximum number of bytes of a line, with its line break. The default is 64 MiB.
    #[must_use]
    pub fn max_line_bytes(mut self, bytes: u64) -> Self {
        self.lines.set_max_line_bytes(bytes);
        self
    }

    /// Returns the same lines as a stream whose length is known.
    ///
    /// # Errors
    /// Returns [`DataProblem::Memory`](crate::DataProblem::Memory) if memory runs out.
    pub fn stream(&self) -> Result<TextLinesStream, DataError> {
        Ok(TextLinesStream { stream: self.lines.stream()? })
    }
}

impl Dataset for TextLines {
    type Sample = String;

    fn len(&self) -> usize {
        self.lines.len()
    }

    fn get(&self, index: usize, _cx: &mut SampleContext) -> anyhow::Result<String> {
        Ok(self.lines.get(index, text)?)
    }

    fn get_many(&self, indices: &[usize], _cx: &mut SampleContext) -> anyhow::Result<Vec<String>> {
        Ok(self.lines.get_many(indices, text)?)
    }

    /// Returns the number of files and their total size, and a hash of their names, sizes and partitions.
    fn fingerprint(&self) -> String {
        format!("text_lines({})", self.lines.files().fingerprint())
    }
}

/// The lines of text files, read from the beginning to the end, without an index. A sample is that of
/// [`TextLines`].
///
/// Files that end with `.gz` (gzip) or `.zst` (Zstandard) are decompressed. Shards, resuming and errors are
/// those of [`JsonLinesStream`](crate::JsonLinesStream).
///
/// # Examples
/// ```
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("poem.txt");
/// # std::fs::write(&path, "one\n\nthree")?;
/// use loader_core::{DataLoader, IterableDataset};
/// use loader_data::TextLinesStream;
///
/// let lines = TextLinesStream::open(&path)?.filter(|line, _cx| Ok(!line.is_empty()));
/// let loader = DataLoader::stream(lines).snapshots().shards(1).batch_size(3).build()?;
/// assert_eq!(loader.iter()?.next().unwrap()?, ["one", "three"]);
/// # anyhow::Ok(())
/// ```
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct TextLinesStream {
    pub(super) stream: LineStream,
}

impl TextLinesStream {
    /// Opens the files that `pattern` stands for, as [`TextLines::open`] does. Of a folder, it also takes
    /// files whose names end with `.txt.gz` or `.txt.zst`. Reads none of the files.
    ///
    /// # Errors
    /// Returns [`DataError`] if there is no such file.
    pub fn open(pattern: impl AsRef<Path>) -> Result<Self, DataError> {
        TextLinesOptions::new(pattern).open_stream()
    }
}

impl TextLinesStream {
    fn parse(&self, line: &[u8]) -> Result<String, DataProblem> {
        text(line)
    }

    fn description(&self) -> String {
        description(&self.stream)
    }
}

/// Returns the fingerprint of a stream of lines of text.
pub(super) fn description(stream: &LineStream) -> String {
    format!("text_lines_stream({})", stream.fingerprint())
}

line_stream!(TextLinesStream, String);
