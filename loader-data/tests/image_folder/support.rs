//! Makes folders and files for the tests, and loads them.

use std::{
    fs,
    io::Cursor,
    path::{Path, PathBuf},
};

use loader_core::{Dataset, SampleContext, Tensor};
use loader_data::{ImageFolder, Pixel};
use png::{BitDepth, ColorType};
use tempfile::TempDir;

/// The sample photographs.
pub(crate) const PHOTOS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/photos");

/// Returns the path of a file in `fixtures`.
pub(crate) fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/image_folder/fixtures").join(name)
}

/// Makes a temporary folder with the given files.
pub(crate) fn folder(files: &[(&str, &[u8])]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, bytes) in files {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
    folder
}

/// Returns a grey PNG of one pixel.
pub(crate) fn dot() -> Vec<u8> {
    png(1, 1, ColorType::Grayscale, BitDepth::Eight, &[128], &[])
}

/// Returns a PNG. `palette` is used for indexed colours only.
pub(crate) fn png(
    width: u32,
    height: u32,
    color: ColorType,
    depth: BitDepth,
    bytes: &[u8],
    palette: &[u8],
) -> Vec<u8> {
    let mut file = Vec::new();
    let mut encoder = png::Encoder::new(Cursor::new(&mut file), width, height);
    encoder.set_color(color);
    encoder.set_depth(depth);
    if color == ColorType::Indexed {
        encoder.set_palette(palette);
    }
    let mut writer = encoder.write_header().unwrap();
    writer.write_image_data(bytes).unwrap();
    writer.finish().unwrap();
    file
}

/// Loads sample `index` like a loader with seed 7 in its first epoch.
pub(crate) fn load<P: Pixel>(images: &ImageFolder<P>, index: usize) -> anyhow::Result<(Tensor<P>, u32)> {
    let mut cx = SampleContext::new(7);
    cx.set_index(index);
    images.get(index, &mut cx)
}

/// Returns the planes of a `[3, height, width]` tensor.
pub(crate) fn planes<P: Pixel>(image: &Tensor<P>) -> [&[P]; 3] {
    std::array::from_fn(|channel| image.row(channel))
}
