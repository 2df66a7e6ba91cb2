//! The contact sheet: the images of a batch, side by side in one PNG file.

#[cfg(feature = "formats")]
pub(super) mod thumbnails;

use std::{fs::File, io::BufWriter, path::Path};

use loader_core::{DataLoader, Tensor};

use crate::stop::Stop;

/// Number of pixels between two images.
const GAP: usize = 2;

/// Number of bytes of a pixel.
const RGB: usize = 3;

/// Writes the images of the first batch to the file at `path`.
pub(super) fn write(path: &Path, loader: &DataLoader<Tensor<u8>>) -> Result<(), Stop> {
    let images = match loader.epoch(0)?.next() {
        Some(images) => images?,
        None => return Err(Stop::NoImages("no sample has an image that can be shown".to_owned())),
    };
    let sheet = Sheet::of(&images);
    sheet.write(path).map_err(|error| Stop::FileNotWritten { path: path.to_owned(), error: error.into() })
}

/// RGB pixels, row by row.
struct Sheet {
    width: usize,
    height: usize,
    pixels: Vec<u8>,
}

impl Sheet {
    /// Draws images of shape `[B, 3, height, width]` in about as many columns as rows.
    fn of(images: &Tensor<u8>) -> Self {
        let &[count, _, height, width] = images.shape() else {
            unreachable!("a batch of images of shape [3, height, width] has this shape");
        };
        let columns = (1..).find(|columns| columns * columns >= count).unwrap_or(1);
        let rows = count.div_ceil(columns);
        let sheet_width = columns * (width + GAP) - GAP;
        let sheet_height = rows * (height + GAP) - GAP;
        let mut pixels = vec![255; sheet_width * sheet_height * RGB];
        for number in 0..count {
            let left = number % columns * (width + GAP);
            let top = number / columns * (height + GAP);
            let image = images.row(number);
            for position in 0..width * height {
                let (x, y) = (left + position % width, top + position / width);
                for channel in 0..RGB {
                    pixels[(y * sheet_width + x) * RGB + channel] =
                        image[channel * width * height + position];
                }
            }
        }
        Self { width: sheet_width, height: sheet_height, pixels }
    }

    fn write(&self, path: &Path) -> Result<(), png::EncodingError> {
        let file = BufWriter::new(File::create(path)?);
        // The casts keep the values: an image has at most 16,384 pixels per side, and memory limits the
        // number of images.
        let mut encoder = png::Encoder::new(file, self.width as u32, self.height as u32);
        encoder.set_color(png::ColorType::Rgb);
        let mut writer = encoder.write_header()?;
        writer.write_image_data(&self.pixels)?;
        writer.finish()
    }
}
