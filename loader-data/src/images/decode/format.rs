//! Recognises the type of an image by its first bytes.

use super::super::error::ImageProblem;

/// Extensions of images: with the feature `more-images`, those of torchvision's `ImageFolder`.
#[doc(hidden)]
pub const IMAGE_EXTENSIONS: &[&str] = if cfg!(feature = "more-images") {
    &["jpg", "jpeg", "png", "ppm", "bmp", "pgm", "tif", "tiff", "webp"]
} else {
    &["jpg", "jpeg", "png"]
};

/// Number of bytes at the start of a file that identify its format.
pub(in super::super) const START: usize = 512;

/// The types of images that a program can decode. All but the first two need the feature `more-images`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    Jpeg,
    Png,
    Bmp,
    Gif,
    Netpbm,
    Tiff,
    WebP,
}

impl Format {
    /// Returns the type of the file that begins with `start`.
    pub(super) fn of(start: &[u8]) -> Option<Self> {
        Some(match start {
            [0xFF, 0xD8, ..] => Self::Jpeg,
            [0x89, b'P', b'N', b'G', ..] => Self::Png,
            [b'B', b'M', ..] => Self::Bmp,
            [b'G', b'I', b'F', b'8', ..] => Self::Gif,
            [b'P', b'1'..=b'6', space, ..] if space.is_ascii_whitespace() => Self::Netpbm,
            [b'I', b'I', b'*' | b'+', 0, ..] | [b'M', b'M', 0, b'*' | b'+', ..] => Self::Tiff,
            [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Self::WebP,
            _ => return None,
        })
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Jpeg => "JPEG",
            Self::Png => "PNG",
            Self::Bmp => "BMP",
            Self::Gif => "GIF",
            Self::Netpbm => "Netpbm",
            Self::Tiff => "TIFF",
            Self::WebP => "WebP",
        }
    }
}

/// Fails if a file is not an image that this program can decode. `start` is the first [`START`] bytes of the
/// file, or the whole file if it is shorter.
pub(in super::super) fn recognise(start: &[u8]) -> Result<(), ImageProblem> {
    match Format::of(start) {
        None if start.is_empty() => Err(ImageProblem::Empty),
        None => Err(ImageProblem::UnknownFormat { found: guess(start) }),
        Some(Format::Jpeg | Format::Png) => Ok(()),
        Some(_) if cfg!(feature = "more-images") => Ok(()),
        Some(format) => Err(ImageProblem::NotBuiltIn { format: format.name() }),
    }
}

/// Guesses what a file is that has the name of an image but is none.
fn guess(bytes: &[u8]) -> &'static str {
    const KNOWN: [(&[u8], &str); 4] = [
        (b"%PDF", "PDF"),
        (b"\x1F\x8B", "a gzip archive"),
        (b"PK\x03\x04", "a zip archive"),
        (b"version https://git-lfs", "a Git LFS pointer"),
    ];
    if let Some((_, name)) = KNOWN.iter().find(|(magic, _)| bytes.starts_with(magic)) {
        return name;
    }
    match bytes {
        [_, _, _, _, b'f', b't', b'y', b'p', ..] => "HEIC, AVIF or a video",
        _ if bytes.trim_ascii_start().starts_with(b"<") => "HTML or XML",
        _ if bytes.iter().all(|byte| byte.is_ascii_graphic() || byte.is_ascii_whitespace()) => "text",
        _ => "another binary format",
    }
}
