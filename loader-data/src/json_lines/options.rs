//! Options of JSON lines.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{JsonLines, JsonLinesStream};
use crate::{
    error::DataError,
    index::IndexPlace,
    lines::MAX_LINE_BYTES,
    record::{FieldOptions, Record},
    source::{StoreOptions, one_or_many},
};

/// What to read as JSON lines, for example from a config file.
///
/// # Examples
/// ```
/// use loader_data::JsonLinesOptions;
///
/// let text = r#"{"path": "train/*.jsonl", "fields": ["text", "label"], "dtypes": {"label": "uint8"}, "index": "beside"}"#;
/// let options: JsonLinesOptions = serde_json::from_str(text)?;
/// assert_eq!(options.open().unwrap_err().to_string(), "`train/*.jsonl`: no such file; check the path");
/// # anyhow::Ok(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JsonLinesOptions {
    /// A file, a folder or a pattern, or a list of them.
    #[serde(deserialize_with = "one_or_many")]
    path: Vec<PathBuf>,
    #[serde(flatten)]
    pub(super) fields: FieldOptions,
    #[serde(default)]
    pub(super) index: IndexPlace,
    #[serde(default = "max_line_bytes")]
    pub(super) max_line_bytes: u64,
    #[serde(default)]
    pub(super) block_bytes: Option<u64>,
    #[serde(default)]
    pub(super) store: StoreOptions,
}

fn max_line_bytes() -> u64 {
    MAX_LINE_BYTES
}

impl JsonLinesOptions {
    /// Returns the default options for the files that `pattern` stands for, see [`JsonLines::open`].
    pub fn new(pattern: impl AsRef<Path>) -> Self {
        Self::new_all([pattern])
    }

    /// Returns the default options for the files that `patterns` stand for, in this order.
    pub fn new_all<P: AsRef<Path>>(patterns: impl IntoIterator<Item = P>) -> Self {
        Self {
            path: patterns.into_iter().map(|pattern| pattern.as_ref().to_owned()).collect(),
            fields: FieldOptions::new(),
            index: IndexPlace::default(),
            max_line_bytes: MAX_LINE_BYTES,
            block_bytes: None,
            store: StoreOptions::default(),
        }
    }

    /// Sets where the index is stored; by default in the user's cache folder.
    #[must_use]
    pub fn index(mut self, place: IndexPlace) -> Self {
        self.index = place;
        self
    }

    /// Sets which fields a record has, and the dtypes of its numbers.
    #[must_use]
    pub fn fields(mut self, fields: FieldOptions) -> Self {
        self.fields = fields;
        self
    }

    /// Sets the max number of bytes of a line, with its line break. The default is 64 MiB.
    #[must_use]
    pub fn max_line_bytes(mut self, bytes: u64) -> Self {
        self.max_line_bytes = bytes;
        self
    }

    /// Sets the number of bytes of the blocks that a stream deals to its shards, see [`JsonLinesStream`].
    #[must_use]
    pub fn block_bytes(mut self, bytes: u64) -> Self {
        self.block_bytes = Some(bytes);
        self
    }

    /// Sets how files are read from servers.
    #[must_use]
    pub fn store(mut self, store: StoreOptions) -> Self {
        self.store = store;
        self
    }

    /// Opens the files for random access.
    ///
    /// # Errors
    /// As for [`JsonLines::open`].
    pub fn open(&self) -> Result<JsonLines<Record>, DataError> {
        JsonLines::from_options(self)
    }

    /// Opens the files as a stream.
    ///
    /// # Errors
    /// As for [`JsonLinesStream::open`].
    pub fn open_stream(&self) -> Result<JsonLinesStream<Record>, DataError> {
        JsonLinesStream::from_options(self)
    }

    pub(super) fn patterns(&self) -> &[PathBuf] {
        &self.path
    }

    #[cfg(feature = "formats")]
    pub(crate) fn path_mut(&mut self) -> &mut [PathBuf] {
        &mut self.path
    }
}
