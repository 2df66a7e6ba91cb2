//! JPEG: what a crop needs by our own decoder for the usual kind of files, all others by zune-jpeg.

use zune_jpeg::{
    JpegDecoder,
    zune_core::{bytestream::ZCursor, colorspace::ColorSpace, options::DecoderOptions},
};

use super::{super::error::ImageProblem, Area, Picture, Size, baseline, baseline::Bench, check, make_room};

const FORMAT: &str = "JPEG";

/// A file of which the size is known.
pub(in super::super) struct Jpeg<'a> {
    file: &'a [u8],
    kind: Kind<'a>,
}

enum Kind<'a> {
    Baseline(Box<baseline::Jpeg<'a>>),
    Other(Box<Decoder<'a>>),
}

impl<'a> Jpeg<'a> {
    pub(super) fn open(file: &'a [u8]) -> Result<Self, ImageProblem> {
        let jpeg = match baseline::Jpeg::open(file) {
            Some(jpeg) => Self { file, kind: Kind::Baseline(Box::new(jpeg)) },
            None => Self { file, kind: Kind::Other(Box::new(headers(file)?)) },
        };
        check(jpeg.size())?;
        Ok(jpeg)
    }

    pub(super) fn size(&self) -> Size {
        match &self.kind {
            Kind::Baseline(jpeg) => jpeg.size(),
            Kind::Other(decoder) => {
                let (width, height) = decoder.dimensions().unwrap_or_default();
                // Both are of 16 bits in the file.
                Size::new(width as u32, height as u32)
            }
        }
    }

    /// Decodes at least `area`.
    pub(super) fn decode(
        self,
        area: Area,
        picture: &mut Picture,
        bench: &mut Bench,
    ) -> Result<(), ImageProblem> {
        let size = self.size();
        let decoder = match self.kind {
            Kind::Baseline(jpeg) => match jpeg.decode(area, picture, bench) {
                Some(()) => return Ok(()),
                // It can put up with more, and says what is wrong.
                None => Box::new(headers(self.file)?),
            },
            Kind::Other(decoder) => decoder,
        };
        whole(decoder, size, picture)
    }
}

type Decoder<'a> = JpegDecoder<ZCursor<&'a [u8]>>;

/// Reads the headers of a file that has an end.
fn headers(file: &[u8]) -> Result<Decoder<'_>, ImageProblem> {
    if !is_whole(file) {
        return Err(ImageProblem::Truncated { format: FORMAT });
    }
    let options = DecoderOptions::default()
        .set_max_width(usize::from(u16::MAX))
        .set_max_height(usize::from(u16::MAX))
        .jpeg_set_out_colorspace(ColorSpace::RGB);
    let mut decoder = JpegDecoder::new_with_options(ZCursor::new(file), options);
    decoder.decode_headers().map_err(|error| malformed(&error))?;
    if decoder.dimensions().is_none() {
        return Err(malformed(&"no header"));
    }
    Ok(decoder)
}

fn whole(mut decoder: Box<Decoder<'_>>, size: Size, picture: &mut Picture) -> Result<(), ImageProblem> {
    make_room(picture, size.width, size.height, 3)?;
    // Strict from here on: else the decoder fills with grey what it cannot decode, and says that all went well. Not before: stray
    // bytes between headers are harmless and do occur.
    decoder.set_options(decoder.options().set_strict_mode(true));
    decoder.decode_into(picture.bytes_mut()).map_err(|error| malformed(&error))
}

/// Decodes all of a file without our own decoder.
#[cfg(test)]
pub(super) fn decode_whole(file: &[u8], picture: &mut Picture) -> Result<(), ImageProblem> {
    let jpeg = Jpeg { file, kind: Kind::Other(Box::new(headers(file)?)) };
    jpeg.decode(Area::default(), picture, &mut Bench::default())
}

fn malformed(reason: &dyn ToString) -> ImageProblem {
    // The decoder puts some of its messages in quotes.
    ImageProblem::Malformed { format: FORMAT, reason: reason.to_string().trim_matches('"').to_owned() }
}

/// True when the end-of-image marker is there. Decoders take the end of the file for the end of the image; this does not.
fn is_whole(bytes: &[u8]) -> bool {
    const END_OF_IMAGE: [u8; 2] = [0xFF, 0xD9];
    // From behind, since in most files it is last. It occurs neither in the coded pixels nor in what may stand between them, but
    // in an embedded thumbnail, hence not before them.
    start_of_scan(bytes).is_some_and(|scan| bytes[scan..].windows(2).rev().any(|pair| pair == END_OF_IMAGE))
}

/// Where the first scan's header starts, behind all tables and metadata.
fn start_of_scan(bytes: &[u8]) -> Option<usize> {
    const START_OF_SCAN: u8 = 0xDA;
    let mut place = 2;
    loop {
        place += bytes.get(place..)?.iter().position(|&byte| byte == 0xFF)?;
        match *bytes.get(place + 1)? {
            START_OF_SCAN => return Some(place + 2),
            // Padding, and markers without a length.
            0xFF => place += 1,
            0x00 | 0x01 | 0xD0..=0xD9 => place += 2,
            _ => {
                let length = bytes.get(place + 2..)?.first_chunk()?;
                place += 2 + usize::from(u16::from_be_bytes(*length));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn jpeg(segments: &[&[u8]]) -> Vec<u8> {
        [&[0xFF, 0xD8], segments.concat().as_slice()].concat()
    }

    #[test]
    fn a_thumbnails_end_is_not_the_images() {
        let metadata = [0xFF, 0xE1, 0, 6, 0xFF, 0xD8, 0xFF, 0xD9];
        let scan = [0xFF, 0xDA, 0, 2, 1, 2, 0xFF, 0, 3];
        let end = [0xFF, 0xD9];
        assert!(is_whole(&jpeg(&[&metadata, &scan, &end])));
        assert!(!is_whole(&jpeg(&[&metadata, &scan])));
        assert!(!is_whole(&jpeg(&[&metadata])));
        assert!(!is_whole(&jpeg(&[&metadata[..5]])));
    }

    #[test]
    fn padding_and_bytes_behind_the_end_do_no_harm() {
        let scan = [0xFF, 0xFF, 0xDA, 0, 2, 1, 2];
        assert!(is_whole(&jpeg(&[&[0, 0], &scan, &[0xFF, 0xD9], &[0; 40]])));
        assert!(!is_whole(&jpeg(&[])));
        assert!(!is_whole(&[0xFF, 0xD8, 0xFF]));
    }
}
