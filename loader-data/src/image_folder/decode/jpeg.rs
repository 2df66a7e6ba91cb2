//! JPEG, by zune-jpeg.

use zune_jpeg::{
    JpegDecoder,
    zune_core::{bytestream::ZCursor, colorspace::ColorSpace, options::DecoderOptions},
};

use super::{super::error::ImageProblem, Picture, make_room};

const FORMAT: &str = "JPEG";

pub(super) fn decode(bytes: &[u8], picture: &mut Picture) -> Result<(), ImageProblem> {
    if !is_whole(bytes) {
        return Err(ImageProblem::Truncated { format: FORMAT });
    }
    let malformed = |reason: &dyn ToString| {
        // The decoder puts some of its messages in quotes.
        ImageProblem::Malformed { format: FORMAT, reason: reason.to_string().trim_matches('"').to_owned() }
    };
    let options = DecoderOptions::default()
        .set_max_width(usize::from(u16::MAX))
        .set_max_height(usize::from(u16::MAX))
        .jpeg_set_out_colorspace(ColorSpace::RGB);
    let mut decoder = JpegDecoder::new_with_options(ZCursor::new(bytes), options);
    decoder.decode_headers().map_err(|error| malformed(&error))?;
    let info = decoder.info().ok_or_else(|| malformed(&"no header"))?;
    make_room(picture, info.width.into(), info.height.into(), 3)?;

    // Strict from here on: else the decoder fills with grey what it cannot decode, and says that all went well. Not before: stray
    // bytes between headers are harmless and do occur.
    decoder.set_options(decoder.options().set_strict_mode(true));
    decoder.decode_into(picture.bytes_mut()).map_err(|error| malformed(&error))
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
