//! Writes the pixels of each image to a file for `compare/pillow.py`: raw `u8`, `[3, height, width]`.
//!
//! ```text
//! cargo run --release -p loader-data --example write_pixels -- FOLDER OUTPUT
//! ```
//!
//! `OUTPUT/decoded` gets the images in their own size, `OUTPUT/eval` their central 224 x 224 pixels after a
//! resize of the shorter side to 256.

use std::{fs, path::Path};

use anyhow::Context;
use loader_core::{Dataset, SampleContext};
use loader_data::{ImageFolder, Transform};

fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments.next().context("usage: write_pixels FOLDER OUTPUT")?;
    let output = arguments.next().context("usage: write_pixels FOLDER OUTPUT")?;
    let output = Path::new(&output);

    let images = ImageFolder::open_u8(&folder)?;
    let eval = Transform::new().resize(256).center_crop(224, 224);
    write(&images.clone().transform(eval)?, &output.join("eval"))?;
    write(&images, &output.join("decoded"))
}

/// Writes one file per image, named by its index. `compare/pillow.py` lists the folder in the same order.
fn write(images: &ImageFolder<u8>, output: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(output)?;
    for index in 0..images.len() {
        let (image, _) = images.get(index, &mut SampleContext::new(0))?;
        fs::write(output.join(index.to_string()), image.as_slice())?;
    }
    Ok(())
}
