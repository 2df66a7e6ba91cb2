//! The options that every format has, and the macro that makes the options of a format.

pub(crate) mod dataset_card;
#[cfg(feature = "formats")]
mod decoded;
pub(crate) mod keys;

use std::{
    borrow::Cow,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use self::dataset_card::{FormatOptions, Selection};
use crate::{
    error::{DataError, DataProblem, Result},
    source::{Files, Location, StoreOptions, one_or_many},
};
#[cfg(feature = "formats")]
use {
    crate::decoders::{AudioTransform, ImageOptions, TokenizerOptions},
    std::collections::BTreeMap,
};

/// The options that every format has: which files are read, and how.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct SourceOptions {
    /// A file, a folder or a pattern, or a list of them.
    #[serde(default, deserialize_with = "one_or_many")]
    #[cfg_attr(feature = "schema", schemars(with = "crate::source::OneOrMany"))]
    pub(crate) path: Vec<PathBuf>,
    /// The paths that were given, if `path` has some of their files. The folders of partitions that they do not name
    /// are columns.
    #[serde(skip)]
    given: Vec<PathBuf>,
    /// A configuration in the header of the folder's README.md.
    #[serde(default)]
    pub(crate) config: Option<String>,
    /// A split in the header of the folder's README.md.
    #[serde(default)]
    pub(crate) split: Option<String>,
    /// `None` for the options of the scope, see [`StoreOptions::scope`].
    #[serde(default)]
    pub(crate) store: Option<StoreOptions>,
    /// The fields with encoded images. Only `RecordConfig` decodes these fields and those of `audio`.
    #[cfg(feature = "formats")]
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) images: BTreeMap<String, ImageOptions>,
    /// The fields with encoded audio.
    #[cfg(feature = "formats")]
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) audio: BTreeMap<String, AudioTransform>,
    /// The fields with text that becomes tokens.
    #[cfg(feature = "formats")]
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) tokenizers: BTreeMap<String, TokenizerOptions>,
    /// Fields: a stream leaves out the records in which one of them is null.
    #[cfg(feature = "formats")]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) drop_nulls: Vec<String>,
}

impl SourceOptions {
    /// Names of the keys.
    pub(crate) const KEYS: &[&str] = if cfg!(feature = "formats") {
        &["path", "config", "split", "store", "images", "audio", "tokenizers", "drop_nulls"]
    } else {
        &["path", "config", "split", "store"]
    };

    pub(crate) fn new<P: AsRef<Path>>(patterns: impl IntoIterator<Item = P>) -> Self {
        Self {
            path: patterns.into_iter().map(|pattern| pattern.as_ref().to_owned()).collect(),
            ..Self::default()
        }
    }

    /// Returns the options for the files that `paths` name.
    pub(crate) fn renamed(&self, paths: impl IntoIterator<Item = PathBuf>) -> Self {
        let path = paths.into_iter().collect();
        Self { path, given: Vec::new(), config: None, split: None, ..self.clone() }
    }

    /// Returns the options for `files`, for which the paths stand.
    pub(crate) fn narrowed(&self, files: impl IntoIterator<Item = PathBuf>) -> Self {
        let given = if self.given.is_empty() { &self.path } else { &self.given };
        Self { given: given.clone(), ..self.renamed(files) }
    }

    /// Returns the options with the files of the configuration and the split in place of the folders that have them. A
    /// wildcard stands for the files whose names end with one of `extensions`.
    ///
    /// # Errors
    /// Returns an error if a path is no folder with a README.md whose header names these files, or if the header sets
    /// options of their format.
    pub(crate) fn resolved(&self, extensions: &[&str]) -> Result<Cow<'_, Self>> {
        if let Some((path, options)) = self.of_cards(extensions)? {
            options.iter().try_for_each(FormatOptions::none)?;
            return Ok(Cow::Owned(self.narrowed(path)));
        }
        Ok(Cow::Borrowed(self))
    }

    /// Returns the files that the headers of the folders name, and what each header says about their format; `None` if
    /// neither a configuration nor a split is set.
    pub(crate) fn of_cards(&self, extensions: &[&str]) -> Result<Option<(Vec<PathBuf>, Vec<FormatOptions>)>> {
        if self.config.is_none() && self.split.is_none() {
            return Ok(None);
        }
        let store = self.store.clone().unwrap_or_else(StoreOptions::current);
        let wanted = Selection { config: self.config.as_deref(), split: self.split.as_deref() };
        let (mut path, mut options) = (Vec::new(), Vec::new());
        for folder in &self.path {
            let (files, of_format) = wanted.files(&Location::new(folder), extensions, &store)?;
            path.extend(files);
            options.push(of_format);
        }
        Ok(Some((path, options)))
    }

    /// Lists the files. A folder stands for the files in it whose names end with one of `extensions`.
    ///
    /// # Errors
    /// Returns the errors of [`Files::list_with`], and an error if there are no patterns.
    pub(crate) fn files(&self, extensions: &[&str]) -> Result<Files> {
        if self.path.is_empty() {
            let reason = "give at least one file".to_owned();
            return Err(self.error(DataProblem::InvalidOption { option: "path", reason }));
        }
        #[cfg(feature = "formats")]
        if let Some(option) = self.decoded_by() {
            let reason =
                "only a `RecordConfig` has this option; in a program, use `DecodedRecords`".to_owned();
            return Err(self.error(DataProblem::InvalidOption { option, reason }));
        }
        let Self { path, given, .. } = &*self.resolved(extensions)?;
        let given = if given.is_empty() { path } else { given };
        let store = self.store.clone().unwrap_or_else(StoreOptions::current);
        Files::list_given(path, given, extensions, &store)
    }

    /// Lists the files as [`files`](Self::files) does. Of a folder, also takes files with the extension of a
    /// compression after one of `extensions`.
    pub(crate) fn stream_files(&self, extensions: &[&str]) -> Result<Files> {
        let extensions = crate::source::Compression::extensions(extensions);
        self.files(&extensions.iter().map(String::as_str).collect::<Vec<_>>())
    }

    /// Returns the error of an option that is set for random access, and that only streams of the kind `stream` have.
    pub(crate) fn only_for_streams(&self, option: &'static str, stream: &str) -> DataError {
        let reason = format!(
            "only a stream has this option (kind `{stream}`); for random access, remove it and set `shuffle` of the \
             loader, or of the part of a mix"
        );
        self.error(DataProblem::InvalidOption { option, reason })
    }

    /// Returns an error about the options. It names the first file.
    pub(crate) fn error(&self, problem: DataProblem) -> DataError {
        match self.path.first() {
            Some(path) => DataError::new(Location::new(path), problem),
            None => DataError::new("the options", problem),
        }
    }
}

