//! Files of each kind that can be decoded, and the errors of those that cannot.

use std::fs;

use loader_data::{ImageError, ImageFolder, ImageProblem};
use png::{BitDepth, ColorType};

use crate::support::{PHOTOS, dot, fixture, folder, load, planes, png};

/// Loads a file with the given name and content. Returns `[red, green, blue]`.
pub(crate) fn pixels(name: &str, bytes: &[u8]) -> Result<[Vec<u8>; 3], ImageError> {
    let made = folder(&[(&format!("class/{name}"), bytes)]);
    let images = ImageFolder::open_u8(made.path()).unwrap();
    match load(&images, 0) {
        Ok((image, _)) => Ok(planes(&image).map(<[u8]>::to_vec)),
        Err(error) => Err(error.downcast::<ImageError>().unwrap()),
    }
}

/// Loads a file that must fail. The error must name the file, and contain `reason` and `advice`.
pub(crate) fn problem(bytes: &[u8], reason: &str, advice: &str) -> ImageProblem {
    let error = pixels("broken.jpg", bytes).map(drop).unwrap_err();
    let message = error.to_string();
    for part in ["class/broken.jpg` ", reason, advice] {
        assert!(message.contains(part), "`{part}` is not in: {message}");
    }
    error.problem
}

pub(crate) fn photo(name: &str) -> Vec<u8> {
    fs::read(format!("{PHOTOS}/{name}")).unwrap()
}

