//! JSON lines: one JSON value per line.

mod dataset;
mod options;
mod parse;
mod stream;

pub use dataset::JsonLines;
pub use options::JsonLinesOptions;
pub use stream::JsonLinesStream;

/// Extensions of the files that a folder of JSON lines stands for.
pub(crate) const EXTENSIONS: [&str; 3] = [".jsonl", ".ndjson", ".json"];
