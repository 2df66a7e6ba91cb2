//! The errors of images and transforms.

use std::{io, path::PathBuf};

use loader_core::internal::printable;

use super::picture::{MAX_PIXELS, MAX_SIDE, Size};

/// Why one image could not be loaded. A loader returns it as the error of the batch that would contain the
/// image.
#[derive(Debug, thiserror::Error)]
#[error("image `{}` {problem}", printable(path.display()))]
pub struct ImageError {
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it.
    pub problem: ImageProblem,
}

/// What is wrong with an image file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImageProblem {
    /// The file cannot be read.
    #[error("cannot be read: {0}; check that it exists and that you may read it, then open the folder again")]
    Unreadable(io::Error),
    /// The path leads to something other than a regular file, such as a named pipe, which may never end.
    #[error("is not a regular file but {found}; remove it")]
    NotAFile {
        /// The kind of file, such as "a named pipe".
        found: &'static str,
    },
    /// The file has more bytes than `max_file_bytes`.
    #[error("has {bytes} bytes (maximum: {max}); remove it, or raise `max_file_bytes`")]
    FileTooLarge {
        /// Size of the file in bytes.
        bytes: u64,
        /// The limit.
        max: u64,
    },
    /// The file has no bytes.
    #[error("is empty; fetch it again or remove it")]
    Empty,
    /// The file is not an image of a type that can be decoded, even if its name says so.
    #[error("is not an image of a known type but looks like {found}; convert it or remove it")]
    UnknownFormat {
        /// The format that the first bytes suggest.
        found: &'static str,
    },
    /// The type of the image needs a feature of this crate that is off.
    #[error(
        "is {format}, which needs the feature `more-images` of process-loader; build the program with it, \
         or convert the file to JPEG or PNG"
    )]
    NotBuiltIn {
        /// The type of the image.
        format: &'static str,
    },
    /// The file ends before the image does.
    #[error("is truncated: the file ends before the {format} image does; fetch it again or remove it")]
    Truncated {
        /// Format of the file.
        format: &'static str,
    },
    /// The image is larger than [`MAX_SIDE`] or [`MAX_PIXELS`] allow. These limits keep a file of a few bytes
    /// from taking all memory.
    #[error(
        "is too large: {width} x {height} pixels (maximum: {MAX_SIDE} per side and {MAX_PIXELS} in total); \
         scale it down or remove it"
    )]
    TooLarge {
        /// Width in pixels.
        width: u32,
        /// Height in pixels.
        height: u32,
    },
    /// The decoder refuses the file.
    #[error(
        "cannot be decoded as {format}: {reason}; convert it with another program, fetch it again or remove it"
    )]
    Malformed {
        /// Format of the file.
        format: &'static str,
        /// The message of the decoder.
        reason: String,
    },
    /// An image or a mask does not have the size for which a transform was drawn.
    #[error(
        "has {} x {} pixels, but the transform was drawn for an image of {} x {} pixels",
        found.width, found.height, expected.width, expected.height
    )]
    OtherSize {
        /// The size for which the transform was drawn.
        expected: Size,
        /// The size of the image or mask; 0 x 0 if a mask does not have two dimensions.
        found: Size,
    },
    /// The transform makes the image larger than [`MAX_PIXELS`] allows.
    #[error(
        "becomes too large: {width} x {height} pixels after the transform (maximum: {MAX_PIXELS} in total); \
         crop it, or resize to a smaller size"
    )]
    TooLargeAfterTransform {
        /// Width in pixels.
        width: u32,
        /// Height in pixels.
        height: u32,
    },
}

/// What is wrong with a [`Transform`](crate::Transform).
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum TransformError {
    /// A size is 0 or too large.
    #[error("{step}: a size of {size} pixels is out of range; give one from 1 to {MAX_SIDE}")]
    Size {
        /// The step.
        step: &'static str,
        /// The size that was given.
        size: u32,
    },
    /// The range of fractions of the image's area is empty or out of bounds.
    #[error(
        "random_resized_crop: {min} to {max} is not a valid range of fractions of the image's area; \
         give the smaller one first, both above 0 and at most 1, such as 0.08 to 1"
    )]
    Scale {
        /// The first number that was given.
        min: f64,
        /// The second number that was given.
        max: f64,
    },
    /// The range of aspect ratios is empty or out of bounds.
    #[error(
        "random_resized_crop: {min} to {max} is not a valid range of aspect ratios (width / height); \
         give the smaller one first, both above 0, such as 0.75 to 1.33"
    )]
    Ratio {
        /// The first number that was given.
        min: f64,
        /// The second number that was given.
        max: f64,
    },
    /// The number is not a probability.
    #[error("random_horizontal_flip: {p} is not a probability; give a number from 0 to 1")]
    Probability {
        /// The number that was given.
        p: f64,
    },
    /// A mean or standard deviation is not finite, or a standard deviation is not above 0.
    #[error(
        "normalise: mean {mean} and standard deviation {std} of channel {channel} are not valid; \
         give a finite mean and a positive, finite deviation, both for pixels from 0 to 1"
    )]
    Normalise {
        /// Number of the channel: 0 red, 1 green, 2 blue.
        channel: usize,
        /// Its mean.
        mean: f32,
        /// Its standard deviation.
        std: f32,
    },
    /// `exif_orientation` follows another step.
    #[error("exif_orientation must be the first step; move it to the beginning")]
    OrientationNotFirst,
    /// A step follows `normalise`.
    #[error("normalise must be the last step and can occur only once; move it to the end")]
    NormaliseNotLast,
    /// The transform normalises, but the pixels are `u8`.
    #[error(
        "normalise needs pixels of type f32, and these are u8; leave the step out, or choose f32 (`ImageFolder::open`, or \
         `pixels = \"f32\"`)"
    )]
    NormaliseBytes,
    /// There is a size beside a transform that does not use it.
    #[error(
        "size has no effect with this transform: only the transforms train and eval use it; leave it out, or choose one of \
         these"
    )]
    UnusedSize,
}
