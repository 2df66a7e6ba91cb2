//! Options of Arrow files.

use super::{Arrow, ArrowStream, EXTENSIONS, saved, table::Table};
use crate::{
    error::DataError,
    options::format_options,
    record::{FieldOptions, Record},
    source::Files,
};

format_options! {
    /// What to read from Arrow files, for example from a config file.
    ///
    /// # Examples
    /// ```
    /// use loader_data::ArrowOptions;
    ///
    /// let text = r#"{"path": "data/train-*.arrow", "fields": ["text", "label"]}"#;
    /// let options: ArrowOptions = serde_json::from_str(text)?;
    /// let error = options.open().unwrap_err();
    /// assert_eq!(error.to_string(), "`data/train-*.arrow`: no such file; check the path");
    /// # anyhow::Ok(())
    /// ```
    pub struct ArrowOptions {
        /// Sets which columns are read, and the dtypes of their numbers.
        #[serde(flatten)]
        fields: FieldOptions = FieldOptions::new(),
        /// Sets the maximum number of bytes of decompressed record batches that each worker keeps for random
        /// access, within its part of the loader's [`memory_limit`](loader_core::Builder::memory_limit). The
        /// default is 64 MiB. Record batches that are not compressed are never kept.
        #[serde(with = "loader_core::units::Size")]
        cache_bytes: u64 = 64 << 20,
        /// Sets the maximum number of bytes of a compressed record batch, before and after it is decompressed.
        /// The default is 1 GiB.
        #[serde(with = "loader_core::units::Size")]
        max_batch_bytes: u64 = 1 << 30,
    }
}

impl ArrowOptions {
    /// Opens the files for random access.
    ///
    /// # Errors
    /// As for [`Arrow::open`].
    pub fn open(&self) -> Result<Arrow<Record>, DataError> {
        Ok(Arrow::new(self.open_table()?, self.cache_bytes))
    }

    /// Opens the files for reading in order. The option `cache_bytes` has no effect.
    ///
    /// # Errors
    /// As for [`Arrow::open`].
    pub fn open_stream(&self) -> Result<ArrowStream<Record>, DataError> {
        Ok(ArrowStream::new(self.open_table()?))
    }

    /// Lists the files.
    pub(crate) fn files(&self) -> Result<Files, DataError> {
        saved::data_files(&self.source)?.files(&EXTENSIONS)
    }

    /// Selects columns.
    #[cfg(feature = "formats")]
    pub(crate) fn select(&mut self, names: Vec<String>) {
        self.fields = std::mem::take(&mut self.fields).select(names);
    }

    fn open_table(&self) -> Result<Table, DataError> {
        Table::open(self.files()?, self.fields.clone(), self.max_batch_bytes)
    }
}
