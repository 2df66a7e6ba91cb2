//! The error of image folders.

use std::{io, path::PathBuf};

use loader_core::{SharedVecError, internal::printable};

use crate::images::{IMAGE_EXTENSIONS, TransformError};

/// Why a folder cannot be opened as an [`ImageFolder`](crate::ImageFolder).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImageFolderError {
    /// There is nothing at the path.
    #[error(
        "image folder `{}` does not exist; give the folder that holds one sub-folder of images per class",
        printable(path.display())
    )]
    NotFound {
        /// The path that was given.
        path: PathBuf,
    },
    /// The path is that of a file.
    #[error(
        "image folder `{}` is a file; give the folder that holds one sub-folder of images per class",
        printable(path.display())
    )]
    NotAFolder {
        /// The path that was given.
        path: PathBuf,
    },
    /// The folder, or one inside it, cannot be listed.
    #[error(
        "folder `{}` cannot be listed: {error}; check that it is a folder and that you may read it",
        printable(path.display())
    )]
    Unreadable {
        /// The folder that cannot be listed.
        path: PathBuf,
        /// The error of the system.
        error: io::Error,
    },
    /// Images lie in the folder itself, and there are no class folders.
    #[error(
        "image folder `{path}` has images (such as `{example}`) but no class folders; \
         move them into one sub-folder per class, such as `{path}/some-class/{example}`",
        path = printable(path.display()), example = printable(example)
    )]
    ImagesWithoutClass {
        /// The path that was given.
        path: PathBuf,
        /// Name of one of the images.
        example: String,
    },
    /// There is no class folder in the folder.
    #[error(
        "image folder `{}` has no class folders; make one sub-folder per class and put its images ({}) there",
        printable(path.display()), IMAGE_EXTENSIONS.join(", ")
    )]
    NoClasses {
        /// The path that was given.
        path: PathBuf,
    },
    /// Class folders have no images in them.
    #[error(
        "image folder `{}`: no images in class folder {}; put images ({}) there or remove it",
        printable(path.display()), list(classes), IMAGE_EXTENSIONS.join(", ")
    )]
    EmptyClasses {
        /// The path that was given.
        path: PathBuf,
        /// Names of the class folders without images.
        classes: Vec<String>,
    },
    /// No class folder has images in it, but one has audio files.
    #[error(
        "image folder `{}`: class folder(s) {} have audio files (such as `{example}`) and no images; open the folder with \
         `AudioFolder`, or with a config (a .toml file) that has `kind = \"audio-folder\"`",
        printable(path.display()), list(classes), example = printable(example)
    )]
    AudioInClasses {
        /// The path that was given.
        path: PathBuf,
        /// Names of the class folders.
        classes: Vec<String>,
        /// Path of one of the audio files in the folder.
        example: String,
    },
    /// The path is a URL, and the program has no object stores.
    #[error(
        "`{scheme}://` needs the feature `cloud` of process-loader; build the program with it, or give a path"
    )]
    NeedsCloud {
        /// What the URL begins with.
        scheme: String,
    },
    /// The folder is on a server, and cannot be listed.
    #[cfg(feature = "cloud")]
    #[error(transparent)]
    Server(#[from] crate::error::DataError),
    /// The list of files could not be put into shared memory.
    #[error("the list of files cannot be shared with workers: {0}")]
    Memory(SharedVecError),
    /// The transform is invalid.
    #[error(transparent)]
    Transform(#[from] TransformError),
}

fn list(names: &[String]) -> String {
    const SHOWN: usize = 5;
    let shown: Vec<_> = names.iter().take(SHOWN).map(|name| format!("`{}`", printable(name))).collect();
    let more = names.len().saturating_sub(SHOWN);
    if more == 0 { shown.join(", ") } else { format!("{} and {more} more", shown.join(", ")) }
}
