//! Records with encoded images: columns of any format, and tables that name files.
//!
//! `column` decodes one value, `options` describes that in a config, `dataset` applies it to the records of any
//! dataset, and `table` reads the files that the rows of a table name.

mod column;
mod dataset;
mod options;
#[cfg(all(feature = "csv", feature = "json-lines", feature = "parquet"))]
mod table;

pub use column::ImageColumn;
pub use dataset::ImageRecords;
pub use options::ImageOptions;
#[cfg(all(feature = "csv", feature = "json-lines", feature = "parquet"))]
pub use table::{ImageTable, ImageTableOptions};
