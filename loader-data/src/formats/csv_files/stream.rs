//! The dataset [`CsvStream`].

use std::{marker::PhantomData, path::Path};

use derive_where::derive_where;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::{CsvOptions, parse::Parser};
use crate::{
    error::{DataError, DataProblem},
    lines::{LineStream, line_stream},
    record::Record,
};

/// The rows of CSV or TSV files, read from the beginning to the end, without an index. Files that end with
/// `.gz` (gzip) or `.zst` (Zstandard) are decompressed. Syntax, samples and types of columns are those of
/// [`Csv`](crate::Csv).
///
/// # Shards
/// File `i` belongs to shard `i % n`, because only reading a file from its beginning tells where its records
/// begin. To divide large files among shards, open them with [`Csv`](crate::Csv), which makes an index, and
/// read its [`stream`](crate::Csv::stream). To shuffle, use
/// [`shuffle_buffer`](loader_core::IterableDataset::shuffle_buffer).
///
/// # Resuming
/// With [`snapshots`](loader_core::Builder::snapshots), a resumed run continues at the byte after the last
/// row. Without, it reads the shard from its beginning, but does not parse the rows before. A compressed file
/// is always read from its beginning.
///
/// # Errors
/// A row that cannot be parsed is an item that is an error, as for [`Csv`](crate::Csv), with its offset in
/// the file instead of its row. If the rest of a file cannot be read, for example because its compressed content is
/// damaged, or if no file can be read for now, the shard ends, see [`EndsShard`](loader_core::EndsShard).
///
/// # Examples
/// ```
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("people.tsv");
/// # std::fs::write(&path, "name\tage\nAda\t36\nAlan\t41\n")?;
/// use loader_core::DataLoader;
/// use loader_data::CsvStream;
///
/// let people = CsvStream::open(&path)?;
/// let loader = DataLoader::stream(people).snapshots().shards(1).batch_size(2).build()?;
/// let batch = loader.iter()?.next().unwrap()?;
/// assert_eq!(batch.tensor::<i64>("age")?.as_slice(), [36, 41]);
/// # anyhow::Ok(())
/// ```
#[derive_where(Clone, Debug)]
#[derive(Serialize, Deserialize)]
#[serde(bound = "")]
pub struct CsvStream<R = Record> {
    stream: LineStream,
    parser: Parser,
    row: PhantomData<fn() -> R>,
}

impl CsvStream<Record> {
    /// Opens the files that `pattern` stands for, as [`Csv::open`](crate::Csv::open) does. Of a folder, it
    /// also takes files with `.gz` or `.zst` after the extension. Reads the header of each file, and the
    /// first 1000 rows.
    ///
    /// # Errors
    /// As for [`Csv::open`](crate::Csv::open).
    pub fn open(pattern: impl AsRef<Path>) -> Result<Self, DataError> {
        CsvOptions::new(pattern).open_stream()
    }

    /// Opens the files that `patterns` stand for, in this order, as [`open`](Self::open) does.
    ///
    /// # Errors
    /// As for [`open`](Self::open).
    pub fn open_all<P: AsRef<Path>>(patterns: impl IntoIterator<Item = P>) -> Result<Self, DataError> {
        CsvOptions::new_all(patterns).open_stream()
    }
}

impl<R> CsvStream<R> {
    pub(super) fn new(stream: LineStream, parser: Parser) -> Self {
        Self { stream, parser, row: PhantomData }
    }

    /// Returns rows of type `T`, as [`Csv::rows`](crate::Csv::rows) does.
    #[must_use]
    pub fn rows<T: DeserializeOwned + Send + 'static>(self) -> CsvStream<T> {
        CsvStream::new(self.stream, self.parser)
    }

    /// Returns the name and the type of each column of a record, such as `("age", "float64")`.
    pub fn columns(&self) -> Vec<(String, String)> {
        self.parser.columns()
    }
}

impl<R: DeserializeOwned + 'static> CsvStream<R> {
    fn parse(&self, record: &[u8]) -> Result<R, DataProblem> {
        self.parser.parse(record)
    }

    fn description(&self) -> String {
        format!("csv_stream({}, {})", self.stream.fingerprint(), self.parser.fingerprint)
    }
}

line_stream!(CsvStream<R>, R);
