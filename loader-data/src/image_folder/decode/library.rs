//! Decodes BMP and WebP files with the `image` crate.

use std::io::{self, Cursor};

use image::{
    ColorType, ImageDecoder, ImageError,
    codecs::{bmp::BmpDecoder, webp::WebPDecoder},
};

use super::{super::error::ImageProblem, Format, Orientation, Picture, Size, make_room};

pub(super) fn bmp(bytes: &[u8], picture: &mut Picture) -> Result<(), ImageProblem> {
    let decoder = BmpDecoder::new(Cursor::new(bytes)).map_err(|error| problem(Format::Bmp, error))?;
    decode(Format::Bmp, decoder, picture)?;
    // Colours of 5 and 6 bits: the crate rounds to the nearest, and Pillow down.
    if let Some(16) = bytes.get(28..).and_then(|bits| bits.first()) {
        let is_565 = bytes.get(58..62) == Some(&0x7E0u32.to_le_bytes()) && bytes.get(30) == Some(&3);
        let down = |value: u8, max: u16| ((u16::from(value) * max + 127) / 255 * 255 / max) as u8;
        for pixel in picture.bytes_mut().as_chunks_mut::<3>().0 {
            let [red, green, blue] = *pixel;
            *pixel = [down(red, 31), down(green, if is_565 { 63 } else { 31 }), down(blue, 31)];
        }
    }
    Ok(())
}

/// Decodes the first picture, and returns the orientation in its metadata.
pub(super) fn webp(bytes: &[u8], picture: &mut Picture) -> Result<Orientation, ImageProblem> {
    let failed = |error| problem(Format::WebP, error);
    let mut decoder = WebPDecoder::new(Cursor::new(bytes)).map_err(failed)?;
    let exif = decoder.exif_metadata().map_err(failed)?;
    decode(Format::WebP, decoder, picture)?;
    Ok(Orientation::of_exif(&exif.unwrap_or_default()))
}

fn decode(format: Format, decoder: impl ImageDecoder, picture: &mut Picture) -> Result<(), ImageProblem> {
    let (width, height) = decoder.dimensions();
    let (color, size) = (decoder.color_type(), Size::new(width, height));
    let pixel_bytes = usize::from(color.bytes_per_pixel());
    make_room(picture, size, pixel_bytes)?;
    let buffer = &mut picture.bytes_mut()[..size.pixels() as usize * pixel_bytes];
    decoder.read_image(buffer).map_err(|error| problem(format, error))?;
    match color {
        ColorType::L8 | ColorType::Rgb8 | ColorType::Rgba8 => picture.make_rgb(pixel_bytes),
        color => return Err(format.malformed(&format!("its pixels are of the type {color:?}"))),
    }
    Ok(())
}

fn problem(format: Format, error: ImageError) -> ImageProblem {
    match error {
        ImageError::IoError(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            ImageProblem::Truncated { format: format.name() }
        }
        error => format.malformed(&error.to_string()),
    }
}
