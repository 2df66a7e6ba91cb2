//! Tests of the file formats with real files and real workers. The files under `fixtures` were written by
//! other tools; `fixtures/README.md` says how.

mod arrays;
mod arrow;
mod audio;
mod audio_columns;
mod cached;
mod changed;
mod csv;
mod damaged;
mod dataset_card;
mod drop_nulls;
mod everywhere;
#[cfg(feature = "cloud")]
mod image_folder;
mod images;
mod json_lines;
#[cfg(feature = "cloud")]
mod many_files;
mod mix;
#[cfg(feature = "cloud")]
mod outage;
mod packed;
mod parquet;
mod partitions;
#[cfg(feature = "cloud")]
mod read_ahead;
#[cfg(feature = "cloud")]
mod read_times;
#[cfg(feature = "cloud")]
mod row_groups_ahead;
mod rows;
#[cfg(feature = "cloud")]
#[allow(dead_code, reason = "the unit tests use all of it")]
mod server;
#[cfg(feature = "cloud")]
mod servers;
#[cfg(feature = "cloud")]
mod store;
mod tar_shards;
mod tokens;

loader_worker::init_before_main!();
