//! tar archives in WebDataset's layout.
//!
//! `input` reads the bytes of an archive and decompresses them, `members` its members, `samples` groups them
//! by the rules of `name`, and `decoding` makes records of them.

mod dataset;
pub(crate) mod decoding;
#[cfg(feature = "image-folder")]
mod images;
mod indexed;
mod input;
mod members;
pub(crate) mod name;
mod options;
mod samples;
mod stream;

pub use dataset::TarShards;
pub use indexed::IndexedTar;
pub use options::TarOptions;
pub use stream::TarPosition;

/// Extensions of the files that are read from a folder.
pub(crate) const EXTENSIONS: [&str; 4] = [".tar", ".tar.gz", ".tgz", ".tar.zst"];

/// Fields that each sample has: its key, and the file that it is from.
pub(crate) const KEY: &str = "__key__";
const URL: &str = "__url__";

/// Default of the maximum number of bytes of a sample: 1 GiB.
const MAX_SAMPLE_BYTES: u64 = 1 << 30;
