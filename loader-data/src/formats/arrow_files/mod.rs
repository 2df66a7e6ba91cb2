//! Arrow IPC: files (Feather version 2), and streams as Hugging Face `datasets` caches them.
//!
//! The crate `arrow-ipc` parses the messages. The buffers of columns are read here, so that a row costs the
//! bytes of this row and not those of its record batch.

mod body;
mod dataset;
mod gather;
mod index;
mod items;
mod messages;
mod options;
mod plain;
mod saved;
mod stream;
mod table;

pub use dataset::Arrow;
pub use options::ArrowOptions;
pub use stream::ArrowStream;

use crate::error::DataProblem;

/// Extensions of the files that a folder of Arrow files stands for.
pub(crate) const EXTENSIONS: [&str; 4] = [".arrow", ".feather", ".ipc", ".arrows"];

/// Name of the format in errors.
const FORMAT: &str = "Arrow IPC";

/// Returns the problem of content that is not valid Arrow IPC.
fn malformed(reason: impl Into<String>) -> DataProblem {
    DataProblem::Malformed { format: FORMAT, reason: reason.into() }
}
