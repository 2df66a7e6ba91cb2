//! Images: `transform` plans which part of an image becomes which part of a tensor, `decode` decodes that part of the file
//! to RGB bytes, and `transform` writes them to the tensor.

mod decode;
mod error;
mod options;
mod orientation;
mod picture;
mod transform;

pub use decode::IMAGE_EXTENSIONS;
pub use error::{ImageError, ImageProblem, TransformError};
pub(crate) use options::DEFAULT_SIZE;
pub use options::{PixelOption, StandardTransform, TransformOptions};
pub use picture::{MAX_PIXELS, MAX_SIDE, Size};
pub use transform::{Drawn, MAX_FILE_BYTES, Pixel, Step, Transform, decode_mask};
