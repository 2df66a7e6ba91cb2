//! Decodes PNG files with the `png` crate.

use std::io::{self, Cursor};

use png::{BitDepth, ColorType, Decoder, DecodingError, Transformations};

use super::{
    super::error::ImageProblem, Format, Orientation, Picture, Size, check, clipped, make_room, unpacked,
};

/// Decodes the image, and returns the orientation in its metadata.
pub(super) fn decode(bytes: &[u8], picture: &mut Picture) -> Result<Orientation, ImageProblem> {
    let mut decoder = Decoder::new(Cursor::new(bytes));
    decoder.set_ignore_text_chunk(true);
    decoder.set_ignore_iccp_chunk(true);
    let header = decoder.read_header_info().map_err(problem)?;
    let is_grey16 = header.color_type == ColorType::Grayscale && header.bit_depth == BitDepth::Sixteen;
    decoder.set_transformations(if is_grey16 {
        Transformations::IDENTITY
    } else {
        // Turns palettes into colours, and 1, 2, 4 and 16 bits into 8 bits.
        Transformations::normalize_to_color8()
    });
    let mut reader = decoder.read_info().map_err(problem)?;
    let (width, height) = reader.info().size();
    let channels = reader.output_color_type().0.samples();
    make_room(picture, Size::new(width, height), if is_grey16 { 2 } else { channels })?;
    reader.next_frame(picture.bytes_mut()).map_err(problem)?;
    if is_grey16 {
        picture.map_to_rgb(2, |grey| [clipped(u16::from_be_bytes([grey[0], grey[1]])); 3])
    } else {
        picture.make_rgb(channels)
    }
    if reader.info().exif_metadata.is_none() {
        // The chunk may also follow the pixels. They are whole, so damage behind them does not matter.
        reader.finish().ok();
    }
    let exif = reader.info().exif_metadata.as_deref();
    Ok(exif.map_or_else(Orientation::default, Orientation::of_exif))
}

/// Decodes indices of a palette, or grey pixels of at most 8 bits, to one byte for each pixel. Does not scale
/// them.
pub(in super::super) fn indices(bytes: &[u8]) -> Result<(Size, Vec<u8>), ImageProblem> {
    let mut decoder = Decoder::new(Cursor::new(bytes));
    decoder.set_transformations(Transformations::IDENTITY);
    let mut reader = decoder.read_info().map_err(problem)?;
    let (info, (width, height)) = (reader.info(), reader.info().size());
    let has_indices = matches!(info.color_type, ColorType::Grayscale | ColorType::Indexed);
    let (bits, size) = (info.bit_depth as usize, Size::new(width, height));
    if !has_indices || bits > 8 {
        return Err(Format::Png.malformed("a mask has a palette, or grey pixels of at most 8 bits"));
    }
    check(size)?;
    let mut packed = vec![0; (width as usize * bits).div_ceil(8) * height as usize];
    reader.next_frame(&mut packed).map_err(problem)?;
    Ok((size, unpacked(&packed, width, bits)))
}

fn problem(error: DecodingError) -> ImageProblem {
    match error {
        DecodingError::IoError(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            ImageProblem::Truncated { format: Format::Png.name() }
        }
        error => Format::Png.malformed(&error.to_string()),
    }
}
