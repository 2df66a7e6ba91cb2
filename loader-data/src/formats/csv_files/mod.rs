//! CSV and TSV. The crate `csv` parses the records; `lines` finds them.

mod dataset;
mod options;
mod parse;
mod split;
mod stream;
mod types;

pub use dataset::Csv;
pub use options::CsvOptions;
pub use stream::CsvStream;
pub use types::ColumnType;

use crate::error::DataProblem;

/// Extensions of the files that a folder of CSV stands for.
pub(crate) const EXTENSIONS: [&str; 2] = [".csv", ".tsv"];

/// Returns the problem of content that is not valid CSV.
fn malformed(reason: impl Into<String>) -> DataProblem {
    DataProblem::Malformed { format: "CSV", reason: reason.into() }
}
