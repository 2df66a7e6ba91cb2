//! The error of packing.

use std::{
    io,
    path::{Path, PathBuf},
};

use loader_core::internal::printable;

use crate::error::DataError;

/// Why files cannot be packed, or an archive is not as it was packed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PackError {
    /// A file of the source cannot be listed or read.
    #[error(transparent)]
    Source(#[from] DataError),
    /// The source is not a folder, or has no files.
    #[error("`{}` is not a folder with files; give a folder", printable(.0.display()))]
    NothingToPack(PathBuf),
    /// A class folder has no images.
    #[error(
        "the class folder `{}` has no images, so the classes may have other numbers than in another part of the dataset; \
         add images to the folder, or remove it",
        printable(.0.display())
    )]
    EmptyClass(PathBuf),
    /// The name of a file does not say to which sample and field the file belongs.
    #[error(
        "`{}`: the name is not Unicode, or has no dot, or is one that readers of archives skip; rename or remove the file",
        printable(.0.display())
    )]
    Name(PathBuf),
    /// Two files are the same field of a sample.
    #[error("`{}` and another file are the same field of a sample; rename one of them", printable(.0.display()))]
    DuplicateField(PathBuf),
    /// The samples need more archives than a manifest may have.
    #[error(
        "the samples need {found} archives, but a manifest may have at most {max}; increase `shard_bytes`"
    )]
    TooManyArchives {
        /// Number of archives.
        found: usize,
        /// The limit.
        max: usize,
    },
    /// The samples have more fields than a Parquet file may have columns.
    #[error(
        "the samples have {found} fields, but a Parquet file may have at most {max}: what follows the first dot in the \
         name of a file is its field; rename the files, or pack them into tar archives"
    )]
    TooManyFields {
        /// Number of fields.
        found: usize,
        /// The limit.
        max: usize,
    },
    /// A file has too many bytes for a value of Parquet.
    #[error("`{}` has more than {max} bytes, the maximum of a value in Parquet; pack it into tar archives", printable(path.display()))]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// The limit.
        max: u64,
    },
    /// A file has changed since the packing began.
    #[error("`{}` has changed while it was packed; run the command again", printable(.0.display()))]
    Changed(PathBuf),
    /// A file of the output cannot be written or read.
    #[error("`{}`: {error}", printable(path.display()))]
    Output {
        /// The file or folder.
        path: PathBuf,
        /// The error of the system.
        error: io::Error,
    },
    /// The output folder has files, but no manifest.
    #[error("`{}` exists and was not made by this command; give a new folder", printable(.0.display()))]
    NotOurs(PathBuf),
    /// The manifest is damaged, or was made with other options or from another source.
    #[error("`{}` is damaged, or describes archives that were made with other options; give a new folder", printable(.0.display()))]
    OtherManifest(PathBuf),
    /// The output folder lies in the source.
    #[error("`{}` lies in the folder that is packed; give another folder", printable(.0.display()))]
    InsideSource(PathBuf),
    /// Another process packs into the folder.
    #[error("another process packs into `{}`; wait until it ends", printable(.0.display()))]
    Locked(PathBuf),
    /// The progress function has asked to stop.
    #[error("stopped")]
    Stopped,
}

/// Returns the function that makes the error of a file of the output.
pub(super) fn failed(path: &Path) -> impl Fn(io::Error) -> PackError + use<> {
    let path = PathBuf::from(path);
    move |error| PackError::Output { path: path.clone(), error }
}
