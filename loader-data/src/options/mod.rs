//! The options that every format has, and the macro that makes the options of a format.

#[cfg(feature = "dataset-card")]
pub(crate) mod dataset_card;
pub(crate) mod keys;

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

#[cfg(feature = "dataset-card")]
use self::dataset_card::{FormatOptions, Selection};
#[cfg(feature = "audio")]
use crate::decoders::AudioTransform;
#[cfg(feature = "image-folder")]
use crate::decoders::ImageOptions;
#[cfg(feature = "formats")]
use crate::decoders::{FieldDecoder, TokenizerOptions};
use crate::{
    error::{DataError, DataProblem, Result},
    source::{Files, Location, StoreOptions, one_or_many},
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
    #[cfg(feature = "image-folder")]
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) images: BTreeMap<String, ImageOptions>,
    /// The fields with encoded audio.
    #[cfg(feature = "audio")]
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
    pub(crate) const KEYS: &[&str] = &[
        "path",
        "config",
        "split",
        "store",
        #[cfg(feature = "image-folder")]
        "images",
        #[cfg(feature = "audio")]
        "audio",
        #[cfg(feature = "formats")]
        "tokenizers",
        #[cfg(feature = "formats")]
        "drop_nulls",
    ];

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
    #[cfg(any(feature = "arrow", feature = "dataset-card", feature = "formats"))]
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
        #[cfg(feature = "dataset-card")]
        if let Some((path, options)) = self.of_cards(extensions)? {
            options.iter().try_for_each(FormatOptions::none)?;
            return Ok(Cow::Owned(self.narrowed(path)));
        }
        #[cfg(not(feature = "dataset-card"))]
        let _ = extensions;
        self.refuse_card()?;
        Ok(Cow::Borrowed(self))
    }

    /// Returns the files that the headers of the folders name, and what each header says about their format; `None` if
    /// neither a configuration nor a split is set.
    #[cfg(feature = "dataset-card")]
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

    /// Returns an error if a configuration or a split is set, which a program without `dataset-card` cannot read.
    pub(crate) fn refuse_card(&self) -> Result<()> {
        if self.config.is_some() || self.split.is_some() {
            let reason = "the options `config` and `split` need the feature `dataset-card` of loader-data";
            return Err(self.error(DataProblem::Unsupported(reason.to_owned())));
        }
        Ok(())
    }

    /// Lists the files. A folder stands for the files in it whose names end with one of `extensions`.
    ///
    /// # Errors
    /// As for [`Files::list`]. Also returns an error if there are no patterns.
    pub(crate) fn files(&self, extensions: &[&str]) -> Result<Files> {
        if self.path.is_empty() {
            let reason = "give at least one file".to_owned();
            return Err(self.error(DataProblem::InvalidOption { option: "path", reason }));
        }
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
    #[cfg(any(feature = "csv", feature = "json-lines"))]
    pub(crate) fn stream_files(&self, extensions: &[&str]) -> Result<Files> {
        let extensions = crate::source::Compression::extensions(extensions);
        self.files(&extensions.iter().map(String::as_str).collect::<Vec<_>>())
    }

    /// Returns the paths with their keys.
    #[cfg(feature = "formats")]
    pub(crate) fn paths_mut(&mut self) -> impl Iterator<Item = (String, &mut PathBuf)> {
        let files = self.path.iter_mut().map(|path| ("path".to_owned(), path));
        let tokenizers = self.tokenizers.iter_mut();
        let tokenizers =
            tokenizers.map(|(field, options)| (format!("tokenizers.{field}.path"), &mut options.path));
        files.chain(self.store.iter_mut().filter_map(StoreOptions::path_mut)).chain(tokenizers)
    }

    /// Returns the error of an option that is set for random access, and that only streams of the kind `stream` have.
    #[cfg(any(feature = "parquet", feature = "tar"))]
    pub(crate) fn only_for_streams(&self, option: &'static str, stream: &str) -> DataError {
        let reason = format!(
            "only a stream has this option (kind `{stream}`); for random access, remove it and set `shuffle` of the \
             loader, or of the part of a mix"
        );
        self.error(DataProblem::InvalidOption { option, reason })
    }

    /// Returns an error if `drop_nulls` is set for random access.
    #[cfg(feature = "formats")]
    pub(crate) fn refuse_drop_nulls(&self) -> Result<()> {
        if self.drop_nulls.is_empty() {
            return Ok(());
        }
        let reason = "only a stream can leave out records: set a kind that is read in order, such as `parquet-stream`; for \
                      random access, set `fill`, or write the files without these rows"
            .to_owned();
        Err(self.error(DataProblem::InvalidOption { option: "drop_nulls", reason }))
    }

    /// Returns an error if `drop_nulls` has a name that is not in `names`, the fields of all records.
    #[cfg(feature = "formats")]
    pub(crate) fn check_drop_nulls(&self, names: &[String]) -> Result<()> {
        let Some(unknown) = self.drop_nulls.iter().find(|name| !names.contains(name)) else { return Ok(()) };
        let missing = DataProblem::missing_field(unknown, names.iter().map(String::as_str));
        let reason = format!("{missing}; use one of these, or remove the option");
        Err(self.error(DataProblem::InvalidOption { option: "drop_nulls", reason }))
    }

    /// Returns an error about the options. It names the first file.
    pub(crate) fn error(&self, problem: DataProblem) -> DataError {
        match self.path.first() {
            Some(path) => DataError::new(Location::new(path), problem),
            None => DataError::new("the options", problem),
        }
    }

    /// Returns the name of an option that needs `RecordConfig`; `None` if none is set.
    fn decoded_by(&self) -> Option<&'static str> {
        #[cfg(feature = "image-folder")]
        if !self.images.is_empty() {
            return Some("images");
        }
        #[cfg(feature = "audio")]
        if !self.audio.is_empty() {
            return Some("audio");
        }
        #[cfg(feature = "formats")]
        if !self.tokenizers.is_empty() {
            return Some("tokenizers");
        }
        #[cfg(feature = "formats")]
        if !self.drop_nulls.is_empty() {
            return Some("drop_nulls");
        }
        None
    }

    /// Empties the options that need `RecordConfig`. Returns the options as they were.
    #[cfg(feature = "formats")]
    pub(crate) fn take_decoded(&mut self) -> Self {
        let others = Self {
            path: self.path.clone(),
            given: self.given.clone(),
            config: self.config.clone(),
            split: self.split.clone(),
            store: self.store.clone(),
            ..Self::default()
        };
        std::mem::replace(self, others)
    }

    /// Returns the decoders that the options `images`, `audio` and `tokenizers` describe, by field. Reads the files of
    /// the tokenizers.
    #[cfg(feature = "formats")]
    pub(crate) fn decoders(&self) -> Result<Vec<(String, FieldDecoder)>> {
        let failed = |option, name: &str, reason: &dyn std::fmt::Display| {
            self.error(DataProblem::InvalidOption { option, reason: format!("`{name}`: {reason}") })
        };
        let mut decoders: Vec<(String, FieldDecoder)> = Vec::new();
        let mut fields = BTreeSet::new();
        let mut add = |option, name: &str| {
            if fields.insert(name.to_owned()) {
                Ok(())
            } else {
                Err(failed(option, name, &"another option decodes this field too; remove one of the two"))
            }
        };
        for (name, options) in &self.images {
            let column = options.column().map_err(|error| failed("images", name, &error))?;
            add("images", name)?;
            column.mask_fields().iter().try_for_each(|mask| add("images", mask))?;
            decoders.push((name.clone(), column.into()));
        }
        for (name, transform) in &self.audio {
            transform.validate().map_err(|problem| failed("audio", name, &problem))?;
            add("audio", name)?;
            decoders.push((name.clone(), transform.clone().into()));
        }
        for (name, options) in &self.tokenizers {
            let decoder = options.decoder(self.store.as_ref());
            let decoder = decoder.map_err(|error| failed("tokenizers", name, &error))?;
            add("tokenizers", name)?;
            decoders.push((name.clone(), decoder));
        }
        Ok(decoders)
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
                $(#[cfg($($cfg:tt)*)])?
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
                $(#[cfg($($cfg)*)])?
                $(#[serde($($serde)*)])?
                pub(super) $option: $type$(<$($argument),+>)?,
            )*
            #[serde(flatten, skip_serializing)]
            #[cfg_attr(feature = "schema", schemars(skip))]
            no_other_keys: crate::options::keys::NoOtherKeys<Self>,
        }

        impl crate::options::keys::Keys for $name {
            fn keys() -> Vec<&'static str> {
                let own: &[&str] = &[$($(#[cfg($($cfg)*)])? stringify!($option),)*];
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
                        $(#[cfg($($cfg)*)])?
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

            #[cfg(feature = "formats")]
            pub(crate) fn paths_mut(&mut self) -> impl Iterator<Item = (String, &mut std::path::PathBuf)> {
                self.source.paths_mut()
            }

            #[cfg(feature = "formats")]
            pub(crate) fn take_decoded(&mut self) -> Option<crate::options::SourceOptions> {
                Some(self.source.take_decoded())
            }

            #[cfg(feature = "formats")]
            pub(crate) fn set_files(&mut self, files: Vec<std::path::PathBuf>) -> bool {
                self.source = self.source.narrowed(files);
                true
            }

            $(
                crate::options::setter! {
                    $(#[doc = $doc])*
                    $(#[cfg($($cfg)*)])?
                    $option: $type$(<$($argument),+>)?
                }
            )*
        }
    };
}

/// Writes the method that sets one option. If the option may be absent, the method takes what is in the
/// `Some`.
macro_rules! setter {
    ($(#[cfg($($cfg:tt)*)])? $option:ident: $type:ty) => {};
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
