//! Folders of images with one sub-folder per class: `scan` lists the files when the dataset is opened.

mod error;
mod folder;
mod options;
#[cfg_attr(not(feature = "cloud"), path = "no_remote.rs")]
mod remote;
mod scan;

pub use error::ImageFolderError;
pub use folder::ImageFolder;
#[cfg(feature = "config")]
pub(crate) use folder::url_scheme;
pub use options::ImageFolderOptions;
