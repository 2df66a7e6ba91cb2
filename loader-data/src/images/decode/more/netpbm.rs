//! Decodes PBM, PGM and PPM files, also plain ones (P1 to P6), with Pillow's rounding.

use super::super::{
    super::{error::ImageProblem, picture::RGB},
    Format, Picture, Size, clipped, make_room,
};

pub(super) fn decode(bytes: &[u8], picture: &mut Picture) -> Result<(), ImageProblem> {
    let malformed = |reason: &str| Format::Netpbm.malformed(reason);
    let (is_plain, channels, is_bitmap) = match bytes.get(1) {
        Some(b'1') => (true, 1, true),
        Some(b'2') => (true, 1, false),
        Some(b'3') => (true, RGB, false),
        Some(b'4') => (false, 1, true),
        Some(b'5') => (false, 1, false),
        _ => (false, RGB, false),
    };
    let mut rest = &bytes[2..];
    let mut header = || number(&mut rest);
    let size = Size::new(header()?, header()?);
    let max = if is_bitmap { 1 } else { header()? };
    if !(1..=65_535).contains(&max) || size.pixels() == 0 {
        return Err(malformed("its size or its largest value is out of range"));
    }
    make_room(picture, size, RGB)?;
    let sample_bytes = if max > 255 { 2 } else { 1 };
    let row_bytes = if is_bitmap {
        (size.width as usize).div_ceil(8)
    } else {
        size.width as usize * channels * sample_bytes
    };
    // One byte of whitespace follows the header.
    let samples = rest.get(1..).unwrap_or_default();
    if !is_plain && samples.len() / row_bytes < size.height as usize {
        return Err(ImageProblem::Truncated { format: Format::Netpbm.name() });
    }
    for y in 0..size.height {
        let row = samples.get(y as usize * row_bytes..).unwrap_or_default();
        let mut value = |position: usize| match (is_plain, is_bitmap) {
            (true, true) => bit(&mut rest),
            (true, false) => number(&mut rest),
            (false, true) => Ok(u32::from(row[position / 8] >> (7 - position % 8) & 1)),
            (false, false) if sample_bytes == 1 => Ok(row[position].into()),
            (false, false) => Ok(u16::from_be_bytes([row[2 * position], row[2 * position + 1]]).into()),
        };
        for (x, pixel) in picture.row_mut(0, y, size.width).as_chunks_mut::<RGB>().0.iter_mut().enumerate() {
            for (channel, sample) in pixel.iter_mut().enumerate().take(channels) {
                let value = value(x * channels + channel)?.min(max);
                let value = if is_bitmap { 1 - value } else { value };
                *sample = scaled(value, max, channels == 1);
            }
            if channels == 1 {
                *pixel = [pixel[0]; RGB];
            }
        }
    }
    Ok(())
}

/// Scales a value of at most `max` to 8 bits; a grey value of more than 8 bits first to 16 bits.
fn scaled(value: u32, max: u32, is_grey: bool) -> u8 {
    let scale = |to: f64| (f64::from(value) / f64::from(max) * to).round_ties_even();
    if is_grey && max > 255 { clipped(scale(65_535.0) as u16) } else { scale(255.0) as u8 }
}

/// Skips whitespace and comments.
fn skip(rest: &mut &[u8]) {
    loop {
        *rest = rest.trim_ascii_start();
        if !rest.starts_with(b"#") {
            return;
        }
        let end = rest.iter().position(|byte| matches!(byte, b'\n' | b'\r')).unwrap_or(rest.len());
        *rest = &rest[end..];
    }
}

/// Reads a decimal number.
fn number(rest: &mut &[u8]) -> Result<u32, ImageProblem> {
    skip(rest);
    let digits = rest.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(rest.len());
    let (number, after) = rest.split_at(digits);
    if after.is_empty() && digits == 0 {
        return Err(ImageProblem::Truncated { format: Format::Netpbm.name() });
    }
    *rest = after;
    let number = std::str::from_utf8(number).ok().and_then(|number| number.parse().ok());
    number.ok_or_else(|| Format::Netpbm.malformed("it has a number that is invalid"))
}

/// Reads a digit of a plain bitmap; whitespace between them is optional.
fn bit(rest: &mut &[u8]) -> Result<u32, ImageProblem> {
    skip(rest);
    let (bit, after) = match *rest {
        [bit @ (b'0' | b'1'), after @ ..] => (bit, after),
        [] => return Err(ImageProblem::Truncated { format: Format::Netpbm.name() }),
        _ => return Err(Format::Netpbm.malformed("a bit is neither 0 nor 1")),
    };
    *rest = after;
    Ok(u32::from(bit - b'0'))
}
