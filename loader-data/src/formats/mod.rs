//! The formats of files: each module has the datasets of one format.

#[cfg(feature = "records")]
pub(crate) mod arrays;
#[cfg(feature = "columnar")]
pub(crate) mod arrow_files;
#[cfg(feature = "audio")]
pub(crate) mod audio_files;
#[cfg(feature = "records")]
pub(crate) mod csv_files;
#[cfg(feature = "columnar")]
pub(crate) mod file_table;
#[cfg(feature = "image-folder")]
pub(crate) mod image_folder;
#[cfg(feature = "records")]
pub(crate) mod json_lines;
#[cfg(feature = "columnar")]
pub(crate) mod pack;
#[cfg(feature = "columnar")]
pub(crate) mod parquet;
#[cfg(feature = "records")]
pub(crate) mod tar_shards;
#[cfg(feature = "records")]
pub(crate) mod text_lines;
#[cfg(feature = "records")]
pub(crate) mod tokens;
