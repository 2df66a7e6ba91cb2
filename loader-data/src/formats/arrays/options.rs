//! Options of arrays.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use super::formats::EXTENSIONS;
use crate::{
    error::DataError,
    options::{
        SourceOptions,
        keys::{Keys, NoOtherKeys},
    },
    record::FieldOptions,
    source::{Files, StoreOptions, one_or_many},
};

/// Maximum number of bytes of compressed arrays in memory, if nothing else is said.
const MAX_UNPACKED_BYTES: u64 = 4 << 30;

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
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct ArraysOptions {
    #[serde(flatten)]
    pub(crate) source: SourceOptions,
    files: BTreeMap<String, Patterns>,
    format: Option<ArrayFormat>,
    #[serde(flatten)]
    pub(super) fields: FieldOptions,
    /// Sets the maximum number of bytes of all selected compressed arrays together, after they are unpacked.
    /// The default is 4 GiB.
    #[serde(with = "loader_core::units::Size")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<loader_core::units::Size>"))]
    max_unpacked_bytes: Option<u64>,
    #[serde(flatten, skip_serializing)]
    #[cfg_attr(feature = "schema", schemars(skip))]
    no_other_keys: NoOtherKeys<Self>,
}

impl Keys for ArraysOptions {
    fn keys() -> Vec<&'static str> {
        [SourceOptions::KEYS, &["files", "format", "fields", "max_unpacked_bytes"], FieldOptions::OTHER_KEYS]
            .concat()
    }
}

/// The files of one field.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(transparent)]
struct Patterns(
    #[serde(deserialize_with = "one_or_many")]
    #[cfg_attr(feature = "schema", schemars(with = "crate::source::OneOrMany"))]
    Vec<PathBuf>,
);

/// A format that cannot be told from the content of the files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum ArrayFormat {
    /// The binary version of CIFAR-10: fields `label` and `image`, of type `u8`. An image has the shape
    /// `[3, 32, 32]`.
    #[serde(rename = "cifar-10")]
    Cifar10,
    /// The binary version of CIFAR-100: fields `coarse_label`, `fine_label` and `image`, of type `u8`. An
    /// image has the shape `[3, 32, 32]`.
    #[serde(rename = "cifar-100")]
    Cifar100,
}

impl ArraysOptions {
    /// Returns the options for the files that `pattern` stands for, see
    /// [`Arrays::open`](crate::Arrays::open).
    pub fn new(pattern: impl AsRef<Path>) -> Self {
        Self::default().path(pattern)
    }

    /// Adds the files that `pattern` stands for. Their rows follow those of the files before.
    #[must_use]
    pub fn path(mut self, pattern: impl AsRef<Path>) -> Self {
        self.source.path.push(pattern.as_ref().to_owned());
        self
    }

    /// Adds a field whose array is in files of its own (`.npy` or IDX, one array in each), see
    /// [`Arrays::open_fields`](crate::Arrays::open_fields).
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

    /// Sets which fields a row has, and the dtypes of their numbers. The arrays of other fields may have
    /// other lengths, and types that tensors do not have.
    #[must_use]
    pub fn fields(self, fields: FieldOptions) -> Self {
        Self { fields, ..self }
    }

    /// Sets the maximum number of bytes of all selected compressed arrays together, after they are unpacked.
    /// The default is 4 GiB.
    #[must_use]
    pub fn max_unpacked_bytes(self, bytes: u64) -> Self {
        Self { max_unpacked_bytes: Some(bytes), ..self }
    }

    pub(super) fn unpacked_limit(&self) -> u64 {
        self.max_unpacked_bytes.unwrap_or(MAX_UNPACKED_BYTES)
    }

    /// Reads the configuration `name` in the header of the folder's README.md. If only `split` is set, the default
    /// configuration is read. If neither is set, README.md is not read.
    #[must_use]
    pub fn config(mut self, name: impl Into<String>) -> Self {
        self.source.config = Some(name.into());
        self
    }

    /// Reads the split `name` of the configuration. If only `config` is set, the configuration must have one split.
    #[must_use]
    pub fn split(mut self, name: impl Into<String>) -> Self {
        self.source.split = Some(name.into());
        self
    }

    /// Sets how files on servers are read.
    #[must_use]
    pub fn store(mut self, store: StoreOptions) -> Self {
        self.source.store = Some(store);
        self
    }

    /// Lists the files: first those with all fields, then those of single fields with the name of the field.
    pub(crate) fn sources(&self) -> Result<Vec<ArraySource<'_>>, DataError> {
        let mut sources = Vec::new();
        let has_folder = self.source.config.is_some() || self.source.split.is_some();
        if !self.source.path.is_empty() || self.files.is_empty() || has_folder {
            let files = self.source.files(&EXTENSIONS)?;
            sources.push(ArraySource { files, format: self.format, field: None });
        }
        for (name, Patterns(path)) in &self.files {
            let source = self.source.renamed(path.iter().cloned());
            sources.push(ArraySource { files: source.files(&EXTENSIONS)?, format: None, field: Some(name) });
        }
        Ok(sources)
    }
}

#[cfg(feature = "formats")]
impl ArraysOptions {
    /// Replaces the files with all fields, unless there are files of single fields.
    pub(crate) fn set_files(&mut self, files: Vec<PathBuf>) -> bool {
        let replaces = self.files.is_empty();
        if replaces {
            self.source = self.source.renamed(files);
        }
        replaces
    }

    pub(crate) fn take_decoded(&mut self) -> Option<SourceOptions> {
        Some(self.source.take_decoded())
    }

    pub(crate) fn paths_mut(&mut self) -> impl Iterator<Item = (String, &mut PathBuf)> {
        let of_fields = self.files.iter_mut().flat_map(|(name, Patterns(paths))| {
            paths.iter_mut().map(move |path| (format!("files.{name}"), path))
        });
        self.source.paths_mut().chain(of_fields)
    }
}

/// Files whose rows follow each other.
pub(crate) struct ArraySource<'a> {
    pub(crate) files: Files,
    pub(super) format: Option<ArrayFormat>,
    /// Name of the only field, instead of the names in the files.
    pub(super) field: Option<&'a str>,
}
