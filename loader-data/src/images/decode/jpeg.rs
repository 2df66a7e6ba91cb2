//! Reads JPEG files with `loader-jpeg`.

use loader_jpeg::{Jpeg, JpegError};

use super::{
    super::{
        error::ImageProblem,
        picture::{MAX_PIXELS, Size},
    },
    Format, check,
};

pub(super) fn open(file: &[u8]) -> Result<Jpeg<'_>, ImageProblem> {
    let jpeg = Jpeg::open(file, MAX_PIXELS).map_err(problem)?;
    check(jpeg.size())?;
    Ok(jpeg)
}

pub(super) fn problem(error: JpegError) -> ImageProblem {
    match error {
        JpegError::Truncated => ImageProblem::Truncated { format: Format::Jpeg.name() },
        JpegError::TooLarge { size: Size { width, height }, .. } => ImageProblem::TooLarge { width, height },
        error => Format::Jpeg.malformed(&error.to_string()),
    }
}
