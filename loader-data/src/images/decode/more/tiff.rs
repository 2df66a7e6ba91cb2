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

use super::super::{
    super::{
        error::ImageProblem,
        picture::{MAX_PIXELS, RGB},
    },
    Format, Orientation, Picture, Size, check, clipped,
    exif::short_tag,
    make_room, unpacked,
};

const COMPRESSION: u16 = 259;
const PHOTOMETRIC: u16 = 262;
const SAMPLES_PER_PIXEL: u16 = 277;
const PREDICTOR: u16 = 317;
const EXTRA_SAMPLES: u16 = 338;

const PALETTE: u16 = 3;
const BLACK_IS_ZERO: u16 = 1;
const NO_PREDICTOR: u16 = 1;
const UNASSOCIATED_ALPHA: u16 = 2;
const JPEG: u16 = 7;

/// The compressions that have a predictor: LZW, and Deflate with both of its numbers.
const WITH_PREDICTOR: [u16; 3] = [5, 8, 32946];

/// Decodes the image, and returns its orientation.
pub(super) fn decode(bytes: &[u8], picture: &mut Picture) -> Result<Orientation, ImageProblem> {
    let (bytes, has_palette) = decodable(bytes);
    let mut limits = Limits::default();
    limits.decoding_buffer_size = MAX_PIXELS as usize * 8;
    let decoder = Decoder::new(Cursor::new(&*bytes)).map_err(problem)?;
    let mut decoder = decoder.with_limits(limits);
    let (width, height) = decoder.dimensions().map_err(problem)?;
    let size = Size::new(width, height);
    check(size)?;
    let color = decoder.colortype().map_err(problem)?;
    check_tags(&mut decoder, color, has_palette)?;
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
            (ColorType::Gray(_) | ColorType::Multiband { num_samples: 2, .. }, &[index, ..])
                if palette.is_some() =>
            {
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

/// Returns the file as one that the crate can decode. The flag is true if the image has a palette.
fn decodable(bytes: &[u8]) -> (Cow<'_, [u8]>, bool) {
    let value = |tag| short_tag(bytes, tag).map(|(_, value)| value);
    let has_palette = value(PHOTOMETRIC) == Some(PALETTE);
    let mut changes = Vec::new();
    // Of a palette, the crate decodes only the indices, if they are declared as grey.
    if has_palette {
        changes.push((PHOTOMETRIC, BLACK_IS_ZERO));
    }
    // The crate drops a fourth sample of no meaning before it undoes the predictor, but keeps transparency.
    if [PHOTOMETRIC, SAMPLES_PER_PIXEL, EXTRA_SAMPLES].map(value) == [Some(2), Some(4), Some(0)] {
        changes.push((EXTRA_SAMPLES, UNASSOCIATED_ALPHA));
    }
    // The crate undoes a predictor that the compression does not have.
    if value(COMPRESSION).is_some_and(|number| !WITH_PREDICTOR.contains(&number)) {
        changes.push((PREDICTOR, NO_PREDICTOR));
    }
    let mut changed = Cow::from(bytes);
    for (tag, number) in changes {
        if let Some((position, _)) = short_tag(bytes, tag) {
            let number = if bytes.starts_with(b"II") { number.to_le_bytes() } else { number.to_be_bytes() };
            changed.to_mut()[position..position + 2].copy_from_slice(&number);
        }
    }
    (changed, has_palette)
}

/// Fails if the crate would decode the image to other pixels than those in the file.
fn check_tags(
    decoder: &mut Decoder<Cursor<&[u8]>>,
    color: ColorType,
    has_palette: bool,
) -> Result<(), ImageProblem> {
    let mut number = |tag| decoder.find_tag_unsigned::<u16>(tag).map_err(problem);
    let samples = number(Tag::SamplesPerPixel)?.unwrap_or(1);
    let bits = color.bit_depth();
    let refused = |reason: &str| Err(Format::Tiff.malformed(reason));
    if color.num_samples() != samples {
        return refused(&format!("its pixels have {samples} samples, which is not supported for {color:?}"));
    }
    if (samples > 1 && bits < 8) || (has_palette && bits > 8) {
        return refused(&format!("its pixels have {samples} samples of {bits} bits, which is not supported"));
    }
    if number(Tag::FillOrder)? == Some(2) {
        return refused("the bits of its bytes are in reverse order, which is not supported");
    }
    let compression = number(Tag::Compression)?.unwrap_or(1);
    if compression == JPEG && samples == 2 {
        return refused(
            "it has grey pixels with transparency that are compressed with JPEG, which is not supported",
        );
    }
    if !WITH_PREDICTOR.contains(&compression)
        && number(Tag::Predictor)?.is_some_and(|found| found != NO_PREDICTOR)
    {
        return refused("it has a predictor, but no compression that uses one");
    }
    Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Width and height of the images.
    const SIDE: u16 = 16;

    fn sample(x: u16, y: u16, sample: u16) -> u8 {
        (5 * x + 16 * y + 70 * sample) as u8
    }

    /// Writes a TIFF with one strip of `data`. A tag is given with its 16-bit values.
    fn file(data: &[u8], tags: &[(u16, &[u16])]) -> Vec<u8> {
        let len = [data.len() as u16];
        let mut tags = tags.to_vec();
        let own: [(u16, &[u16]); 5] =
            [(256, &[SIDE]), (257, &[SIDE]), (273, &[8]), (278, &[SIDE]), (279, &len)];
        tags.extend(own);
        tags.sort_unstable();
        let (mut directory, mut values) = ((tags.len() as u16).to_le_bytes().to_vec(), Vec::new());
        let start = 8 + data.len().next_multiple_of(2);
        for (tag, numbers) in tags {
            let mut bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
            directory.extend([tag.to_le_bytes(), 3u16.to_le_bytes()].concat());
            directory.extend((numbers.len() as u32).to_le_bytes());
            if bytes.len() > 4 {
                let position = (start + values.len()) as u32;
                values.append(&mut bytes);
                bytes = position.to_le_bytes().to_vec();
            }
            bytes.resize(4, 0);
            directory.extend(bytes);
        }
        let mut file = [b"II*\0", &((start + values.len()) as u32).to_le_bytes()[..], data].concat();
        file.resize(start, 0);
        [file, values, directory, vec![0; 4]].concat()
    }

    /// The samples of all pixels. With `predicted`, each is the difference to the pixel before.
    fn samples(count: u16, predicted: bool) -> Vec<u8> {
        let mut samples = Vec::new();
        for (y, x) in (0..SIDE).flat_map(|y| (0..SIDE).map(move |x| (y, x))) {
            let before = |number| if predicted && x > 0 { sample(x - 1, y, number) } else { 0 };
            samples.extend((0..count).map(|number| sample(x, y, number).wrapping_sub(before(number))));
        }
        samples
    }

    fn deflated(data: &[u8]) -> Vec<u8> {
        use std::io::Write;
        let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::default());
        encoder.write_all(data).unwrap();
        encoder.finish().unwrap()
    }

    fn decoded(file: &[u8]) -> Result<Vec<u8>, ImageProblem> {
        let mut picture = Picture::default();
        decode(file, &mut picture)?;
        Ok(picture.bytes()[..3 * usize::from(SIDE * SIDE)].to_vec())
    }

    fn refusal(file: &[u8]) -> String {
        decoded(file).unwrap_err().to_string()
    }

    #[test]
    fn a_fourth_sample_is_dropped_after_the_predictor() {
        let colours = samples(3, false);
        for (count, extra) in [(3, None), (4, Some(0)), (4, Some(2)), (4, None)] {
            for (compression, predicted) in [(1, false), (8, false), (8, true)] {
                let data = samples(count, predicted);
                let data = if compression == 8 { deflated(&data) } else { data };
                let bits = vec![8; count.into()];
                let (compression, predictor) = ([compression], [1 + u16::from(predicted)]);
                let (samples, extra) = ([count], extra.map(|extra| [extra]));
                let mut tags: Vec<(u16, &[u16])> =
                    vec![(258, &bits), (259, &compression), (262, &[2]), (277, &samples), (317, &predictor)];
                tags.extend(extra.iter().map(|extra| (338, &extra[..])));
                assert!(decoded(&file(&data, &tags)).unwrap() == colours, "{tags:?}");
            }
        }
        let five: [(u16, &[u16]); 5] =
            [(258, &[8; 5]), (259, &[1]), (262, &[2]), (277, &[5]), (338, &[0, 0])];
        let error = refusal(&file(&samples(5, false), &five));
        assert!(error.contains("5 samples"), "{error}");
    }

    #[test]
    fn a_fourth_sample_of_tiles_is_dropped() {
        // The image covers only a part of its tile.
        let side = 32u16;
        let mut data = Vec::new();
        for (y, x) in (0..side).flat_map(|y| (0..side).map(move |x| (y, x))) {
            let inside = x < SIDE && y < SIDE;
            data.extend((0..4).map(|number| if inside { sample(x, y, number) } else { 9 }));
        }
        let len = [data.len() as u16];
        let mut tags: Vec<(u16, &[u16])> =
            vec![(258, &[8; 4]), (259, &[1]), (262, &[2]), (277, &[4]), (338, &[0])];
        let places: [(u16, &[u16]); 4] = [(322, &[32]), (323, &[32]), (324, &[8]), (325, &len)];
        tags.extend(places);
        let strips = file(&data, &tags);
        // The tags of strips become tags without a meaning.
        let mut tiles = strips.clone();
        let directory = u32::from_le_bytes(*strips[4..].first_chunk().unwrap()) as usize;
        for entry in tiles[directory + 2..].chunks_exact_mut(12) {
            let tag = u16::from_le_bytes([entry[0], entry[1]]);
            if matches!(tag, 273 | 278 | 279) {
                entry[..2].copy_from_slice(&(tag + 1000).to_le_bytes());
            }
        }
        assert!(decoded(&tiles).unwrap() == samples(3, false));
    }

    #[test]
    fn a_palette_with_transparency_has_its_colours() {
        let palette: Vec<u16> = (0..768).map(|number| (number * 7 % 256) << 8).collect();
        let of = |count: u16| {
            let (bits, samples_per_pixel) = (vec![8; count.into()], [count]);
            let mut tags: Vec<(u16, &[u16])> =
                vec![(258, &bits), (259, &[1]), (262, &[3]), (277, &samples_per_pixel), (320, &palette)];
            if count > 1 {
                tags.push((338, &[2]));
            }
            decoded(&file(&samples(count, false), &tags)).unwrap()
        };
        assert!(of(2) == of(1));
        let index = usize::from(sample(3, 5, 0));
        let colour = [0, 256, 512].map(|start| (palette[start + index] >> 8) as u8);
        assert_eq!(of(1)[3 * (5 * usize::from(SIDE) + 3)..][..3], colour);
    }

    #[test]
    fn a_predictor_without_compression_is_ignored() {
        let tags: [(u16, &[u16]); 5] = [(258, &[8; 3]), (259, &[1]), (262, &[2]), (277, &[3]), (317, &[2])];
        assert!(decoded(&file(&samples(3, false), &tags)).unwrap() == samples(3, false));
        let unknown: Vec<_> = tags.into_iter().filter(|(tag, _)| *tag != 259).collect();
        let error = refusal(&file(&samples(3, false), &unknown));
        assert!(error.contains("predictor"), "{error}");
    }

    #[test]
    fn bits_that_the_decoder_would_misread_are_refused() {
        let grey = |bits: &[u16], order: &[u16]| {
            let count = [bits.len() as u16];
            file(&samples(2, false), &[(258, bits), (259, &[1]), (262, &[1]), (266, order), (277, &count)])
        };
        decoded(&grey(&[8], &[1])).unwrap();
        decoded(&grey(&[1], &[1])).unwrap();
        let error = refusal(&grey(&[1], &[2]));
        assert!(error.contains("reverse order"), "{error}");
        let error = refusal(&grey(&[2, 2], &[1]));
        assert!(error.contains("2 samples of 2 bits"), "{error}");
    }
}
