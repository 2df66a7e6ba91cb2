//! Parquet files. The crate `parquet` decodes them; what is here finds the row groups and turns rows into
//! records.

mod batches;
mod blocks;
mod cache;
mod dataset;
mod file;
mod footer;
mod options;
mod shuffled;
mod stream;
mod table;

pub use dataset::Parquet;
pub use options::ParquetOptions;
pub use stream::ParquetStream;

/// Extensions of the files that a folder of Parquet files stands for.
pub(crate) const EXTENSIONS: [&str; 1] = [".parquet"];
