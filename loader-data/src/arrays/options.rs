//! Options of arrays.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use super::{Arrays, formats::EXTENSIONS};
use crate::{
    error::{DataError, DataProblem},
    record::{FieldOptions, Record},
    source::{Files, StoreOptions, one_or_many},
};

/// What to read from files of arrays, for example from a config file.
///
/// # Examples
/// ```
/// use loader_data::ArraysOptions;
///
/// let text = r#"{"files": {"image": "train-images-idx3-ubyte.gz", "label": "train-labels-idx1-ubyte.gz"}}"#;
/// let options: ArraysOptions = serde_json::from_str(text)?;
/// let error = options.open().unwrap_err();
/// assert_eq!(error.to_string(), "`train-images-idx3-ubyte.gz`: no such file; check the path");
/// # anyhow::Ok(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ArraysOptions {
    #[serde(deserialize_with = "one_or_many")]
    path: Vec<PathBuf>,
    files: BTreeMap<String, Patterns>,
    format: Option<ArrayFormat>,
    #[serde(flatten)]
    pub(super) fields: FieldOptions,
    store: StoreOptions,
}

/// The files of one field.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
struct Patterns(#[serde(deserialize_with = "one_or_many")] Vec<PathBuf>);

/// A format that cannot be told from the content of the files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ArrayFormat {
    /// The binary version of CIFAR-10: fields `label` and `image`, of type `u8`. An image has the shape
    /// `[3, 32, 32]`.
    #[serde(rename = "cifar-10")]
    Cifar10,
    /// The binary version of CIFAR-100: fields `coarse_label`, `fine_label` and `image`, of type `u8`. An image has
    /// the shape `[3, 32, 32]`.
    #[serde(rename = "cifar-100")]
    Cifar100,
}

impl ArraysOptions {
    /// Returns the options for the files that `pattern` stands for, see [`Arrays::open`].
    pub fn new(pattern: impl AsRef<Path>) -> Self {
        Self::default().path(pattern)
    }

    /// Adds the files that `pattern` stands for. Their rows follow those of the files before.
    #[must_use]
    pub fn path(mut self, pattern: impl AsRef<Path>) -> Self {
        self.path.push(pattern.as_ref().to_owned());
        self
    }

    /// Adds a field whose array is in files of its own (`.npy` or IDX, one array in each), see
    /// [`Arrays::open_fields`].
    #[must_use]
    pub fn field(mut self, name: impl Into<String>, pattern: impl AsRef<Path>) -> Self {
        self.files.entry(name.into()).or_default().0.push(pattern.as_ref().to_owned());
        self
    }

    /// Sets the format of files that do not tell it.
    #[must_use]
    pub fn format(self, format: ArrayFormat) -> Self {
        Self { format: Some(format), ..self }
    }

    /// Sets which fields a row has, and the dtypes of their numbers. The arrays of other fields may have other
    /// lengths, and types that tensors do not have.
    #[must_use]
    pub fn fields(self, fields: FieldOptions) -> Self {
        Self { fields, ..self }
    }

    /// Sets how files on servers are read.
    #[must_use]
    pub fn store(self, store: StoreOptions) -> Self {
        Self { store, ..self }
    }

    /// Opens the files.
    ///
    /// # Errors
    /// As for [`Arrays::open`].
    pub fn open(&self) -> Result<Arrays<Record>, DataError> {
        Arrays::from_options(self)
    }

    /// Lists the files: first those with all fields, then those of single fields with the name of the field.
    pub(super) fn sources(&self) -> Result<Vec<Source<'_>>, DataError> {
        let list = |patterns: &[PathBuf]| {
            // By default the options are those of the scope, see `StoreOptions::scope`.
            if self.store == StoreOptions::default() {
                Files::list(patterns, &EXTENSIONS)
            } else {
                Files::list_with(patterns, &EXTENSIONS, &self.store)
            }
        };
        let mut sources = Vec::new();
        if !self.path.is_empty() {
            sources.push(Source { files: list(&self.path)?, format: self.format, field: None });
        }
        for (name, Patterns(patterns)) in &self.files {
            sources.push(Source { files: list(patterns)?, format: None, field: Some(name) });
        }
        if sources.is_empty() {
            let reason = "give at least one file, or `files` with the files of each field".to_owned();
            return Err(DataError::new("arrays", DataProblem::InvalidOption { option: "path", reason }));
        }
        Ok(sources)
    }

    #[cfg(feature = "formats")]
    pub(crate) fn path_mut(&mut self) -> impl Iterator<Item = &mut PathBuf> {
        self.path.iter_mut().chain(self.files.values_mut().flat_map(|Patterns(patterns)| patterns))
    }
}

/// Files whose rows follow each other.
pub(super) struct Source<'a> {
    pub(super) files: Files,
    pub(super) format: Option<ArrayFormat>,
    /// Name of the only field, instead of the names in the files.
    pub(super) field: Option<&'a str>,
}
