//! JSON lines: one JSON value per line.

mod dataset;
mod options;
mod parse;

pub use dataset::JsonLines;
pub use options::JsonLinesOptions;

/// Extensions of the files that a folder of JSON lines stands for.
const EXTENSIONS: [&str; 3] = [".jsonl", ".ndjson", ".json"];
