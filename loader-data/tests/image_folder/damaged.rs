//! Damaged files fail: the dataset never returns an image in which the decoder has invented pixels.

use std::fs;

use loader_data::ImageProblem;
use png::{BitDepth, ColorType};

use crate::{
    files::{photo, pixels, problem, with_size},
    support::{fixture, png},
};

const END_OF_IMAGE: [u8; 2] = [0xFF, 0xD9];

/// Returns the sample photographs, and one file of each kind of JPEG.
fn all_jpegs() -> Vec<(&'static str, Vec<u8>)> {
    const PHOTOGRAPHS: [&str; 9] = [
        "animal/chelsea.jpg",
        "medical/retina.jpg",
        "space/astronaut.jpg",
        "space/hubble_deep_field.jpg",
        "space/rocket.jpg",
        "table/coffee.jpg",
        "texture/brick.jpg",
        "texture/grass.jpg",
        "texture/gravel.jpg",
    ];
    PHOTOGRAPHS.map(|name| (name, photo(name))).into_iter().chain(all_fixtures()).collect()
}

fn all_fixtures() -> [(&'static str, Vec<u8>); 7] {
    [
        "baseline.jpg",
        "cmyk.jpg",
        "full-chroma.jpg",
        "half-width-chroma.jpg",
        "own-codes.jpg",
        "progressive.jpg",
        "restarts.jpg",
    ]
    .map(|name| (name, fs::read(fixture(name)).unwrap()))
}

#[test]
fn a_truncated_jpeg_fails() {
    for file in [photo("animal/chelsea.jpg"), fs::read(fixture("progressive.jpg")).unwrap()] {
        let cuts = [
            2,
            3,
            4,
            20,
            200,
            file.len() / 3,
            file.len() / 2,
            file.len() - 100,
            file.len() - 2,
            file.len() - 1,
        ];
        for length in cuts {
            let problem = problem(&file[..length], "is truncated", "fetch it again");
            assert!(matches!(problem, ImageProblem::Truncated { format: "JPEG" }), "{length} bytes");
        }
    }
}

#[test]
fn a_truncated_jpeg_with_an_end_marker_appended_fails() {
    for (name, file) in all_jpegs() {
        for percent in [30, 50, 60, 70, 80, 90, 95, 99] {
            let cut = [&file[..file.len() * percent / 100], &END_OF_IMAGE].concat();
            let error =
                pixels("broken.jpg", &cut).map(drop).expect_err(&format!("{name} cut at {percent} %"));
            // A cut within a header leaves a segment whose length covers the appended end marker.
            let truncated = matches!(error.problem, ImageProblem::Truncated { format: "JPEG" });
            assert!(truncated, "{name} cut at {percent} %: {error}");
        }
        pixels("whole.jpg", &[&file[..], &[0; 100], &END_OF_IMAGE].concat()).expect("more bytes are ignored");
    }
}

#[test]
fn a_jpeg_with_fewer_rows_than_its_header_says_fails() {
    for (name, file) in all_fixtures() {
        let frame = if name == "progressive.jpg" { 0xC2 } else { 0xC0 };
        let found = pixels("broken.jpg", &with_size(file, frame, 75, 400)).map(drop).expect_err(name);
        // In a progressive file another scan follows, so the file does not end with the first scan.
        let reason = if frame == 0xC2 { "fewer coded pixels" } else { "is truncated" };
        assert!(found.to_string().contains(reason), "{name}: {found}");
    }
}

/// Replaces the marker `from` of all segments by `to`. Returns the file and the number of these segments.
fn replace_markers(file: &[u8], from: u8, to: u8) -> (Vec<u8>, usize) {
    let mut file = file.to_vec();
    let mut count = 0;
    let mut offset = 2;
    while file[offset + 1] != 0xDA {
        if file[offset + 1] == from {
            file[offset + 1] = to;
            count += 1;
        }
        offset += 2 + usize::from(u16::from_be_bytes([file[offset + 2], file[offset + 3]]));
    }
    (file, count)
}

#[test]
fn a_jpeg_without_its_tables_fails() {
    const COMMENT: u8 = 0xFE;
    for (name, file) in all_fixtures() {
        // The messages contain "Huffman" or "huffman".
        for (marker, message) in [(0xDB, "quantization table"), (0xC4, "uffman")] {
            let (broken, count) = replace_markers(&file, marker, COMMENT);
            assert!(count > 0, "{name} has no segment {marker:x}");
            let error = pixels("broken.jpg", &broken).map(drop).expect_err(name);
            assert!(error.to_string().contains(message), "{name}: {error}");
        }
    }
    let restarts = fs::read(fixture("restarts.jpg")).unwrap();
    let (broken, count) = replace_markers(&restarts, 0xDD, COMMENT);
    assert_eq!(count, 1);
    assert!(pixels("broken.jpg", &broken).is_err(), "the restart interval is missing");
}

#[test]
fn a_jpeg_without_one_of_its_tables_fails() {
    for (name, file) in all_fixtures() {
        for marker in [0xDB, 0xC4] {
            let (_, count) = replace_markers(&file, marker, marker);
            for missing in 0..count {
                let mut broken = file.clone();
                let found = broken.windows(2).enumerate().filter(|(_, pair)| *pair == [0xFF, marker]);
                let offset = found.map(|(offset, _)| offset).nth(missing).unwrap();
                // One flipped bit turns the segment into an APP segment or an unknown one.
                broken[offset + 1] ^= 0x20;
                assert!(pixels("broken.jpg", &broken).is_err(), "{name}: table {missing} of {marker:x}");
            }
        }
    }
}

#[test]
fn invalid_bytes_fail() {
    let mut jpeg = photo("animal/chelsea.jpg");
    let middle = jpeg.len() / 2;
    // No Huffman code consists of ones only. The zero bytes keep the ones from being a marker.
    jpeg[middle..middle + 64].as_chunks_mut().0.fill([0xFF, 0x00]);
    let found = problem(&jpeg, "cannot be decoded as JPEG: ", "convert it with another program");
    assert!(matches!(found, ImageProblem::Malformed { format: "JPEG", .. }));

    let mut png = png(64, 64, ColorType::Rgb, BitDepth::Eight, &[100; 3 * 64 * 64], &[]);
    png[50] ^= 1;
    let found = problem(&png, "cannot be decoded as PNG: ", "convert it with another program");
    assert!(matches!(found, ImageProblem::Malformed { format: "PNG", .. }));
}
