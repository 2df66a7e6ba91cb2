//! The formats of files: each module has the datasets of one format.

#[cfg(feature = "arrays")]
pub(crate) mod arrays;
#[cfg(feature = "arrow")]
pub(crate) mod arrow_files;
#[cfg(feature = "audio")]
pub(crate) mod audio_files;
#[cfg(feature = "csv")]
pub(crate) mod csv_files;
#[cfg(all(
    feature = "csv",
    feature = "json-lines",
    feature = "parquet",
    any(feature = "audio", feature = "image-folder")
))]
pub(crate) mod file_table;
#[cfg(feature = "image-folder")]
pub(crate) mod image_folder;
#[cfg(feature = "json-lines")]
pub(crate) mod json_lines;
#[cfg(feature = "tar")]
pub(crate) mod pack;
#[cfg(feature = "parquet")]
pub(crate) mod parquet;
#[cfg(feature = "tar")]
pub(crate) mod tar_shards;
#[cfg(feature = "json-lines")]
pub(crate) mod text_lines;
#[cfg(feature = "tokens")]
pub(crate) mod tokens;
