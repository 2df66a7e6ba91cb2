//! Datasets by name, as a config describes them: `dataset` is the section `[dataset]`, `records` has the datasets of
//! records of any format, `nested` those of them that have other datasets inside, and `card_files` those that the header
//! of a README.md names.

#[cfg(feature = "formats")]
mod card_files;
#[cfg(feature = "image-folder")]
mod dataset;
#[cfg(all(feature = "config", feature = "image-folder"))]
mod load;
#[cfg(feature = "formats")]
mod nested;
#[cfg(feature = "formats")]
mod records;
#[cfg(feature = "schema")]
mod schema;

#[cfg(feature = "formats")]
pub use self::{
    card_files::CardFiles,
    nested::{CachedOptions, MixOptions, PackedOptions, RecordCache, RecordMix, RecordWindows},
    records::{
        FormatDataset, FormatStream, ListedFiles, RecordConfig, RecordDataset, RecordSnapshot, RecordStream,
        Records,
    },
};
#[cfg(feature = "image-folder")]
pub use dataset::{DatasetConfig, DatasetError, KindName, KindOnly, OpenDataset};
#[cfg(feature = "schema")]
pub use schema::{kind_schema, schema_generator};