#[test]
fn every_kind_of_png_is_decoded_to_rgb() {
    use BitDepth::{Eight, Four, One, Sixteen, Two};
    use ColorType::{Grayscale, GrayscaleAlpha, Indexed, Rgb, Rgba};

    type Case = (ColorType, BitDepth, &'static [u8], [[u8; 2]; 3]);

    // Each image has two pixels. As in Pillow, transparency is dropped, and of 16 bits the upper 8 are used,
    // but grey pixels above 255 become white.
    let palette = [10, 20, 30, 40, 50, 60];
    let cases: [Case; 13] = [
        (Grayscale, One, &[0b0100_0000], [[0, 255]; 3]),
        (Grayscale, Two, &[0b0110_0000], [[85, 170]; 3]),
        (Grayscale, Four, &[0x1F], [[17, 255]; 3]),
        (Grayscale, Eight, &[7, 200], [[7, 200]; 3]),
        (Grayscale, Sixteen, &[0, 200, 1, 0], [[200, 255]; 3]),
        (GrayscaleAlpha, Eight, &[7, 0, 200, 9], [[7, 200]; 3]),
        (GrayscaleAlpha, Sixteen, &[7, 1, 0, 0, 200, 1, 9, 9], [[7, 200]; 3]),
        (Rgb, Eight, &[1, 2, 3, 4, 5, 6], [[1, 4], [2, 5], [3, 6]]),
        (Rgb, Sixteen, &[1, 9, 2, 9, 3, 9, 4, 9, 5, 9, 6, 9], [[1, 4], [2, 5], [3, 6]]),
        (Rgba, Eight, &[1, 2, 3, 0, 4, 5, 6, 255], [[1, 4], [2, 5], [3, 6]]),
        (Rgba, Sixteen, &[1, 9, 2, 9, 3, 9, 0, 0, 4, 9, 5, 9, 6, 9, 0, 0], [[1, 4], [2, 5], [3, 6]]),
        (Indexed, One, &[0b0100_0000], [[10, 40], [20, 50], [30, 60]]),
        (Indexed, Eight, &[1, 0], [[40, 10], [50, 20], [60, 30]]),
    ];
    for (color, depth, bytes, expected) in cases {
        let file = png(2, 1, color, depth, bytes, &palette);
        let found = pixels("two.png", &file).unwrap();
        assert_eq!(found, expected.map(Vec::from), "{color:?}, {depth:?}");
    }
}

#[test]
fn the_content_of_a_file_decides_its_format() {
    assert_eq!(pixels("really-a.png.JPG", &dot()).unwrap(), [[128]; 3].map(Vec::from));
    assert_eq!(pixels("coffee.png", &photo("table/coffee.jpg")).unwrap()[0].len(), 600 * 400);
}

#[test]
fn a_grey_photograph_has_three_equal_channels() {
    let [red, green, blue] = pixels("brick.jpg", &photo("texture/brick.jpg")).unwrap();
    assert!(red == green && green == blue);
    assert!(red.iter().any(|&pixel| pixel != red[0]));
}

#[test]
fn progressive_and_cmyk_jpegs_are_decoded_to_rgb() {
    let file = |name| pixels(name, &fs::read(fixture(name)).unwrap()).unwrap();
    let mean =
        |plane: &Vec<u8>| plane.iter().map(|&pixel| f64::from(pixel)).sum::<f64>() / plane.len() as f64;
    // The expected means are those of Pillow.
    for (name, expected) in [
        ("baseline.jpg", [147.678, 111.441, 86.780]),
        ("progressive.jpg", [147.678, 111.441, 86.780]),
        ("cmyk.jpg", [147.676, 111.408, 86.766]),
    ] {
        let found = file(name).each_ref().map(mean);
        let close = found.iter().zip(expected).all(|(found, expected)| (found - expected).abs() < 0.5);
        assert!(close, "{name}: {found:?}, not {expected:?}");
    }
    assert_eq!(file("progressive.jpg"), file("baseline.jpg"));
}

#[test]
fn an_empty_file_fails() {
    assert!(matches!(problem(b"", "is empty", "fetch it again"), ImageProblem::Empty));
}

#[test]
fn files_of_another_format_fail() {
    for (bytes, found) in [
        (b"The file you asked for has moved.\n".as_slice(), "looks like text"),
        (b"<!DOCTYPE html><title>404</title>", "looks like HTML or XML"),
        (b"version https://git-lfs.github.com/spec/v1\n", "looks like a Git LFS pointer"),
        (b"\0\0\0\x20ftypavif", "looks like HEIC, AVIF"),
        (b"%PDF-1.7", "looks like PDF"),
        (b"\x01\x02\x03\x04", "looks like another binary format"),
    ] {
        assert!(matches!(problem(bytes, found, "convert it"), ImageProblem::UnknownFormat { .. }));
    }
}

#[test]
fn a_truncated_png_fails() {
    let file = png(64, 64, ColorType::Rgb, BitDepth::Eight, &[100; 3 * 64 * 64], &[]);
    for length in [4, 20, 40, file.len() - 20, file.len() - 5] {
        let problem = problem(&file[..length], "is truncated", "fetch it again");
        assert!(matches!(problem, ImageProblem::Truncated { format: "PNG" }), "{length} bytes: {problem}");
    }
}

/// Writes width and height into the frame header of a JPEG, which begins with the marker `frame`.
pub(crate) fn with_size(mut jpeg: Vec<u8>, frame: u8, width: u16, height: u16) -> Vec<u8> {
    let frame = jpeg.windows(2).position(|pair| pair == [0xFF, frame]).unwrap();
    jpeg[frame + 5..frame + 7].copy_from_slice(&height.to_be_bytes());
    jpeg[frame + 7..frame + 9].copy_from_slice(&width.to_be_bytes());
    jpeg
}

#[test]
fn images_with_too_many_pixels_are_refused() {
    let chelsea = photo("animal/chelsea.jpg");
    let found = problem(
        &with_size(chelsea.clone(), 0xC0, 65_500, 10),
        "65500 x 10 pixels (maximum: 16384 per side",
        "scale",
    );
    assert!(matches!(found, ImageProblem::TooLarge { width: 65_500, height: 10 }));
    let found =
        problem(&with_size(chelsea.clone(), 0xC0, 16_000, 16_000), "178956970 in total", "scale it down");
    assert!(matches!(found, ImageProblem::TooLarge { .. }));
    let found = problem(&with_size(chelsea, 0xC0, 0, 10), "cannot be decoded as JPEG", "remove it");
    assert!(matches!(found, ImageProblem::Malformed { .. }));

    let line = png(20_000, 1, ColorType::Grayscale, BitDepth::One, &[0; 2500], &[]);
    assert!(matches!(problem(&line, "20000 x 1 pixels", "scale it down"), ImageProblem::TooLarge { .. }));
}

#[test]
fn a_failed_image_does_not_change_the_next_one() {
    let good = pixels("good.jpg", &photo("animal/chelsea.jpg")).unwrap();
    let grass = photo("texture/grass.jpg");
    problem(&grass[..grass.len() / 2], "is truncated", "");
    assert_eq!(pixels("good.jpg", &photo("animal/chelsea.jpg")).unwrap(), good);
}

#[test]
fn a_file_that_was_removed_fails() {
    let made = folder(&[("class/a.png", &dot())]);
    let images = ImageFolder::open(made.path()).unwrap();
    fs::remove_file(made.path().join("class/a.png")).unwrap();
    let error = load(&images, 0).unwrap_err();
    assert!(matches!(
        error.downcast_ref::<ImageError>(),
        Some(ImageError { problem: ImageProblem::Unreadable(_), path }) if path.ends_with("class/a.png")
    ));
}