/// Declares the options of a format: a struct with [`SourceOptions`] and the listed options, each with its
/// default. The struct can be part of a config, where every option but `path` has a default. It has a method
/// for each option that has documentation.
///
/// A format adds the methods that open its datasets, and reads the options as fields.
///
/// Alternatives considered: a generic `Options<F>` with a struct of each format flattened into it, whose
/// documentation would not show the options of a format as methods; and public fields, which cannot get a
/// `path` that is required and other fields that are not without a constructor.
macro_rules! format_options {
    (
        $(#[$about:meta])*
        pub struct $name:ident {
            $(
                $(#[doc = $doc:literal])*
                $(#[serde($($serde:tt)*)])?
                $option:ident: $type:ident$(<$($argument:ty),+>)? = $default:expr,
            )*
        }
    ) => {
        $(#[$about])*
        #[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
        #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
        #[serde(default)]
        pub struct $name {
            #[serde(flatten)]
            pub(crate) source: crate::options::SourceOptions,
            $(
                $(#[doc = $doc])*
                $(#[serde($($serde)*)])?
                pub(super) $option: $type$(<$($argument),+>)?,
            )*
            #[serde(flatten, skip_serializing)]
            #[cfg_attr(feature = "schema", schemars(skip))]
            no_other_keys: crate::options::keys::NoOtherKeys<Self>,
        }

        impl crate::options::keys::Keys for $name {
            fn keys() -> Vec<&'static str> {
                let own: &[&str] = &[$(stringify!($option),)*];
                let options = [crate::options::SourceOptions::KEYS, own].concat();
                // `fields` stands for the flattened `FieldOptions`, too.
                if own.contains(&"fields") {
                    [&options, crate::record::FieldOptions::OTHER_KEYS].concat()
                } else {
                    options
                }
            }
        }

        impl Default for $name {
            /// Returns the default options, without files.
            fn default() -> Self {
                Self {
                    source: crate::options::SourceOptions::default(),
                    $(
                        $option: $default,
                    )*
                    no_other_keys: Default::default(),
                }
            }
        }

        impl $name {
            /// Returns the default options for the files that `pattern` stands for: a file, a folder, or a
            /// name with braces and wildcards.
            pub fn new(pattern: impl AsRef<std::path::Path>) -> Self {
                Self::new_all([pattern])
            }

            /// Returns the default options for the files that `patterns` stand for, in this order.
            pub fn new_all<P: AsRef<std::path::Path>>(patterns: impl IntoIterator<Item = P>) -> Self {
                Self { source: crate::options::SourceOptions::new(patterns), ..Self::default() }
            }

            /// Sets how files are read from servers. The default are the options of the
            /// [scope](crate::StoreOptions::scope).
            #[must_use]
            pub fn store(mut self, store: crate::source::StoreOptions) -> Self {
                self.source.store = Some(store);
                self
            }

            /// Reads the configuration `name` in the header of the folder's README.md. If only `split` is set, the
            /// default configuration is read. If neither is set, README.md is not read.
            #[must_use]
            pub fn config(mut self, name: impl Into<String>) -> Self {
                self.source.config = Some(name.into());
                self
            }

            /// Reads the split `name` of the configuration. If only `config` is set, the configuration must have one
            /// split.
            #[must_use]
            pub fn split(mut self, name: impl Into<String>) -> Self {
                self.source.split = Some(name.into());
                self
            }

            $(
                crate::options::setter! {
                    $(#[doc = $doc])*
                    $option: $type$(<$($argument),+>)?
                }
            )*
        }

        #[cfg(feature = "formats")]
        impl $name {
            pub(crate) fn paths_mut(&mut self) -> impl Iterator<Item = (String, &mut std::path::PathBuf)> {
                self.source.paths_mut()
            }

            pub(crate) fn take_decoded(&mut self) -> Option<crate::options::SourceOptions> {
                Some(self.source.take_decoded())
            }

            pub(crate) fn set_files(&mut self, files: Vec<std::path::PathBuf>) -> bool {
                self.source = self.source.narrowed(files);
                true
            }
        }
    };
}

/// Writes the method that sets one option. If the option may be absent, the method takes what is in the
/// `Some`.
macro_rules! setter {
    ($option:ident: $type:ty) => {};
    ($(#[$attribute:meta])+ $option:ident: Option<$type:ty>) => {
        $(#[$attribute])+
        #[must_use]
        pub fn $option(mut self, $option: $type) -> Self {
            self.$option = Some($option);
            self
        }
    };
    ($(#[$attribute:meta])+ $option:ident: $type:ty) => {
        $(#[$attribute])+
        #[must_use]
        pub fn $option(mut self, $option: $type) -> Self {
            self.$option = $option;
            self
        }
    };
}

pub(crate) use {format_options, setter};
