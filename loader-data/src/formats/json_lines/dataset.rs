//! The dataset [`JsonLines`].

use std::{marker::PhantomData, path::Path};

use derive_where::derive_where;
use loader_core::{Dataset, SampleContext};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::{JsonLinesOptions, JsonLinesStream, parse::parse};
use crate::{
    error::DataError,
    lines::Lines,
    record::{FieldOptions, Record},
};

/// The rows of JSON lines files, with random access: one JSON object per line. A sample is a [`Record`], or a
/// type of your own that implements `Deserialize`, see [`rows`](Self::rows).
///
/// Opening the files makes an index of where the lines begin: it reads all files once, on all cores, and
/// stores the index for the next time (see [`IndexPlace`](crate::IndexPlace)). The index needs 8 bytes per
/// line, in memory that all workers share. [`JsonLinesStream`](crate::JsonLinesStream) needs no index.
///
/// # What it reads
/// A line ends with `\n` or `\r\n`; the last line may have no end. Blank lines are skipped, and so is a byte
/// order mark at the beginning of a file. The text is UTF-8. `NaN` and `Infinity`, which Python writes, are
/// not JSON and are an error. In a record, integers are `i64` (`u64` above its range), other numbers `f64`,
/// and arrays of numbers are tensors; [`fields`](Self::fields) selects fields and sets dtypes. If a name
/// occurs twice in an object, a record has its last value.
///
/// # Errors
/// A sample fails with a [`DataError`] that names the file and the line if the line is no JSON object, does
/// not fit the type of the row, or is longer than [`max_line_bytes`](Self::max_line_bytes), or if the file
/// has changed since it was opened.
///
/// # Examples
/// ```
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("reviews.jsonl");
/// # std::fs::write(&path, "{\"text\": \"good\", \"stars\": 5}\n{\"text\": \"bad\", \"stars\": 1}\n")?;
/// use loader_core::DataLoader;
/// use loader_data::JsonLines;
///
/// let reviews = JsonLines::open(&path)?;
/// let loader = DataLoader::builder(reviews).batch_size(2).build()?;
/// let batch = loader.iter()?.next().unwrap()?;
/// assert_eq!(batch.tensor::<i64>("stars")?.as_slice(), [5, 1]);
/// assert_eq!(batch["text"].texts(), Some(["good".to_owned(), "bad".to_owned()].as_slice()));
/// # anyhow::Ok(())
/// ```
#[derive_where(Clone, Debug)]
#[derive(Serialize, Deserialize)]
#[serde(bound = "")]
pub struct JsonLines<R = Record> {
    lines: Lines,
    fields: FieldOptions,
    row: PhantomData<fn() -> R>,
}

impl JsonLines<Record> {
    /// Opens the files that `pattern` stands for: a file, a folder (all files in it and its sub-folders whose
    /// names end with `.jsonl`, `.ndjson` or `.json`, ordered by path), or a name with braces and wildcards,
    /// such as `data/train-{00..31}.jsonl` or `data/*.jsonl`.
    ///
    /// # Errors
    /// Returns [`DataError`] if there is no such file, or a file cannot be read. The content of the lines is
    /// not checked.
    pub fn open(pattern: impl AsRef<Path>) -> Result<Self, DataError> {
        JsonLinesOptions::new(pattern).open()
    }

    /// Opens the files that `patterns` stand for, in this order, as [`open`](Self::open) does.
    ///
    /// # Errors
    /// As for [`open`](Self::open).
    pub fn open_all<P: AsRef<Path>>(patterns: impl IntoIterator<Item = P>) -> Result<Self, DataError> {
        JsonLinesOptions::new_all(patterns).open()
    }
}

impl<R> JsonLines<R> {
    pub(super) fn new(lines: Lines, fields: FieldOptions) -> Self {
        Self { lines, fields, row: PhantomData }
    }

    /// Returns rows of type `T`, which are parsed directly from the line.
    ///
    /// # Examples
    /// ```
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("reviews.jsonl");
    /// # std::fs::write(&path, "{\"text\": \"good\", \"stars\": 5}\n{\"text\": \"bad\", \"stars\": 1}\n")?;
    /// use loader_core::{Dataset, SampleContext};
    /// use loader_data::JsonLines;
    ///
    /// #[derive(serde::Deserialize)]
    /// struct Review {
    ///     text: String,
    ///     stars: u8,
    /// }
    ///
    /// let reviews = JsonLines::open(&path)?.rows::<Review>();
    /// let review = reviews.get(1, &mut SampleContext::new(0))?;
    /// assert_eq!((review.text.as_str(), review.stars), ("bad", 1));
    /// # anyhow::Ok(())
    /// ```
    #[must_use]
    pub fn rows<T: DeserializeOwned + Send + 'static>(self) -> JsonLines<T> {
        JsonLines::new(self.lines, self.fields)
    }

    /// Returns the same rows as a stream whose length is known.
    ///
    /// # Errors
    /// Returns [`DataProblem::Memory`](crate::DataProblem::Memory) if memory runs out.
    pub fn stream(&self) -> Result<JsonLinesStream<R>, DataError> {
        Ok(JsonLinesStream::new(self.lines.stream()?, self.fields.clone()))
    }

    /// Sets which fields a record has, and the dtypes of its numbers. Rows of a type of your own are then
    /// made from the record, which is slower than parsing them directly.
    #[must_use]
    pub fn fields(mut self, fields: FieldOptions) -> Self {
        self.fields = fields;
        self
    }

    /// Sets the maximum number of bytes of a line, with its line break. The default is 64 MiB. A longer line
    /// fails before it is read.
    #[must_use]
    pub fn max_line_bytes(mut self, bytes: u64) -> Self {
        self.lines.set_max_line_bytes(bytes);
        self
    }
}

impl<R: DeserializeOwned + Send + 'static> Dataset for JsonLines<R> {
    type Sample = R;

    fn len(&self) -> usize {
        self.lines.len()
    }

    fn get(&self, index: usize, _cx: &mut SampleContext) -> anyhow::Result<R> {
        Ok(self.lines.get(index, |line| parse(line, &self.fields))?)
    }

    fn get_many(&self, indices: &[usize], _cx: &mut SampleContext) -> anyhow::Result<Vec<R>> {
        Ok(self.lines.get_many(indices, |line| parse(line, &self.fields))?)
    }

    /// Returns the number of files and their total size, and a hash of their names, sizes and partitions, and the
    /// options of the fields.
    fn fingerprint(&self) -> String {
        format!("json_lines({}{})", self.lines.files().fingerprint(), self.fields.fingerprint())
    }
}
