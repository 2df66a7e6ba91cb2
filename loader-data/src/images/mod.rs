//! Images in records: `column` decodes one image, `options` are the options of `column` in a config, and
//! `table` reads the image files that the rows of a table name.

mod column;
mod options;
#[cfg(all(feature = "csv", feature = "json-lines", feature = "parquet"))]
mod table;

pub use column::ImageColumn;
pub use options::ImageOptions;
#[cfg(all(feature = "csv", feature = "json-lines", feature = "parquet"))]
pub use table::{ImageTable, ImageTableOptions};
