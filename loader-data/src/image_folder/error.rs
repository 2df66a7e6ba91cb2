//! The errors of folders, images and transforms.

use std::{io, path::PathBuf};

use loader_core::{SharedVecError, internal::printable};

use super::{
    picture::{MAX_PIXELS, MAX_SIDE, Size},
    scan::IMAGE_EXTENSIONS,
};

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
        "`{scheme}://` needs the feature `cloud` of loader-data; build the program with it, or give a path"
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
        "is {format}, which needs the feature `more-images` of loader-data; build the program with it, \
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
