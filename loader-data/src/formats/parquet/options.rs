//! Options of Parquet files.

use std::num::NonZeroUsize;

use super::{EXTENSIONS, Parquet, ParquetStream, dataset::CACHE_BYTES, stream::BLOCK_BYTES, table::Table};
use crate::{
    error::DataError,
    options::format_options,
    record::{FieldOptions, Record},
};

format_options! {
    /// What to read from Parquet files, for example from a config file.
    ///
    /// # Examples
    /// ```
    /// use loader_data::ParquetOptions;
    ///
    /// let text = r#"{"path": "data/train-*.parquet", "fields": ["text", "label"], "shuffle_blocks": 4}"#;
    /// let options: ParquetOptions = serde_json::from_str(text)?;
    /// let error = options.open_stream().unwrap_err();
    /// assert_eq!(error.to_string(), "`data/train-*.parquet`: no such file; check the path");
    /// # anyhow::Ok(())
    /// ```
    pub struct ParquetOptions {
        /// Sets which columns are read, and the dtypes of their numbers.
        #[serde(flatten)]
        fields: FieldOptions = FieldOptions::new(),
        /// Sets the maximum number of bytes that each worker keeps for random access, see
        /// [`Parquet::cache_bytes`].
        #[serde(with = "loader_core::units::Size")]
        cache_bytes: u64 = CACHE_BYTES,
        /// Sets the maximum number of bytes that each shard keeps for shuffling, see
        /// [`ParquetStream::block_bytes`].
        #[serde(with = "loader_core::units::Size")]
        block_bytes: u64 = BLOCK_BYTES,
        /// Shuffles the rows of a stream, see [`ParquetStream::shuffle_blocks`].
        shuffle_blocks: Option<NonZeroUsize> = None,
    }
}

impl ParquetOptions {
    /// Opens the files for random access. The option `block_bytes` has no effect.
    ///
    /// # Errors
    /// As for [`Parquet::open`]. Also returns an error if `shuffle_blocks` is set: only streams have this option.
    pub fn open(&self) -> Result<Parquet<Record>, DataError> {
        if self.shuffle_blocks.is_some() {
            return Err(self.source.only_for_streams("shuffle_blocks", "parquet-stream"));
        }
        Ok(Parquet::new(self.open_table()?, self.cache_bytes))
    }

    /// Opens the files for reading in order, or shuffled if [`shuffle_blocks`](Self::shuffle_blocks) is set.
    /// The option `cache_bytes` has no effect.
    ///
    /// # Errors
    /// As for [`Parquet::open`] and [`ParquetStream::shuffle_blocks`].
    pub fn open_stream(&self) -> Result<ParquetStream<Record>, DataError> {
        let stream = ParquetStream::new(self.open_table()?).block_bytes(self.block_bytes);
        match self.shuffle_blocks {
            Some(open) => stream.shuffle_blocks(open.get()),
            None => Ok(stream),
        }
    }

    /// Selects columns.
    #[cfg(feature = "formats")]
    pub(crate) fn select(&mut self, names: Vec<String>) {
        self.fields = std::mem::take(&mut self.fields).select(names);
    }

    fn open_table(&self) -> Result<Table, DataError> {
        Table::open(self.source.files(&EXTENSIONS)?, self.fields.clone())
    }
}
