//! Errors of caches.

use std::{fmt, io, path::PathBuf};

use loader_ipc::advice;

/// Error of [`Dataset::cached`](crate::Dataset::cached), or of a sample of a [`Cached`](crate::Cached)
/// dataset.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CacheError {
    /// The folder has the cache of another dataset, or of another version of this one.
    #[error(
        "the cache in {} does not fit: its {part} is {cached}, that of the dataset is {wanted}; remove the folder to \
         fill the cache again, or name another folder",
        folder.display()
    )]
    Differs {
        /// The cache's folder.
        folder: PathBuf,
        /// What differs.
        part: CachePart,
        /// Value of the cache.
        cached: String,
        /// Value of the dataset.
        wanted: String,
    },
    /// The file `index` in the folder is not the index of a cache, or its header is damaged.
    #[error(
        "{} is not the index of a cache, or it is damaged; remove the folder to fill the cache again, or name another \
         folder",
        folder.join("index").display()
    )]
    NotACache {
        /// The cache's folder.
        folder: PathBuf,
    },
    /// The operating system cannot open or make the files of the cache.
    #[error("the cache in {} cannot be used: {source}{}", folder.display(), advice(source))]
    System {
        /// The cache's folder.
        folder: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The dataset before the cache drew random numbers. The cache would repeat its numbers
    /// in every epoch.
    #[error(
        "sample {index} cannot be cached in {}, because it draws random numbers, which the cache would repeat in every \
         epoch; draw them in a `map` after `cached`",
        folder.display()
    )]
    RandomSample {
        /// The cache's folder.
        folder: PathBuf,
        /// Index of the sample, or of the first of the samples that one call of `get_many` computed.
        index: usize,
    },
    /// Before it used the cache, a process computed a stored sample again, and the two differ. The process uses no
    /// sample of the cache.
    #[error(
        "the cache in {} is not of this dataset: sample {index} in the cache differs from the one that the dataset \
         computes now; remove the folder to fill the cache again, or name another folder; if neither the files nor the \
         code were changed, the samples depend on more than their index, such as the time or the machine",
        folder.display()
    )]
    OtherSample {
        /// The cache's folder.
        folder: PathBuf,
        /// Index of the sample that was compared.
        index: usize,
    },
    /// The encoding of a sample cannot be decoded to its type: the type was changed without another version,
    /// or it does not survive bincode.
    #[error(
        "sample {index} of the cache in {} cannot be read as {sample}: {problem}; if the type was changed since the \
         cache was filled, remove the folder and give `cached` another version; samples are encoded with bincode, \
         which does not support `#[serde(untagged)]`, `#[serde(flatten)]` and `serde_json::Value`",
        folder.display()
    )]
    NotReadable {
        /// The cache's folder.
        folder: PathBuf,
        /// Index of the sample.
        index: usize,
        /// Type of the sample.
        sample: String,
        /// The message of serde.
        problem: String,
    },
}

/// A property in which a cache differs from the dataset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum CachePart {
    /// Format of the files. It changes with versions of this crate.
    Format,
    /// The version that the program gave to `cached`.
    Version,
    /// Type of the samples.
    SampleType,
    /// Number of samples.
    Len,
    /// Fingerprint of the dataset, for example the names and sizes of its files.
    Fingerprint,
}

impl fmt::Display for CachePart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Format => "version of the file format",
            Self::Version => "version",
            Self::SampleType => "type of samples",
            Self::Len => "number of samples",
            Self::Fingerprint => "fingerprint",
        })
    }
}
