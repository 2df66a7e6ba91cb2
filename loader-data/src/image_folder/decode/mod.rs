//! Decodes the bytes of an image file to RGB.

mod jpeg;
mod png;

use loader_jpeg::{Buffers, Jpeg};

use super::{
    error::ImageProblem,
    picture::{Area, MAX_PIXELS, MAX_SIDE, Picture, Size},
};

/// An image whose headers have been read.
pub(super) enum Image<'a> {
    /// The whole image is decoded already and is in the picture.
    Decoded(Size),
    Jpeg(Jpeg<'a>),
}

/// Number of bytes at the start of a file that identify its format.
pub(super) const START: usize = 512;

/// Fails if a file is not an image of a known format. `start` is the first [`START`] bytes of the file, or
/// the whole file if it is shorter.
pub(super) fn recognise(start: &[u8]) -> Result<(), ImageProblem> {
    match start {
        [] => Err(ImageProblem::Empty),
        [0xFF, 0xD8, ..] | [0x89, b'P', b'N', b'G', ..] => Ok(()),
        _ => Err(ImageProblem::UnknownFormat { found: guess(start) }),
    }
}

/// Reads the headers of a file of a known format. If the format does not allow a part to be decoded alone,
/// also decodes the whole image into `picture`, in place of the previous image.
pub(super) fn open<'a>(bytes: &'a [u8], picture: &mut Picture) -> Result<Image<'a>, ImageProblem> {
    if bytes.starts_with(&[0xFF, 0xD8]) {
        return jpeg::open(bytes).map(Image::Jpeg);
    }
    png::decode(bytes, picture)?;
    Ok(Image::Decoded(picture.area().size))
}

impl Image<'_> {
    pub(super) fn size(&self) -> Size {
        match self {
            Self::Decoded(size) => *size,
            Self::Jpeg(jpeg) => jpeg.size(),
        }
    }

    /// Makes sure that `picture`, which must be the one given to [`open`], contains at least `area`.
    pub(super) fn decode(
        self,
        area: Area,
        picture: &mut Picture,
        buffers: &mut Buffers,
    ) -> Result<(), ImageProblem> {
        match self {
            Self::Decoded(_) => Ok(()),
            Self::Jpeg(jpeg) => {
                picture.replace(|pixels| jpeg.decode(area, pixels, buffers)).map_err(jpeg::problem)
            }
        }
    }
}

/// Fails if an image of `size` exceeds [`MAX_SIDE`] or [`MAX_PIXELS`].
fn check(size: Size) -> Result<(), ImageProblem> {
    let Size { width, height } = size;
    if width > MAX_SIDE || height > MAX_SIDE || size.pixels() > MAX_PIXELS {
        return Err(ImageProblem::TooLarge { width, height });
    }
    Ok(())
}

/// Makes `picture` a black image of `width` x `height` pixels with at least `channels` bytes each. The bytes
/// must be zero, because a decoder may leave out pixels of a damaged file, and those must not show the
/// previous image.
fn make_room(picture: &mut Picture, width: u32, height: u32, channels: usize) -> Result<(), ImageProblem> {
    let size = Size::new(width, height);
    check(size)?;
    picture.clear(size, channels);
    Ok(())
}

/// Guesses what a file is that has the name of an image but is neither JPEG nor PNG.
fn guess(bytes: &[u8]) -> &'static str {
    const KNOWN: [(&[u8], &str); 8] = [
        (b"GIF8", "GIF"),
        (b"BM", "BMP"),
        (b"II*\0", "TIFF"),
        (b"MM\0*", "TIFF"),
        (b"%PDF", "PDF"),
        (b"\x1F\x8B", "a gzip archive"),
        (b"PK\x03\x04", "a zip archive"),
        (b"version https://git-lfs", "a Git LFS pointer"),
    ];
    if let Some((_, name)) = KNOWN.iter().find(|(magic, _)| bytes.starts_with(magic)) {
        return name;
    }
    match bytes {
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => "WebP",
        [_, _, _, _, b'f', b't', b'y', b'p', ..] => "HEIC, AVIF or a video",
        _ if bytes.trim_ascii_start().starts_with(b"<") => "HTML or XML",
        _ if bytes.iter().all(|byte| byte.is_ascii_graphic() || byte.is_ascii_whitespace()) => "text",
        _ => "another binary format",
    }
}
