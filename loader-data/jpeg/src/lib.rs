//! A JPEG decoder in pure Rust for data loading: it decodes the part of an image that a crop needs, and
//! refuses files with missing or damaged pixels, whatever the crop.
//!
//! [`Jpeg`] decodes baseline files of the kind that nearly all photographs are (8 bits, Huffman codes, one
//! scan, grey or YCbCr with chroma of full or half size) with a decoder of this crate, which gives exactly
//! the pixels of [zune-jpeg]. It decodes every other file as a whole, with zune-jpeg.
//!
//! [zune-jpeg]: https://docs.rs/zune-jpeg

mod area;
mod baseline;
mod blocks;
mod colour;
mod complete;
mod entropy;
mod header;
mod huffman;

use zune_jpeg::{
    JpegDecoder,
    zune_core::{bytestream::ZCursor, colorspace::ColorSpace, options::DecoderOptions},
};

pub use crate::{
    area::{Area, Size},
    baseline::Buffers,
};
use crate::{baseline::Baseline, complete::check};

/// Number of bytes per pixel.
const CHANNELS: usize = 3;

/// A JPEG file whose headers have been read. Its pixels are decoded to RGB: three bytes per pixel, row by row
/// from the top. Width and height are from 1 to 65,535 pixels.
///
/// # Examples
/// ```
/// use loader_jpeg::{Area, Buffers, Jpeg, Size};
///
/// let file = std::fs::read("../photos/table/coffee.jpg")?;
/// let jpeg = Jpeg::open(&file, 100_000_000)?;
/// assert_eq!(jpeg.size(), Size::new(600, 400));
///
/// // `pixels` and `buffers` are reused for the next image.
/// let (mut pixels, mut buffers) = (Vec::new(), Buffers::default());
/// let crop = Area::new(100, 50, Size::new(224, 224));
/// let decoded = jpeg.decode(crop, &mut pixels, &mut buffers)?;
/// assert_eq!(decoded, crop);
/// assert_eq!(pixels.len(), 224 * 224 * 3);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Jpeg<'a> {
    file: &'a [u8],
    max_pixels: u64,
    kind: Kind<'a>,
}

enum Kind<'a> {
    Baseline(Box<Baseline<'a>>),
    Other(Box<Decoder<'a>>),
}

/// Why a file cannot be decoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum JpegError {
    /// The file, or the image in it, ends too early.
    #[error("the file ends before the image does")]
    Truncated,
    /// The image has more pixels than the caller allows.
    #[error("the image has {} x {} pixels (maximum: {max_pixels} in total)", size.width, size.height)]
    TooLarge {
        /// Width and height of the image.
        size: Size,
        /// The limit that was given.
        max_pixels: u64,
    },
    /// The length field of a segment is below 2, the number of bytes of the field itself.
    #[error("the length of a segment is invalid")]
    SegmentLength,
    /// The header of a frame is invalid, or declares more pixels than the caller allows.
    #[error("a frame header is invalid, or declares too many pixels")]
    FrameHeader,
    /// The header of a scan is invalid.
    #[error("a scan header is invalid")]
    ScanHeader,
    /// A scan comes before the first frame header.
    #[error("a scan has no frame header")]
    ScanWithoutFrame,
    /// The image has more than 100 scans.
    #[error("the image has more than 100 scans")]
    TooManyScans,
    /// A scan has fewer coded pixels than its frame header says.
    #[error("a scan has fewer coded pixels than the frame header says")]
    ShortScan,
    /// A Huffman code is missing or invalid.
    #[error("a Huffman code is missing or invalid")]
    HuffmanCode,
    /// zune-jpeg refuses the file.
    #[error("{0}")]
    Refused(
        /// The message of zune-jpeg.
        String,
    ),
}

impl<'a> Jpeg<'a> {
    /// Reads the headers of `file`, an image of at most `max_pixels` pixels.
    ///
    /// # Errors
    /// Returns [`JpegError`] if the headers are missing or invalid, if the image has more than `max_pixels`
    /// pixels, or if zune-jpeg does not support this kind of file.
    pub fn open(file: &'a [u8], max_pixels: u64) -> Result<Self, JpegError> {
        let kind = match Baseline::open(file) {
            Some(baseline) => Kind::Baseline(Box::new(baseline)),
            None => Kind::Other(Box::new(read_headers(file, max_pixels)?)),
        };
        let jpeg = Self { file, max_pixels, kind };
        let size = jpeg.size();
        if size.pixels() > max_pixels {
            return Err(JpegError::TooLarge { size, max_pixels });
        }
        Ok(jpeg)
    }

    /// Returns the width and height of the image.
    pub fn size(&self) -> Size {
        match &self.kind {
            Kind::Baseline(baseline) => baseline.size(),
            Kind::Other(decoder) => {
                let (width, height) = decoder.dimensions().unwrap_or_default();
                // The casts keep the values: both have 16 bits in the file.
                Size::new(width as u32, height as u32)
            }
        }
    }

