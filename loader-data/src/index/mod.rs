//! Indexes of data files: where their lines or members begin. An index is made once, in parallel, and stored.
//!
//! A stored index is only a cache: it is used if it was made from exactly this content of the data file, and
//! made again otherwise.

pub(crate) mod parallel;
mod stored;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

pub(crate) use stored::{Kind, load, store};

/// Where the index of a data file is stored, so that the next program that opens the file need not read all
/// of it.
///
/// A stored index is used only if the size and the time of the last modification of the data file are those
/// of the file that it was made from. A damaged or foreign file in its place is replaced. If an index cannot
/// be written, nothing fails: it is made again next time.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum IndexPlace {
    /// In `loader/index` in the user's cache folder: `$XDG_CACHE_HOME`, or `~/.cache`. Files of less than 1
    /// MiB get no stored index: it takes as long to read as to make.
    #[default]
    Cache,
    /// Beside the data file, with `.index` appended to its name.
    Beside,
    /// In this folder, which is created. Programs and machines that read the same paths can share it.
    Folder(PathBuf),
    /// Nowhere: made each time that the dataset is opened.
    None,
}
