//! Indexes of data files: where their lines or members begin. An index is made once, in parallel, and stored.
//!
//! A stored index is only a cache: it is used if it was made from exactly this content of the data file, and
//! made again otherwise.

mod stored;

use std::{fmt, path::PathBuf};

use serde::{Deserialize, Serialize};

pub(crate) use stored::{IndexKind, check, load, store};

/// Where the index of a data file is stored, so that the next program that opens the file need not read all
/// of it.
///
/// A stored index is used only if the size and the time of the last modification of the data file are those of the file
/// that it was made from, and only if this user, the owner of the data file or root has made it, and nobody else may
/// write to it. For an index of lines, some of the positions in it are compared with the file: a line break must stand
/// before them. Any other file in its place is replaced. If an index cannot be written, nothing fails: it is made again
/// next time.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum IndexPlace {
    /// In `loader/index` in the user's cache folder: `$XDG_CACHE_HOME`, or `~/.cache`. Files of less than 1
    /// MiB get no stored index: reading the index would take as long as making it.
    #[default]
    Cache,
    /// Beside the data file, with `.index` appended to its name.
    Beside,
    /// In this folder, which is created if it does not exist. Programs and machines that read the same paths
    /// can share it.
    Folder(PathBuf),
    /// Nowhere: the index is made each time that the dataset is opened.
    None,
}

/// The stored index of a data file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StoredIndex {
    /// Path or URL of the data file.
    pub file: String,
    /// Path of the index; `None` if the file has no stored index.
    pub path: Option<PathBuf>,
    /// Whether a dataset uses the index.
    pub status: IndexStatus,
}

/// Whether a dataset uses a stored index, or makes another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum IndexStatus {
    /// The dataset uses the index.
    Current,
    /// The index does not exist.
    Missing,
    /// The index was made from another version of the data file, or for another format.
    Stale,
    /// The file is not an index, its checksum is wrong, or it cannot be read.
    Damaged,
    /// The index belongs to neither this user, the owner of the data file nor root, others may write to it, or it is not a
    /// regular file.
    Foreign,
    /// No index of this file is stored: the file is too small, or [`IndexPlace`] has no place for it.
    NotStored,
}

impl fmt::Display for IndexStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Current => "current",
            Self::Missing => "missing",
            Self::Stale => "stale",
            Self::Damaged => "damaged",
            Self::Foreign => "foreign",
            Self::NotStored => "not stored",
        })
    }
}
