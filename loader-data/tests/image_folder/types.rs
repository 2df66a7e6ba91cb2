//! Images of all types, against the pixels that Pillow reads from them (`fixtures/types/write.py`).

use std::{collections::HashSet, fs};

use flate2::Crc;
use loader_core::SampleContext;
use loader_data::{ImageProblem, ImageSize, Transform, decode_mask};

use crate::support::fixture;

/// The RGB bytes of an image, row by row, and its width and height.
type Pixels = (Vec<u8>, usize, usize);

fn decoded(file: &[u8], transform: &Transform) -> Result<Pixels, ImageProblem> {
    let image = transform.decode::<u8>(file, SampleContext::new(0).rng())?;
    let [_, height, width] = *image.shape() else { unreachable!("images have three dimensions") };
    let plane = width * height;
    let pixels =
        (0..plane).flat_map(|position| [0, 1, 2].map(|channel| image.as_slice()[channel * plane + position]));
    Ok((pixels.collect(), width, height))
}

/// Returns the name and the content of each image that this program can decode.
fn files() -> Vec<(String, Vec<u8>)> {
    let folder = fixture("types");
    let mut names: Vec<String> = fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| !name.ends_with(".rgb.png") && !name.ends_with(".py") && !name.ends_with(".txt"))
        .filter(|name| cfg!(feature = "more-images") || name.ends_with(".png") || name.ends_with(".jpg"))
        .collect();
    names.sort();
    let read = |name: String| (fs::read(folder.join(&name)).unwrap(), name);
    names.into_iter().map(read).map(|(file, name)| (name, file)).collect()
}

#[test]
fn the_pixels_are_those_of_pillow() {
    let expected = fs::read_to_string(fixture("types/expected.txt")).unwrap();
    let mut checked = HashSet::new();
    for (name, file) in files() {
        for (line, transform) in [
            (name.clone(), Transform::new()),
            (format!("{name} oriented"), Transform::new().exif_orientation(true)),
        ] {
            let Some(expected) = expected.lines().find_map(|other| other.strip_prefix(&format!("{line} ")))
            else {
                continue;
            };
            if expected.starts_with("oriented") {
                continue;
            }
            checked.insert(line.clone());
            let (pixels, width, height) =
                decoded(&file, &transform).unwrap_or_else(|error| panic!("{line} {error}"));
            let lossy = fixture("types").join(format!("{name}.rgb.png"));
            if lossy.exists() {
                if line == name {
                    let (expected, ..) = decoded(&fs::read(lossy).unwrap(), &Transform::new()).unwrap();
                    let difference =
                        pixels.iter().zip(&expected).map(|(one, other)| one.abs_diff(*other)).max();
                    assert!(difference <= Some(MAX_DIFFERENCE), "{line}: {difference:?}");
                    assert_eq!(pixels.len(), expected.len(), "{line}");
                }
                continue;
            }
            let mut crc = Crc::new();
            crc.update(&pixels);
            assert_eq!(format!("{width} {height} {:08x}", crc.sum()), expected, "{line}");
        }
    }
    let wanted = expected.lines().count();
    assert!(!cfg!(feature = "more-images") || checked.len() == wanted, "{} of {wanted}", checked.len());
}

/// The largest difference to Pillow in a lossy file, as for the photographs in the README.
const MAX_DIFFERENCE: u8 = 5;

#[test]
fn a_turned_image_is_cut_like_a_turned_file() {
    let file = fs::read(fixture("types/orientation.jpg")).unwrap();
    let upright = Transform::new().exif_orientation(true);
    let (whole, width, _) = decoded(&file, &upright).unwrap();
    let (cut, ..) = decoded(&file, &upright.center_crop(9, 5)).unwrap();
    let rows = whole.chunks_exact(3 * width).skip(7).take(9);
    let expected: Vec<u8> = rows.flat_map(|row| &row[3 * 6..3 * 11]).copied().collect();
    assert_eq!(cut, expected);
}

#[test]
fn the_orientation_is_found_behind_fill_bytes_and_behind_the_pixels() {
    let upright = Transform::new().exif_orientation(true);
    let file = fs::read(fixture("types/orientation.jpg")).unwrap();
    let filled = [&file[..2], &[0xFF; 3], &file[2..]].concat();
    assert!(decoded(&filled, &upright).unwrap() == decoded(&file, &upright).unwrap());

    let file = fs::read(fixture("types/orientation-6.png")).unwrap();
    let find = |name: &[u8]| file.windows(4).position(|bytes| bytes == name).unwrap() - 4;
    let (start, end) = (find(b"eXIf"), find(b"IEND"));
    let len = u32::from_be_bytes(*file[start..].first_chunk().unwrap()) as usize + 12;
    let moved = [&file[..start], &file[start + len..end], &file[start..start + len], &file[end..]].concat();
    assert!(decoded(&moved, &upright).unwrap() == decoded(&file, &upright).unwrap());
    assert!(decoded(&moved, &upright).unwrap() != decoded(&moved, &Transform::new()).unwrap());
}

