//! Options of Parquet files.

use std::{
    num::NonZeroUsize,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use super::{EXTENSIONS, Parquet, ParquetStream, dataset::CACHE_BYTES, stream::BLOCK_BYTES, table::Table};
use crate::{
    error::DataError,
    record::{FieldOptions, Record},
    source::{Files, StoreOptions, one_or_many},
};

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
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ParquetOptions {
    /// A file, a folder or a pattern, or a list of them.
    #[serde(deserialize_with = "one_or_many")]
    path: Vec<PathBuf>,
    #[serde(flatten)]
    pub(super) fields: FieldOptions,
    #[serde(default = "cache_bytes")]
    pub(super) cache_bytes: u64,
    #[serde(default = "block_bytes")]
    pub(super) block_bytes: u64,
    #[serde(default)]
    pub(super) shuffle_blocks: Option<NonZeroUsize>,
    #[serde(default)]
    pub(super) store: StoreOptions,
}

fn cache_bytes() -> u64 {
    CACHE_BYTES
}

fn block_bytes() -> u64 {
    BLOCK_BYTES
}

impl ParquetOptions {
    /// Returns the default options for the files that `pattern` stands for, see [`Parquet::open`].
    pub fn new(pattern: impl AsRef<Path>) -> Self {
        Self::new_all([pattern])
    }

    /// Returns the default options for the files that `patterns` stand for, in this order.
    pub fn new_all<P: AsRef<Path>>(patterns: impl IntoIterator<Item = P>) -> Self {
        Self {
            path: patterns.into_iter().map(|pattern| pattern.as_ref().to_owned()).collect(),
            fields: FieldOptions::new(),
            cache_bytes: CACHE_BYTES,
            block_bytes: BLOCK_BYTES,
            shuffle_blocks: None,
            store: StoreOptions::default(),
        }
    }

    /// Sets which columns are read, and the dtypes of their numbers.
    #[must_use]
    pub fn fields(self, fields: FieldOptions) -> Self {
        Self { fields, ..self }
    }

    /// Sets the max number of bytes that each worker keeps for random access, see [`Parquet::cache_bytes`].
    #[must_use]
    pub fn cache_bytes(self, bytes: u64) -> Self {
        Self { cache_bytes: bytes, ..self }
    }

    /// Sets the max number of bytes that each shard keeps for shuffling, see [`ParquetStream::block_bytes`].
    #[must_use]
    pub fn block_bytes(self, bytes: u64) -> Self {
        Self { block_bytes: bytes, ..self }
    }

    /// Shuffles the rows of a stream, see [`ParquetStream::shuffle_blocks`].
    #[must_use]
    pub fn shuffle_blocks(self, open: NonZeroUsize) -> Self {
        Self { shuffle_blocks: Some(open), ..self }
    }

    /// Sets how files on servers are read.
    #[must_use]
    pub fn store(self, store: StoreOptions) -> Self {
        Self { store, ..self }
    }

    /// Opens the files for random access.
    ///
    /// # Errors
    /// As for [`Parquet::open`].
    pub fn open(&self) -> Result<Parquet<Record>, DataError> {
        Parquet::from_options(self)
    }

    /// Opens the files for reading in order, or shuffled if [`shuffle_blocks`](Self::shuffle_blocks) is set.
    ///
    /// # Errors
    /// As for [`ParquetStream::from_options`].
    pub fn open_stream(&self) -> Result<ParquetStream<Record>, DataError> {
        ParquetStream::from_options(self)
    }

    pub(super) fn open_table(&self) -> Result<Table, DataError> {
        // By default the options are those of the scope, see `StoreOptions::scope`.
        let files = if self.store == StoreOptions::default() {
            Files::list(&self.path, &EXTENSIONS)?
        } else {
            Files::list_with(&self.path, &EXTENSIONS, &self.store)?
        };
        Table::open(files, self.fields.clone())
    }

    #[cfg(feature = "formats")]
    pub(crate) fn path_mut(&mut self) -> &mut [PathBuf] {
        &mut self.path
    }
}
