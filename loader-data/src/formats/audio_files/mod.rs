//! Audio files: `folder` is the dataset of folders with one sub-folder per class, and `files` that of files without
//! classes.

mod files;
mod folder;

pub use files::{AudioFiles, AudioFilesOptions};
pub use folder::{AudioFolder, AudioFolderOptions, AudioRecords};

/// Extensions of the files that are read from a folder.
pub(crate) const EXTENSIONS: [&str; 10] =
    [".flac", ".mp3", ".oga", ".ogg", ".wav", ".FLAC", ".MP3", ".OGA", ".OGG", ".WAV"];
