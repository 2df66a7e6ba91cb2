//! The dataset [`Csv`].

use std::{marker::PhantomData, path::Path};

use derive_where::derive_where;
use loader_core::{Dataset, SampleContext};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::{CsvOptions, CsvStream, parse::Parser};
use crate::{error::DataError, lines::Lines, record::Record};

/// The rows of CSV or TSV files, with random access. A sample is a [`Record`], or a type of your own that
/// implements `Deserialize`, see [`rows`](Self::rows).
///
/// Opening the files makes an index of where the records begin: it reads all files once, several at the same
/// time, and stores the index for the next time (see [`IndexPlace`](crate::IndexPlace)). The index needs 8
/// bytes per row, in memory that all workers share. [`CsvStream`] needs no index.
///
/// # What it reads
/// A record ends with `\n` or `\r\n`; the last one may have no end. A field that begins with `"` ends at the
/// next `"`; it may have delimiters and line breaks, and `""` for a quotation mark. Empty lines and a byte
/// order mark are skipped. All files must have the same header, or none, see [`CsvOptions::names`]. The text
/// is UTF-8.
///
/// # Types of columns
/// A record has the types that [`CsvOptions::column_type`] sets. The type of any other column is the first of
/// these that all its fields in the first 1000 rows have, leaving out those that are missing:
/// - `int64`, without leading zeros, so that codes such as `01067` stay texts;
/// - `float64`: numbers with a point or an exponent, `nan`, `inf`, and integers among them;
/// - `bool`: `true` and `false`, in any case;
/// - text, even if all of them are missing.
///
/// A later field of another type is an error that names the option `types`. Spaces around numbers and booleans
/// do not count. An empty field is null, or an empty text in a column of texts;
/// [`CsvOptions::missing`] adds other texts that are null in any column.
///
/// # Errors
/// A sample fails with a [`DataError`] that names the file and the row (counted from 0, without the header)
/// if it has another number of fields than there are columns, does not fit the types, or is longer than
/// [`max_line_bytes`](CsvOptions::max_line_bytes), or if the file has changed since it was opened.
///
/// # Examples
/// ```
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("people.csv");
/// # std::fs::write(&path, "name,age,zip\n\"Ada, Countess\",36,01067\nAlan,41.5,90210\n")?;
/// use loader_core::DataLoader;
/// use loader_data::Csv;
///
/// let people = Csv::open(&path)?;
/// let loader = DataLoader::builder(people).batch_size(2).build()?;
/// let batch = loader.iter()?.next().unwrap()?;
/// assert_eq!(batch.tensor::<f64>("age")?.as_slice(), [36.0, 41.5]);
/// assert_eq!(batch["zip"].texts(), Some(["01067".to_owned(), "90210".to_owned()].as_slice()));
/// # anyhow::Ok(())
/// ```
#[derive_where(Clone, Debug)]
#[derive(Serialize, Deserialize)]
#[serde(bound = "")]
pub struct Csv<R = Record> {
    lines: Lines,
    parser: Parser,
    row: PhantomData<fn() -> R>,
}

impl Csv<Record> {
    /// Opens the files that `pattern` stands for: a file, a folder (all files in it and its sub-folders whose
    /// names end with `.csv` or `.tsv`, ordered by path), or a name with braces and wildcards, such as
    /// `data/train-{00..31}.csv`.
    ///
    /// # Errors
    /// Returns [`DataError`] if there is no such file, a file cannot be read or has no header, the headers of
    /// two files differ, or two columns have the same name. Rows are not checked.
    pub fn open(pattern: impl AsRef<Path>) -> Result<Self, DataError> {
        CsvOptions::new(pattern).open()
    }

    /// Opens the files that `patterns` stand for, in this order, as [`open`](Self::open) does.
    ///
    /// # Errors
    /// As for [`open`](Self::open).
    pub fn open_all<P: AsRef<Path>>(patterns: impl IntoIterator<Item = P>) -> Result<Self, DataError> {
        CsvOptions::new_all(patterns).open()
    }
}

impl<R> Csv<R> {
    pub(super) fn new(lines: Lines, parser: Parser) -> Self {
        Self { lines, parser, row: PhantomData }
    }

    /// Returns rows of type `T`, which are parsed directly from the record: the types of columns do not
    /// matter. As in records, booleans may be in any case, and spaces around numbers and booleans do not
    /// count. A field that is missing is `None` of an `Option`. If columns are selected or converted, the rows are
    /// made from records.
    ///
    /// # Examples
    /// ```
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("people.csv");
    /// # std::fs::write(&path, "name,age\n\"Ada, Countess\",36\nAlan,\n")?;
    /// use loader_core::{Dataset, SampleContext};
    /// use loader_data::Csv;
    ///
    /// #[derive(serde::Deserialize)]
    /// struct Person {
    ///     name: String,
    ///     age: Option<u8>,
    /// }
    ///
    /// let people = Csv::open(&path)?.rows::<Person>();
    /// let person = people.get(1, &mut SampleContext::new(0))?;
    /// assert_eq!((person.name.as_str(), person.age), ("Alan", None));
    /// # anyhow::Ok(())
    /// ```
    #[must_use]
    pub fn rows<T: DeserializeOwned + Send + 'static>(self) -> Csv<T> {
        Csv::new(self.lines, self.parser)
    }

    /// Returns the same rows as a stream whose length is known. It is divided into blocks as
    /// [`JsonLinesStream`](crate::JsonLinesStream) is, because the index tells where records begin.
    ///
    /// # Errors
    /// Returns [`DataProblem::Memory`](crate::DataProblem::Memory) if memory runs out.
    pub fn stream(&self) -> Result<CsvStream<R>, DataError> {
        Ok(CsvStream::new(self.lines.stream()?, self.parser.clone()))
    }

    /// Returns the name and the type of each column of a record, such as `("age", "float64")`.
    pub fn columns(&self) -> Vec<(String, String)> {
        self.parser.columns()
    }
}

impl<R: DeserializeOwned + Send + 'static> Dataset for Csv<R> {
    type Sample = R;

    fn len(&self) -> usize {
        self.lines.len()
    }

    fn get(&self, index: usize, _cx: &mut SampleContext) -> anyhow::Result<R> {
        Ok(self.lines.get(index, |record| self.parser.parse(record))?)
    }

    fn get_many(&self, indices: &[usize], _cx: &mut SampleContext) -> anyhow::Result<Vec<R>> {
        Ok(self.lines.get_many(indices, |record| self.parser.parse(record))?)
    }

    /// Returns the number of files and their total size, and a hash of their names, sizes and partitions, and the
    /// options.
    fn fingerprint(&self) -> String {
        format!("csv({}, {})", self.lines.files().fingerprint(), self.parser.fingerprint)
    }
}
