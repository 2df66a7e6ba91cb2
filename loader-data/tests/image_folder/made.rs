//! Folders and files made for a test.

use std::{
    fs,
    io::Cursor,
    path::{Path, PathBuf},
};

use loader_core::{Context, Dataset, Tensor};
use loader_data::{ImageFolder, Pixel};
use png::{BitDepth, ColorType};
use tempfile::TempDir;

/// The sample photographs.
pub(crate) const PHOTOS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/photos");

/// A file among the tests' own.
pub(crate) fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/image_folder/fixtures").join(name)
}

/// A temporary folder with the given files in it.
pub(crate) fn folder(files: &[(&str, &[u8])]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, bytes) in files {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
    folder
}

/// A grey PNG of one pixel.
pub(crate) fn dot() -> Vec<u8> {
    png(1, 1, ColorType::Grayscale, BitDepth::Eight, &[128], &[])
}

/// A PNG file; `palette` for indexed colours.
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

/// Sample `index`, as a loader with seed 7 would load it in its first epoch.
pub(crate) fn load<P: Pixel>(images: &ImageFolder<P>, index: usize) -> anyhow::Result<(Tensor<P>, u32)> {
    let mut cx = Context::new(7);
    cx.set_index(index);
    images.get(index, &mut cx)
}

/// The planes of a `[3, height, width]` tensor.
pub(crate) fn planes<P: Pixel>(image: &Tensor<P>) -> [&[P]; 3] {
    std::array::from_fn(|channel| image.row(channel))
}