    /// Decodes at least `area` into `pixels`, and replaces their previous content: RGB, three bytes per
    /// pixel, row by row from the top. Returns the area that was decoded: `area` or the whole image.
    ///
    /// Whether this succeeds does not depend on `area`. After an error, `pixels` holds arbitrary bytes.
    ///
    /// # Errors
    /// Returns [`JpegError`] if coded pixels are missing or damaged.
    ///
    /// # Panics
    /// If `area` is empty or not inside the image.
    pub fn decode(self, area: Area, pixels: &mut Vec<u8>, buffers: &mut Buffers) -> Result<Area, JpegError> {
        let size = self.size();
        assert!(area.is_part_of(size), "{area:?} is not a part of an image of {size:?}");
        let decoder = match self.kind {
            Kind::Baseline(baseline) => match baseline.decode(area, pixels, buffers) {
                Some(()) => return Ok(area),
                // zune-jpeg accepts more kinds of files, and its errors name the reason.
                None => Box::new(read_headers(self.file, self.max_pixels)?),
            },
            Kind::Other(decoder) => decoder,
        };
        check(self.file, self.max_pixels)?;
        decode_whole(decoder, size, pixels)
    }
}

type Decoder<'a> = JpegDecoder<ZCursor<&'a [u8]>>;

/// Reads the headers with zune-jpeg.
fn read_headers(file: &[u8], max_pixels: u64) -> Result<Decoder<'_>, JpegError> {
    let options = DecoderOptions::default()
        .set_max_width(usize::from(u16::MAX))
        .set_max_height(usize::from(u16::MAX))
        .jpeg_set_out_colorspace(ColorSpace::RGB);
    let mut decoder = JpegDecoder::new_with_options(ZCursor::new(file), options);
    decoder.decode_headers().map_err(|error| match check(file, max_pixels) {
        Err(JpegError::Truncated) => JpegError::Truncated,
        _ => refused(&error),
    })?;
    if decoder.dimensions().is_none() {
        return Err(refused(&"no header"));
    }
    Ok(decoder)
}

/// Decodes the whole image with zune-jpeg.
fn decode_whole(mut decoder: Box<Decoder<'_>>, size: Size, pixels: &mut Vec<u8>) -> Result<Area, JpegError> {
    // The bytes must be zero, because zune-jpeg may leave out pixels, and those must not show the previous
    // image.
    pixels.clear();
    pixels.resize(size.pixels() as usize * CHANNELS, 0);
    // Without strict mode zune-jpeg fills the parts that it cannot decode with grey and returns no error. The
    // headers are read without strict mode, because stray bytes between them are harmless and do occur.
    decoder.set_options(decoder.options().set_strict_mode(true));
    decoder.decode_into(pixels).map_err(|error| refused(&error))?;
    Ok(Area::new(0, 0, size))
}

/// Opens a file and decodes the whole image with zune-jpeg.
#[cfg(test)]
fn open_and_decode_whole(file: &[u8]) -> Result<(Size, Vec<u8>), JpegError> {
    let decoder = Box::new(read_headers(file, u64::MAX)?);
    let jpeg = Jpeg { file, max_pixels: u64::MAX, kind: Kind::Other(decoder) };
    let (size, mut pixels) = (jpeg.size(), Vec::new());
    jpeg.decode(Area::new(0, 0, size), &mut pixels, &mut Buffers::default())?;
    Ok((size, pixels))
}

fn refused(reason: &dyn ToString) -> JpegError {
    // zune-jpeg puts some of its messages in quotes.
    JpegError::Refused(reason.to_string().trim_matches('"').to_owned())
}

impl std::fmt::Debug for Kind<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Baseline(baseline) => f.debug_tuple("Baseline").field(baseline).finish(),
            Self::Other(_) => f.debug_tuple("Other").finish_non_exhaustive(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASELINE: &[u8] = include_bytes!("../../tests/image_folder/fixtures/baseline.jpg");
    const PROGRESSIVE: &[u8] = include_bytes!("../../tests/image_folder/fixtures/progressive.jpg");

    #[test]
    fn only_the_area_of_a_baseline_file_is_decoded() {
        let area = Area::new(3, 4, Size::new(5, 6));
        let whole = Area::new(0, 0, Size::new(45, 30));
        for (file, expected) in [(BASELINE, area), (PROGRESSIVE, whole)] {
            let (mut pixels, mut buffers) = (vec![1; 99_999], Buffers::default());
            let jpeg = Jpeg::open(file, 45 * 30).unwrap();
            assert_eq!(jpeg.size(), whole.size);
            assert_eq!(jpeg.decode(area, &mut pixels, &mut buffers), Ok(expected));
            assert_eq!(pixels.len() as u64, expected.size.pixels() * 3);
        }
    }

    #[test]
    fn an_image_of_more_pixels_than_allowed_is_refused() {
        for file in [BASELINE, PROGRESSIVE] {
            let error = Jpeg::open(file, 45 * 30 - 1).unwrap_err();
            assert_eq!(error, JpegError::TooLarge { size: Size::new(45, 30), max_pixels: 45 * 30 - 1 });
        }
    }

    #[test]
    #[should_panic(expected = "is not a part of an image")]
    fn an_area_outside_the_image_panics() {
        let jpeg = Jpeg::open(BASELINE, u64::MAX).unwrap();
        let area = Area::new(u32::MAX, 0, Size::new(2, 1));
        drop(jpeg.decode(area, &mut Vec::new(), &mut Buffers::default()));
    }
}
