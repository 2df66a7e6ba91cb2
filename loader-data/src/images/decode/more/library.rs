//! Decodes BMP and WebP files with the `image` crate.

use std::io::{self, Cursor};

use image::{
    ColorType, ImageDecoder, ImageError,
    codecs::{bmp::BmpDecoder, webp::WebPDecoder},
};

use super::super::{super::error::ImageProblem, Format, Orientation, Picture, Size, make_room};

pub(super) fn bmp(bytes: &[u8], picture: &mut Picture) -> Result<(), ImageProblem> {
    let decoder = BmpDecoder::new(Cursor::new(bytes)).map_err(|error| problem(Format::Bmp, error))?;
    decode(Format::Bmp, decoder, picture)?;
    // Colours of 5 and 6 bits: the crate rounds to the nearest, and Pillow down.
    if let Some(maxima) = maxima(bytes) {
        let down = |value: u8, max: u16| ((u16::from(value) * max + 127) / 255 * 255 / max) as u8;
        for pixel in picture.bytes_mut().as_chunks_mut::<3>().0 {
            *pixel = std::array::from_fn(|channel| down(pixel[channel], maxima[channel]));
        }
    }
    Ok(())
}

/// Returns the largest values of red, green and blue if a pixel of the BMP has 16 bits with 5 or 6 for each colour.
fn maxima(bytes: &[u8]) -> Option<[u16; 3]> {
    let number = |position: usize| Some(u32::from_le_bytes(*bytes.get(position..)?.first_chunk()?));
    // A shorter header has the number of bits at another position.
    if number(14)? < 40 || number(28)? & 0xFFFF != 16 {
        return None;
    }
    let masks = || Some([number(54)?, number(58)?, number(62)?]);
    match (number(30)?, masks()) {
        (0, _) | (3, Some([0x7C00, 0x03E0, 0x001F])) => Some([31; 3]),
        (3, Some([0xF800, 0x07E0, 0x001F])) => Some([31, 63, 31]),
        _ => None,
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn pixels(header: &[u8], data: &[u8]) -> Vec<u8> {
        let start = (14 + header.len()) as u32;
        let file = [b"BM", &[0; 8][..], &start.to_le_bytes(), header, data].concat();
        let mut picture = Picture::default();
        bmp(&file, &mut picture).unwrap();
        picture.bytes().to_vec()
    }

    #[test]
    fn pixels_after_a_short_header_are_not_read_as_its_number_of_bits() {
        for red in [15, 16, 17] {
            // Width, height, planes and bits have 16 bits each, and the pixels follow at once.
            let header = [12, 0, 0, 0, 2, 0, 1, 0, 1, 0, 24, 0];
            let data = [3, 101, red, 200, 53, 7, 0, 0];
            assert_eq!(pixels(&header, &data), [red, 101, 3, 7, 53, 200]);
        }
    }

    #[test]
    fn only_colours_of_5_and_6_bits_are_rounded_down() {
        let pixel = |masks: [u32; 3], value: u16| {
            let header = [[40, 1, 1, 16 << 16 | 1, 3, 4], [0; 6]].concat()[..10].to_vec();
            let words: Vec<u32> = header.into_iter().chain(masks).collect();
            let header: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            pixels(&header, &[&value.to_le_bytes()[..], &[0; 2]].concat())
        };
        assert_eq!(pixel([0xF800, 0x7E0, 0x1F], 3 << 11 | 11 << 5 | 3), [24, 44, 24]);
        assert_eq!(pixel([0x7C00, 0x3E0, 0x1F], 3 << 10 | 3 << 5 | 3), [24; 3]);
        assert_eq!(pixel([0xF00, 0xF0, 0xF], 0x123), [0x11, 0x22, 0x33]);
    }
}
