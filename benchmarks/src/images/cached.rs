//! `cached-images`: the photographs of `images`, which `cached` keeps decoded and scaled to 256 x 256. Each epoch
//! crops them at random to 224 x 224, flips them at random and normalises them.

use std::{path::Path, time::Instant};

use anyhow::Context;
use loader_core::{DataLoader, Dataset, SampleContext, Tensor, rand::RngExt};
use loader_data::{ImageFolder, Transform};

use super::{measure, shuffled};
use crate::options::Options;

/// Height and width of a kept image.
const KEPT: usize = 256;
/// Height and width of a sample.
const SIDE: usize = 224;

/// The value of each byte of red, green and blue, normalised.
static VALUES: [[f32; 256]; 3] = values();

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let folder = options.folder.as_deref().context("--folder is missing")?;
    // Beside the photographs, because the folder of temporary files may be in memory.
    let cache = tempfile::tempdir_in(folder.parent().unwrap_or(Path::new(".")))?;
    let side = KEPT as u32;
    let scaled = Transform::new().resize(side).center_crop(side, side);
    let images = || {
        let images = ImageFolder::open_u8(folder)?.transform(scaled.clone())?;
        anyhow::Ok(images.cached(cache.path(), "1")?)
    };
    let filling = fill(options, images()?)?;
    let images = images()?.map(|(image, label), cx| Ok((cropped(&image, cx)?, label)));
    let batches = options.batches.unwrap_or(images.len() / options.batch_size());
    measure(options, &shuffled(options, images, batches)?, batches, Some(filling))
}

/// Loads all images once, which fills the cache. Returns the number of images per second.
fn fill(options: &Options, images: impl Dataset<Sample = (Tensor<u8>, u32)>) -> anyhow::Result<f64> {
    let count = images.len();
    let loader = DataLoader::builder(images).options(options.loader()).shuffle(false).build()?;
    let started = Instant::now();
    for batch in loader.iter()? {
        batch?;
    }
    Ok(count as f64 / started.elapsed().as_secs_f64())
}

/// Returns a random part of an image, flipped at random and normalised.
fn cropped(image: &Tensor<u8>, cx: &mut SampleContext) -> anyhow::Result<Tensor<f32>> {
    let mut offset = || cx.rng().random_range(0..=KEPT - SIDE);
    let (top, left) = (offset(), offset());
    let is_flipped = cx.rng().random_bool(0.5);
    let mut part = Tensor::zeros([3, SIDE, SIDE])?;
    let pixels = part.as_mut_slice().context("a new tensor has no clones")?;
    let channels = image.as_slice().chunks_exact(KEPT * KEPT).zip(pixels.chunks_exact_mut(SIDE * SIDE));
    for ((kept, pixels), values) in channels.zip(&VALUES) {
        for (kept, pixels) in kept.chunks_exact(KEPT).skip(top).zip(pixels.chunks_exact_mut(SIDE)) {
            let bytes = &kept[left..left + SIDE];
            if is_flipped {
                pixels
                    .iter_mut()
                    .zip(bytes.iter().rev())
                    .for_each(|(to, &byte)| *to = values[usize::from(byte)]);
            } else {
                pixels.iter_mut().zip(bytes).for_each(|(to, &byte)| *to = values[usize::from(byte)]);
            }
        }
    }
    Ok(part)
}

const fn values() -> [[f32; 256]; 3] {
    let mut values = [[0.0; 256]; 3];
    let mut channel = 0;
    while channel < 3 {
        let (mean, std) = (Transform::IMAGENET_MEAN[channel], Transform::IMAGENET_STD[channel]);
        let mut byte = 0;
        while byte < 256 {
            values[channel][byte] = (byte as f32 / 255.0 - mean) / std;
            byte += 1;
        }
        channel += 1;
    }
    values
}