#[test]
fn a_mask_is_cut_like_by_pillow() {
    let mask = |name: &str| decode_mask(&fs::read(fixture("types").join(name)).unwrap()).unwrap();
    let transform = Transform::new().resize_exact(31, 40).center_crop(50, 20).random_horizontal_flip(1.0);
    let drawn = transform.draw(ImageSize::new(23, 17), SampleContext::new(0).rng()).unwrap();
    assert_eq!(drawn.mask(&mask("mask.png")).unwrap(), mask("mask-cut.png"));

    for name in ["rgba.png", "grey16.png", "grey.jpg"] {
        let error = decode_mask(&fs::read(fixture("types").join(name)).unwrap()).unwrap_err();
        assert!(matches!(error, ImageProblem::Malformed { format: "PNG", .. }), "{name}: {error}");
    }
}

#[test]
fn a_truncated_file_fails_or_has_all_its_pixels() {
    for (name, file) in files() {
        let whole = decoded(&file, &Transform::new()).unwrap();
        let step = if file.len() > 1000 { 7 } else { 1 };
        for len in (0..file.len()).step_by(step) {
            match decoded(&file[..len], &Transform::new()) {
                Ok(found) => assert!(found == whole, "{name}: other pixels after {len} bytes"),
                Err(error) => assert!(
                    matches!(
                        error,
                        ImageProblem::Truncated { .. }
                            | ImageProblem::Malformed { .. }
                            | ImageProblem::UnknownFormat { .. }
                            | ImageProblem::Empty
                    ),
                    "{name} after {len} bytes: {error}"
                ),
            }
        }
    }
}

#[cfg(feature = "more-images")]
mod all_types {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_folder_lists_the_types_of_torchvision() {
        let (dot, folder) = (crate::support::dot(), tempfile::tempdir().unwrap());
        fs::create_dir(folder.path().join("class")).unwrap();
        for extension in ["JPG", "jpeg", "png", "ppm", "bmp", "pgm", "tif", "TIFF", "webp", "gif", "pbm"] {
            fs::write(folder.path().join(format!("class/a.{extension}")), &dot).unwrap();
        }
        assert_eq!(loader_core::Dataset::len(&loader_data::ImageFolder::open(folder.path()).unwrap()), 9);
    }

    /// The crate reads two samples of each pixel where its decoder of JPEG has written three.
    #[test]
    fn grey_pixels_with_transparency_in_jpeg_are_refused() {
        let mut tiff = fs::read(fixture("types/grey-alpha.tiff")).unwrap();
        let compression = 259u16.to_le_bytes();
        let position = tiff.windows(2).position(|pair| pair == compression).unwrap();
        tiff[position + 8..position + 10].copy_from_slice(&7u16.to_le_bytes());
        let error = decoded(&tiff, &Transform::new()).unwrap_err().to_string();
        assert!(error.contains("grey pixels with transparency that are compressed with JPEG"), "{error}");
    }

    #[test]
    fn an_image_that_needs_too_much_memory_is_refused_by_its_header() {
        let huge = |name: &str, changes: &[(usize, &[u8])]| {
            let mut file = fs::read(fixture("types").join(name)).unwrap();
            for (position, bytes) in changes {
                file[*position..position + bytes.len()].copy_from_slice(bytes);
            }
            file
        };
        let short = 65_000u16.to_le_bytes();
        let long = 65_000u32.to_le_bytes();
        let mut tiff = fs::read(fixture("types/rgb.tiff")).unwrap();
        // The tags of width, height and rows per strip: number, type, count, value.
        for tag in [256u16, 257, 278] {
            let entry = tag.to_le_bytes();
            let position = tiff.windows(2).position(|pair| pair == entry).unwrap();
            tiff[position + 2..position + 4].copy_from_slice(&4u16.to_le_bytes());
            tiff[position + 8..position + 12].copy_from_slice(&long);
        }
        let files = [
            huge("rgb.bmp", &[(18, &long), (22, &long)]),
            huge("palette.gif", &[(6, &short), (8, &short)]),
            b"P6 65000 65000 255\n".to_vec(),
            tiff,
            // The size of a lossy picture has 14 bits.
            huge("lossy.webp", &[(26, &[0xFF, 0x3F, 0xFF, 0x3F])]),
        ];
        for (number, file) in files.iter().enumerate() {
            let error = decoded(file, &Transform::new()).unwrap_err();
            assert!(matches!(error, ImageProblem::TooLarge { .. }), "file {number}: {error}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn changed_files_never_panic(
            file: prop::sample::Index,
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
            in_header: bool,
        ) {
            thread_local!(static FILES: Vec<(String, Vec<u8>)> = files());
            let (_, mut bytes) = FILES.with(|files| files[file.index(files.len())].clone());
            for (index, value) in changes {
                let position = index.index(if in_header { bytes.len().min(64) } else { bytes.len() });
                bytes[position] = value;
            }
            drop(decoded(&bytes, &Transform::new()));
        }
    }
}

#[cfg(not(feature = "more-images"))]
#[test]
fn a_type_without_the_feature_is_an_error_that_names_it() {
    for (name, format) in [
        ("rgb.bmp", "BMP"),
        ("grey.gif", "GIF"),
        ("rgb.ppm", "Netpbm"),
        ("rgb.tiff", "TIFF"),
        ("lossy.webp", "WebP"),
    ] {
        let file = fs::read(fixture("types").join(name)).unwrap();
        let error = decoded(&file, &Transform::new()).unwrap_err();
        assert!(matches!(error, ImageProblem::NotBuiltIn { format: found } if found == format), "{error}");
        assert!(error.to_string().contains("the feature `more-images` of process-loader"), "{error}");
    }
}
