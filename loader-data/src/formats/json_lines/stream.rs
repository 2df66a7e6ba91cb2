//! The dataset [`JsonLinesStream`].

use std::{marker::PhantomData, path::Path};

use derive_where::derive_where;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::{JsonLinesOptions, parse::parse};
use crate::{
    error::{DataError, DataProblem},
    lines::{LineStream, line_stream},
    record::{FieldOptions, Record},
};

/// The rows of JSON lines files, read from the beginning to the end, without an index. Files that end with
/// `.gz` (gzip) or `.zst` (Zstandard) are decompressed. Syntax and samples are those of
/// [`JsonLines`](crate::JsonLines).
///
/// # Shards
/// The files are divided into blocks of equal size: by default 4 MiB, or less if all files together have less
/// than 1 GiB, but at least 16 KiB. Block `i` belongs to shard `i % n`; a row belongs to the block that its
/// first byte is in. A compressed file is one block. The order of the rows depends on the number of shards,
/// so set [`shards`](loader_core::Builder::shards). To shuffle, use
/// [`shuffle_buffer`](loader_core::IterableDataset::shuffle_buffer).
///
/// # Resuming
/// With [`snapshots`](loader_core::Builder::snapshots), a resumed run continues at the byte after the last
/// row. Without, it reads the shard from its beginning, but does not parse the rows before. A compressed file
/// is always read from its beginning.
///
/// # Errors
/// A row that cannot be parsed is an item that is an error, as for [`JsonLines`](crate::JsonLines), with its
/// offset in the file instead of its line. If the rest of a file cannot be read, for example because its compressed
/// content is damaged, or if no file can be read for now, the shard ends, see
/// [`EndsShard`](loader_core::EndsShard).
///
/// # Examples
/// ```
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("reviews.jsonl");
/// # std::fs::write(&path, "{\"text\": \"good\", \"stars\": 5}\n{\"text\": \"bad\", \"stars\": 1}\n")?;
/// use loader_core::{DataLoader, IterableDataset};
/// use loader_data::JsonLinesStream;
///
/// #[derive(serde::Deserialize)]
/// struct Review {
///     stars: u8,
/// }
///
/// let reviews = JsonLinesStream::open(&path)?.rows::<Review>();
/// let stars = reviews.map(|review, _cx| Ok(review.stars)).shuffle_buffer(1000);
/// let loader = DataLoader::stream(stars).snapshots().shards(1).batch_size(2).build()?;
/// let batch = loader.iter()?.next().unwrap()?;
/// assert_eq!(batch.as_slice().iter().max(), Some(&5));
/// # anyhow::Ok(())
/// ```
#[derive_where(Clone, Debug)]
#[derive(Serialize, Deserialize)]
#[serde(bound = "")]
pub struct JsonLinesStream<R = Record> {
    stream: LineStream,
    fields: FieldOptions,
    row: PhantomData<fn() -> R>,
}

impl JsonLinesStream<Record> {
    /// Opens the files that `pattern` stands for, as [`JsonLines::open`](crate::JsonLines::open) does. Of a
    /// folder, it also takes files with `.gz` or `.zst` after the extension. Reads none of the files.
    ///
    /// # Errors
    /// Returns [`DataError`] if there is no such file.
    pub fn open(pattern: impl AsRef<Path>) -> Result<Self, DataError> {
        JsonLinesOptions::new(pattern).open_stream()
    }

    /// Opens the files that `patterns` stand for, in this order, as [`open`](Self::open) does.
    ///
    /// # Errors
    /// As for [`open`](Self::open).
    pub fn open_all<P: AsRef<Path>>(patterns: impl IntoIterator<Item = P>) -> Result<Self, DataError> {
        JsonLinesOptions::new_all(patterns).open_stream()
    }
}

impl<R> JsonLinesStream<R> {
    /// Returns the fields of a record if they are selected.
    #[cfg(feature = "formats")]
    pub(crate) fn field_names(&self) -> Option<Vec<String>> {
        self.fields.selected().map(<[String]>::to_vec)
    }

    pub(super) fn new(stream: LineStream, fields: FieldOptions) -> Self {
        Self { stream, fields, row: PhantomData }
    }

    /// Returns rows of type `T`, as [`JsonLines::rows`](crate::JsonLines::rows) does.
    #[must_use]
    pub fn rows<T: DeserializeOwned + Send + 'static>(self) -> JsonLinesStream<T> {
        JsonLinesStream::new(self.stream, self.fields)
    }

    /// Sets the fields of a record, as [`JsonLines::fields`](crate::JsonLines::fields) does.
    #[must_use]
    pub fn fields(mut self, fields: FieldOptions) -> Self {
        self.fields = fields;
        self
    }

    /// Sets the maximum number of bytes of a line, with its line break. The default is 64 MiB.
    #[must_use]
    pub fn max_line_bytes(mut self, bytes: u64) -> Self {
        self.stream.set_max_line_bytes(bytes);
        self
    }
}

impl<R: DeserializeOwned + 'static> JsonLinesStream<R> {
    fn parse(&self, line: &[u8]) -> Result<R, DataProblem> {
        parse(line, &self.fields)
    }

    fn description(&self) -> String {
        format!("json_lines_stream({}{})", self.stream.fingerprint(), self.fields.fingerprint())
    }
}

line_stream!(JsonLinesStream<R>, R);
