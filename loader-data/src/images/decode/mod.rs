//! Decodes the bytes of an image file to RGB, as Pillow's `convert("RGB")` does.

mod exif;
mod format;
mod jpeg;
#[cfg(feature = "more-images")]
mod more;
mod png;

use loader_jpeg::{Buffers, Jpeg};

use self::format::Format;
pub use self::format::IMAGE_EXTENSIONS;
pub(super) use self::{
    format::{START, recognise},
    png::indices,
};
use super::{
    error::ImageProblem,
    orientation::Orientation,
    picture::{Area, MAX_PIXELS, MAX_SIDE, Picture, Size},
};

/// An image whose headers have been read.
pub(super) struct Image<'a> {
    content: Content<'a>,
    /// Applied to the image after it was decoded.
    orientation: Orientation,
}

enum Content<'a> {
    /// The whole image is decoded already and is in the picture.
    Decoded(Size),
    Jpeg(Jpeg<'a>),
}

/// Reads the headers of a file that [`recognise`] accepts. If the format does not allow a part to be decoded
/// alone, also decodes the whole image into `picture`, in place of the previous image. With `upright`, turns
/// the image as its EXIF data says.
pub(super) fn open<'a>(
    bytes: &'a [u8],
    upright: bool,
    picture: &mut Picture,
) -> Result<Image<'a>, ImageProblem> {
    let Some(format) = Format::of(bytes) else {
        return Err(ImageProblem::UnknownFormat { found: "another binary format" });
    };
    let orientation = match format {
        Format::Jpeg => {
            let orientation = if upright { Orientation::of_jpeg(bytes) } else { Orientation::default() };
            return Ok(Image { content: Content::Jpeg(jpeg::open(bytes)?), orientation });
        }
        Format::Png => png::decode(bytes, picture)?,
        #[cfg(feature = "more-images")]
        format => more::decode(format, bytes, picture)?,
        #[cfg(not(feature = "more-images"))]
        format => return Err(ImageProblem::NotBuiltIn { format: format.name() }),
    };
    // The orientation of a TIFF is part of the format, and Pillow always applies it.
    if upright || format == Format::Tiff {
        picture.turn(orientation, picture.area().size);
    }
    Ok(Image { content: Content::Decoded(picture.area().size), orientation: Orientation::default() })
}

impl Image<'_> {
    pub(super) fn size(&self) -> Size {
        match &self.content {
            Content::Decoded(size) => *size,
            Content::Jpeg(jpeg) => self.orientation.size(jpeg.size()),
        }
    }

    /// Makes sure that `picture`, which must be the one given to [`open`], contains at least `area`.
    pub(super) fn decode(
        self,
        area: Area,
        picture: &mut Picture,
        buffers: &mut Buffers,
    ) -> Result<(), ImageProblem> {
        if let Content::Jpeg(jpeg) = self.content {
            let size = jpeg.size();
            let part = self.orientation.source(area, size);
            picture.replace(|pixels| jpeg.decode(part, pixels, buffers)).map_err(jpeg::problem)?;
            picture.turn(self.orientation, size);
        }
        Ok(())
    }
}

impl Format {
    /// The error of a decoder that refuses a file of this format.
    fn malformed(self, reason: &str) -> ImageProblem {
        ImageProblem::Malformed { format: self.name(), reason: reason.to_owned() }
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

/// Makes `picture` a black image of `size` with at least `pixel_bytes` bytes for each pixel. The bytes must
/// be zero, because a decoder may leave out pixels of a damaged file, and those must not show the previous
/// image.
fn make_room(picture: &mut Picture, size: Size, pixel_bytes: usize) -> Result<(), ImageProblem> {
    check(size)?;
    picture.clear(size, pixel_bytes);
    Ok(())
}

/// A sample of a grey image with 16 bits, as Pillow converts it to 8 bits: what is above 255 becomes white.
fn clipped(sample: u16) -> u8 {
    sample.min(255) as u8
}

/// Unpacks samples of 1, 2, 4 or 8 bits in rows of `width` samples. A row begins with a new byte.
fn unpacked(packed: &[u8], width: u32, bits: usize) -> Vec<u8> {
    let (width, mask) = (width as usize, (0xFF >> (8 - bits)) as u8);
    let rows = packed.chunks_exact((width * bits).div_ceil(8));
    let sample = |row: &[u8], x: usize| row[x * bits / 8] >> (8 - bits - x * bits % 8) & mask;
    rows.flat_map(|row| (0..width).map(move |x| sample(row, x))).collect()
}
