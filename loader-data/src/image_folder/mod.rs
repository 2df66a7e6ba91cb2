//! Folders of images, one sub-folder a class.
//!
//! The way of a sample: `scan` has listed its file, `decode` makes it RGB bytes, `transform` plans which part of them becomes
//! which size and renders that into a tensor.

mod decode;
mod error;
mod folder;
mod picture;
mod scan;
mod transform;

pub use decode::{MAX_PIXELS, MAX_SIDE};
pub use error::{ImageError, ImageFolderError, ImageProblem, TransformError};
pub use folder::ImageFolder;
pub use transform::{MAX_FILE_BYTES, Pixel, Step, Transform};
