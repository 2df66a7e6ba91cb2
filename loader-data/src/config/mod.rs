//! Datasets by name, as a config describes them: `dataset` is the section `[dataset]`, `records` has the datasets of
//! records of any format, `nested` those of them that have other datasets inside, and `card_files` those that the header
//! of a README.md names.

#[cfg(feature = "formats")]
mod card_files;
#[cfg(feature = "image-folder")]
mod dataset;
#[cfg(feature = "formats")]
mod nested;
#[cfg(feature = "formats")]
mod records;
#[cfg(feature = "schema")]
mod schema;

#[cfg(feature = "formats")]
#[doc(hidden)]
pub use card_files::CardFiles;
#[cfg(feature = "image-folder")]
pub use dataset::{DatasetConfig, DatasetError, KindName, KindOnly, OpenDataset};
#[cfg(feature = "formats")]
pub use nested::{CachedOptions, MixOptions, PackedOptions, RecordCache, RecordMix, RecordWindows};
#[cfg(feature = "formats")]
pub use records::{
    FormatDataset, FormatStream, ListedFiles, RecordConfig, RecordDataset, RecordSnapshot, RecordStream,
    Records,
};
#[cfg(feature = "schema")]
pub use schema::{kind_schema, schema_generator};
