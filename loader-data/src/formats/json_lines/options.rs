//! Options of JSON lines.

use super::{EXTENSIONS, JsonLines, JsonLinesStream};
use crate::{
    error::DataError,
    index::{IndexPlace, StoredIndex},
    lines::{LineRules, LineStream, Lines, MAX_LINE_BYTES},
    options::format_options,
    record::{FieldOptions, Record},
};

format_options! {
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
    pub struct JsonLinesOptions {
        /// Sets which fields a record has, and the dtypes of its numbers.
        #[serde(flatten)]
        fields: FieldOptions = FieldOptions::new(),
        /// Sets where the index is stored; by default in the user's cache folder. A stream has no index.
        index: IndexPlace = IndexPlace::Cache,
        /// Sets the maximum number of bytes of a line, with its line break. The default is 64 MiB.
        #[serde(with = "loader_core::units::Size")]
        max_line_bytes: u64 = MAX_LINE_BYTES,
        /// Sets the number of bytes of the blocks that a stream deals to its shards, see [`JsonLinesStream`].
        #[serde(with = "loader_core::units::Size")]
        block_bytes: Option<u64> = None,
    }
}

impl JsonLinesOptions {
    /// Opens the files for random access.
    ///
    /// # Errors
    /// As for [`JsonLines::open`].
    pub fn open(&self) -> Result<JsonLines<Record>, DataError> {
        let files = self.source.files(&EXTENSIONS)?;
        let lines = Lines::open(files, LineRules::NOT_BLANK, &self.index, self.max_line_bytes)?;
        Ok(JsonLines::new(lines, self.fields.clone()))
    }

    /// Describes the stored index of each file, without making one: [`open`](Self::open) makes those that are
    /// not current.
    ///
    /// # Errors
    /// Returns an error if there is no such file, or one is not a regular file.
    pub fn indexes(&self) -> Result<Vec<StoredIndex>, DataError> {
        Lines::indexes(&self.source.files(&EXTENSIONS)?, LineRules::NOT_BLANK, &self.index)
    }

    /// Opens the files as a stream.
    ///
    /// # Errors
    /// As for [`JsonLinesStream::open`].
    pub fn open_stream(&self) -> Result<JsonLinesStream<Record>, DataError> {
        let files = self.source.stream_files(&EXTENSIONS)?;
        let stream = LineStream::open(files, LineRules::NOT_BLANK, self.block_bytes, self.max_line_bytes)?;
        Ok(JsonLinesStream::new(stream, self.fields.clone()))
    }
}
