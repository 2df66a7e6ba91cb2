//! Options of lines of text.

use super::{EXTENSIONS, TextLines, TextLinesStream, TextRecords, TextRecordsStream};
use crate::{
    error::DataError,
    index::{IndexPlace, StoredIndex},
    lines::{LineRules, LineStream, Lines, MAX_LINE_BYTES},
    options::format_options,
};

format_options! {
    /// What to read as lines of text, for example from a config file.
    ///
    /// # Examples
    /// ```
    /// use loader_data::TextLinesOptions;
    ///
    /// let options: TextLinesOptions = serde_json::from_str(r#"{"path": "books/*.txt", "index": "beside"}"#)?;
    /// assert_eq!(options.open().unwrap_err().to_string(), "`books/*.txt`: no such file; check the path");
    /// # anyhow::Ok(())
    /// ```
    pub struct TextLinesOptions {
        /// Sets where the index is stored; by default in the user's cache folder. A stream has no index.
        index: IndexPlace = IndexPlace::Cache,
        /// Sets the maximum number of bytes of a line, with its line break. The default is 64 MiB.
        #[serde(with = "loader_core::units::Size")]
        max_line_bytes: u64 = MAX_LINE_BYTES,
        /// Sets the number of bytes of the blocks that a stream deals to its shards, see
        /// [`JsonLinesStream`](crate::JsonLinesStream).
        #[serde(with = "loader_core::units::Size")]
        block_bytes: Option<u64> = None,
    }
}

impl TextLinesOptions {
    /// Opens the files for random access.
    ///
    /// # Errors
    /// As for [`TextLines::open`].
    pub fn open(&self) -> Result<TextLines, DataError> {
        let files = self.source.files(&EXTENSIONS)?;
        Ok(TextLines { lines: Lines::open(files, LineRules::ALL, &self.index, self.max_line_bytes)? })
    }

    /// Opens the files for random access, as a dataset of records with the field `text`.
    ///
    /// # Errors
    /// As for [`TextLines::open`].
    pub fn open_records(&self) -> Result<TextRecords, DataError> {
        Ok(TextRecords(self.open()?))
    }

    /// Describes the stored index of each file, without making one: [`open`](Self::open) makes those that are
    /// not current.
    ///
    /// # Errors
    /// Returns an error if there is no such file, or one is not a regular file.
    pub fn indexes(&self) -> Result<Vec<StoredIndex>, DataError> {
        Lines::indexes(&self.source.files(&EXTENSIONS)?, LineRules::ALL, &self.index)
    }

    /// Opens the files as a stream.
    ///
    /// # Errors
    /// As for [`TextLinesStream::open`].
    pub fn open_stream(&self) -> Result<TextLinesStream, DataError> {
        let files = self.source.stream_files(&EXTENSIONS)?;
        let stream = LineStream::open(files, LineRules::ALL, self.block_bytes, self.max_line_bytes)?;
        Ok(TextLinesStream { stream })
    }

    /// Opens the files as a stream of records with the field `text`.
    ///
    /// # Errors
    /// As for [`TextLinesStream::open`].
    pub fn open_records_stream(&self) -> Result<TextRecordsStream, DataError> {
        Ok(TextRecordsStream::new(self.open_stream()?))
    }
}
