//! Folders of audio files with one sub-folder per class, and the decoding of audio in any dataset.
//!
//! `decode` reads samples from a file, `resample` changes their rate, and `transform` plans which part of a file
//! becomes the tensor. `folder` is the dataset of folders, and `files` that of files without classes.

mod decode;
mod files;
mod folder;
mod resample;
mod transform;

pub use files::{AudioFiles, AudioFilesOptions};
pub use folder::{AudioFolder, AudioFolderOptions, AudioRecords};
pub use transform::AudioTransform;

/// Extensions of the files that are read from a folder.
pub(crate) const EXTENSIONS: [&str; 10] =
    [".flac", ".mp3", ".oga", ".ogg", ".wav", ".FLAC", ".MP3", ".OGA", ".OGG", ".WAV"];
