//! Decodes the first image of TIFF files with the `tiff` crate.

use std::{
    borrow::Cow,
    io::{self, Cursor},
};

use tiff::{
    ColorType, TiffError,
    decoder::{Decoder, DecodingResult, Limits},
    tags::Tag,
};

use super::{
    super::{error::ImageProblem, picture::MAX_PIXELS},
    Format, Orientation, Picture, RGB, Size, check, clipped,
    exif::short_tag,
    make_room, unpacked,
};

const PHOTOMETRIC: u16 = 262;
const PALETTE: u16 = 3;
const BLACK_IS_ZERO: u16 = 1;

/// Decodes the image, and returns its orientation.
pub(super) fn decode(bytes: &[u8], picture: &mut Picture) -> Result<Orientation, ImageProblem> {
    let (bytes, has_palette) = without_palette(bytes);
    let mut limits = Limits::default();
    limits.decoding_buffer_size = MAX_PIXELS as usize * 8;
    let decoder = Decoder::new(Cursor::new(&*bytes)).map_err(problem)?;
    let mut decoder = decoder.with_limits(limits);
    let (width, height) = decoder.dimensions().map_err(problem)?;
    let size = Size::new(width, height);
    check(size)?;
    let color = decoder.colortype().map_err(problem)?;
    let palette = if has_palette {
        let colors = decoder.get_tag_u16_vec(Tag::ColorMap).map_err(problem)?;
        // Pillow uses the upper 8 bits.
        Some(colors.iter().map(|color| (color >> 8) as u8).collect::<Vec<u8>>())
    } else {
        None
    };
    let is_premultiplied =
        decoder.find_tag_unsigned_vec::<u16>(Tag::ExtraSamples).map_err(problem)? == Some(vec![1]);
    let mut found = DecodingResult::U8(Vec::new());
    let layout = decoder.read_image_to_buffer(&mut found).map_err(problem)?;
    if layout.planes > 1 {
        return Err(Format::Tiff.malformed("its channels are in planes, which is not supported"));
    }
    let samples = samples(found, color, width, palette.is_some())?;

    let channels = usize::from(color.num_samples());
    if samples.len() < size.pixels() as usize * channels {
        return Err(ImageProblem::Truncated { format: Format::Tiff.name() });
    }
    make_room(picture, size, RGB)?;
    for (pixel, found) in picture.bytes_mut().as_chunks_mut().0.iter_mut().zip(samples.chunks_exact(channels))
    {
        *pixel = match (color, found) {
            (ColorType::Gray(_), &[index]) if palette.is_some() => {
                let colors = palette.as_deref().unwrap_or_default();
                let colour = |channel: usize| colors.get(channel * colors.len() / 3 + usize::from(index));
                [0, 1, 2].map(|channel| colour(channel).copied().unwrap_or(0))
            }
            (ColorType::CMYK(_), &[cyan, magenta, yellow, black]) => {
                [cyan, magenta, yellow].map(|ink| without_ink(ink, black))
            }
            (ColorType::RGBA(_), &[red, green, blue, alpha]) if is_premultiplied => {
                [red, green, blue].map(|colour| unmultiplied(colour, alpha))
            }
            (ColorType::RGB(_) | ColorType::RGBA(_), &[red, green, blue, ..]) => [red, green, blue],
            (ColorType::Gray(_) | ColorType::Multiband { num_samples: 2, .. }, &[grey, ..]) => [grey; 3],
            _ => return Err(Format::Tiff.malformed(&format!("its pixels are of the type {color:?}"))),
        };
    }
    Ok(Orientation::of_tiff(&bytes))
}

/// Returns the file as one that the crate can decode: of a palette, the crate decodes only the indices, if
/// they are declared as grey. The flag is true if the image has a palette.
fn without_palette(bytes: &[u8]) -> (Cow<'_, [u8]>, bool) {
    match short_tag(bytes, PHOTOMETRIC) {
        Some((position, PALETTE)) => {
            let mut grey = bytes.to_vec();
            let number = if bytes.starts_with(b"II") {
                BLACK_IS_ZERO.to_le_bytes()
            } else {
                BLACK_IS_ZERO.to_be_bytes()
            };
            grey[position..position + 2].copy_from_slice(&number);
            (grey.into(), true)
        }
        _ => (bytes.into(), false),
    }
}

/// Returns the samples with 8 bits each, as Pillow converts them.
fn samples(
    found: DecodingResult,
    color: ColorType,
    width: u32,
    is_palette: bool,
) -> Result<Vec<u8>, ImageProblem> {
    let bits = color.bit_depth();
    match found {
        DecodingResult::U8(samples) if bits == 8 => Ok(samples),
        DecodingResult::U8(packed) if matches!(bits, 1 | 2 | 4) => {
            let mut samples = unpacked(&packed, width, bits.into());
            if !is_palette {
                samples.iter_mut().for_each(|sample| *sample *= 255 / ((1 << bits) - 1));
            }
            Ok(samples)
        }
        DecodingResult::U16(samples) if matches!(color, ColorType::Gray(_)) => {
            Ok(samples.into_iter().map(clipped).collect())
        }
        DecodingResult::U16(samples) => Ok(samples.into_iter().map(|sample| (sample >> 8) as u8).collect()),
        _ => Err(Format::Tiff.malformed(&format!("its pixels are of the type {color:?}"))),
    }
}

/// The part of white light that an ink and black leave, with Pillow's rounding.
fn without_ink(ink: u8, black: u8) -> u8 {
    let light = 255 - u32::from(black);
    let product = u32::from(ink) * light + 128;
    light.saturating_sub((product + (product >> 8)) >> 8) as u8
}

/// A colour that was multiplied by its alpha.
fn unmultiplied(colour: u8, alpha: u8) -> u8 {
    if alpha == 0 { 0 } else { (255 * u32::from(colour) / u32::from(alpha)).min(255) as u8 }
}

fn problem(error: TiffError) -> ImageProblem {
    match error {
        TiffError::IoError(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            ImageProblem::Truncated { format: Format::Tiff.name() }
        }
        error => Format::Tiff.malformed(&error.to_string()),
    }
}
