//! Options of tar shards.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

#[cfg(feature = "image-folder")]
use super::images::Images;
use super::{MAX_SAMPLE_BYTES, TarShards, decoding::Decoding};
use crate::{
    error::DataError,
    index::IndexPlace,
    record::{FieldOptions, Record},
    source::{StoreOptions, one_or_many},
};

/// What to read as tar shards, for example from a config file. The options are those of [`TarShards`].
///
/// # Examples
/// ```
/// use loader_data::TarOptions;
///
/// let text = r#"{
///     "path": "train-{000..002}.tar",
///     "rename": {"image": ["jpg", "png"]},
///     "images": {"transform": [{"resize": {"size": 256}}], "dtype": "uint8"},
///     "fields": ["image", "cls"],
///     "shuffle_files": true
/// }"#;
/// let options: TarOptions = serde_json::from_str(text)?;
/// assert_eq!(options.open().unwrap_err().to_string(), "`train-000.tar`: no such file; check the path");
/// # anyhow::Ok(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TarOptions {
    /// A file, a folder or a pattern, or a list of them.
    #[serde(deserialize_with = "one_or_many")]
    path: Vec<PathBuf>,
    #[serde(flatten)]
    fields: FieldOptions,
    #[serde(default)]
    rename: BTreeMap<String, Vec<String>>,
    #[serde(default = "default_decode")]
    decode: bool,
    #[cfg(feature = "image-folder")]
    #[serde(default)]
    images: Option<Images>,
    #[serde(default)]
    pub(super) index: IndexPlace,
    #[serde(default)]
    pub(super) shuffle_files: bool,
    #[serde(default)]
    pub(super) allow_missing_end: bool,
    #[serde(default)]
    pub(super) store: StoreOptions,
    #[serde(default = "default_max_sample_bytes")]
    pub(super) max_sample_bytes: u64,
}

fn default_decode() -> bool {
    true
}

fn default_max_sample_bytes() -> u64 {
    MAX_SAMPLE_BYTES
}

impl TarOptions {
    /// Returns the default options for the files that `pattern` stands for, see [`TarShards::open`].
    pub fn new(pattern: impl AsRef<Path>) -> Self {
        Self::new_all([pattern])
    }

    /// Returns the default options for the files that `patterns` stand for, in this order.
    pub fn new_all<P: AsRef<Path>>(patterns: impl IntoIterator<Item = P>) -> Self {
        Self {
            path: patterns.into_iter().map(|pattern| pattern.as_ref().to_owned()).collect(),
            fields: FieldOptions::new(),
            rename: BTreeMap::new(),
            decode: default_decode(),
            #[cfg(feature = "image-folder")]
            images: None,
            index: IndexPlace::default(),
            shuffle_files: false,
            allow_missing_end: false,
            store: StoreOptions::default(),
            max_sample_bytes: MAX_SAMPLE_BYTES,
        }
    }

    /// Sets how files on servers are read.
    #[must_use]
    pub fn store(mut self, store: StoreOptions) -> Self {
        self.store = store;
        self
    }

    /// Opens the files.
    ///
    /// # Errors
    /// As for [`TarShards::open`].
    pub fn open(&self) -> Result<TarShards<Record>, DataError> {
        TarShards::from_options(self)
    }

    pub(super) fn patterns(&self) -> &[PathBuf] {
        &self.path
    }

    #[cfg(feature = "formats")]
    pub(crate) fn path_mut(&mut self) -> &mut [PathBuf] {
        &mut self.path
    }

    pub(super) fn decoding(&self) -> Decoding {
        Decoding {
            fields: self.fields.clone(),
            renamed: self.rename.clone().into_iter().collect(),
            by_extension: self.decode,
            #[cfg(feature = "image-folder")]
            images: self.images.clone(),
        }
    }
}
