//! Folders of images with one sub-folder per class.
//!
//! `scan` lists the files when the dataset is opened. For each sample, `transform` plans which part of the
//! image becomes which part of the tensor, `decode` decodes that part of the file to RGB bytes, and
//! `transform` writes them to the tensor.

mod decode;
mod error;
mod folder;
mod options;
mod picture;
#[cfg(feature = "cloud")]
mod remote;
mod scan;
mod transform;

pub use error::{ImageError, ImageFolderError, ImageProblem, TransformError};
pub use folder::ImageFolder;
#[cfg(feature = "config")]
pub(crate) use folder::url_scheme;
pub(crate) use options::DEFAULT_SIZE;
pub use options::{ImageFolderOptions, PixelOption, StandardTransform, TransformOptions};
pub use picture::{MAX_PIXELS, MAX_SIDE, Size};
pub use scan::IMAGE_EXTENSIONS;
pub use transform::{Drawn, MAX_FILE_BYTES, Pixel, Step, Transform, decode_mask};
