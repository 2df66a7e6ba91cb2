//! Datasets of records that are kept in files, as a config describes them.

use std::path::PathBuf;

use loader_core::{Cached, Dataset, SampleContext};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use super::super::records::{RecordConfig, RecordDataset, Records, boxed_dataset};
use crate::{
    error::{DataError, DataProblem, Result},
    options::SourceOptions,
    record::Record,
};

/// Which dataset is kept in files ([`Dataset::cached`]), and where, for example from a config file: `folder`,
/// `version` (default: empty), `max_bytes` (default: no maximum), and `dataset`, a [`RecordConfig`] of a
/// map-style dataset.
///
/// # Examples
/// ```
/// use loader_data::RecordConfig;
///
/// let text = r#"{"kind": "cached", "folder": "/fast/captions", "dataset": {
///     "kind": "image-table", "path": "captions/train", "images": {"image": {"transform": "eval"}}
/// }}"#;
/// let config: RecordConfig = serde_json::from_str(text)?;
/// assert_eq!(config.kind(), "cached");
/// # anyhow::Ok(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct CachedOptions {
    folder: PathBuf,
    #[serde(default)]
    version: String,
    #[serde(default, with = "loader_core::units::Size")]
    max_bytes: Option<u64>,
    #[serde(deserialize_with = "boxed_dataset")]
    dataset: Box<RecordConfig>,
}

impl CachedOptions {
    /// Opens the dataset and the cache. The options of the dataset, without its paths, are part of the
    /// version.
    ///
    /// # Errors
    /// Returns the error of the dataset, and an error if it is a stream, or if the cache is of another
    /// dataset.
    pub fn open(&self) -> Result<RecordCache> {
        let invalid =
            |option, reason| DataError::new("the cache", DataProblem::InvalidOption { option, reason });
        let Records::Map(records) = self.dataset.open()? else {
            let reason = format!("`{}` is a stream; use a kind with random access", self.dataset.kind());
            return Err(invalid("dataset", reason));
        };
        let mut options = self.dataset.clone();
        options.paths_mut().into_iter().for_each(|(_, path)| path.clear());
        let options = serde_json::to_vec(&options).map_err(|error| invalid("dataset", error.to_string()))?;
        let version = format!("{}, options {:016x}", self.version, xxh3_64(&options));
        let cached = records.cached(&self.folder, version.trim_start_matches(", "));
        let cached = cached.map_err(|error| invalid("folder", error.to_string()))?;
        Ok(RecordCache(Box::new(cached.max_bytes(self.max_bytes.unwrap_or(u64::MAX)))))
    }

    pub(crate) fn files(&self) -> Result<Vec<(PathBuf, u64)>> {
        self.dataset.files()
    }

    pub(crate) fn paths_mut(&mut self) -> impl Iterator<Item = (String, &mut PathBuf)> {
        let inside = self.dataset.paths_mut().into_iter().map(|(key, path)| (format!("dataset.{key}"), path));
        std::iter::once(("folder".to_owned(), &mut self.folder)).chain(inside)
    }

    /// Returns nothing: the dataset decodes its own images.
    pub(crate) fn take_decoded(&self) -> Option<SourceOptions> {
        None
    }

    /// Returns false: a cache belongs to all files of the dataset.
    pub(crate) fn set_files(&self, _files: Vec<PathBuf>) -> bool {
        false
    }
}

/// The records of a dataset that are kept in files. Opened by [`CachedOptions::open`].
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RecordCache(Box<Cached<RecordDataset>>);

impl Dataset for RecordCache {
    type Sample = Record;

    fn len(&self) -> usize {
        self.0.len()
    }

    fn get(&self, index: usize, cx: &mut SampleContext) -> anyhow::Result<Record> {
        self.0.get(index, cx)
    }

    fn get_many(&self, indices: &[usize], cx: &mut SampleContext) -> anyhow::Result<Vec<Record>> {
        self.0.get_many(indices, cx)
    }

    fn setup(&mut self, cx: &mut SampleContext) -> anyhow::Result<()> {
        self.0.setup(cx)
    }

    fn fingerprint(&self) -> String {
        self.0.fingerprint()
    }
}
