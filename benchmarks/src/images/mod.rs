//! `images`: JPEG files, decoded, cropped at random, resized to 224 x 224, flipped at random and normalised; in
//! `tar`, the same photographs from archives; in `cached`, kept decoded and scaled.

pub(crate) mod cached;
#[cfg(feature = "formats")]
pub(crate) mod tar;

use std::time::Instant;

use anyhow::{Context, ensure};
use loader_core::{DataLoader, Dataset, Element, Sample, Tensor, sampler::RandomSampler};
use loader_data::{ImageFolder, Transform};
use serde::Serialize;

use crate::{
    options::Options,
    system::{self, Spread},
    throughput::WARM_UP_DIVISOR,
};

#[derive(Debug, Serialize)]
struct Line<'a> {
    loader: &'static str,
    options: &'a Options,
    /// For each epoch, the number of images after the warm-up divided by their time.
    images_per_second: Spread,
    /// The same for the epoch in which `cached` fills its folder, without a warm-up.
    #[serde(skip_serializing_if = "Option::is_none")]
    filling_images_per_second: Option<f64>,
    /// Processor time of all processes, including the start of the workers.
    cpu_ms_per_image: f64,
    check: Check,
}

/// The results on which all sides must agree. The pixels are not among them, because the random crops differ.
#[derive(Debug, Serialize)]
struct Check {
    batches: usize,
    shape: Vec<usize>,
    dtype: &'static str,
}

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let folder = options.folder.as_deref().context("--folder is missing")?;
    let images = ImageFolder::open(folder)?.transform(Transform::standard_train(224))?;
    let batches = options.batches.unwrap_or(images.len() / options.batch_size());
    measure(options, &shuffled(options, images, batches)?, batches, None)
}

/// Returns a loader of `batches` batches of random images. They are random with and without `--shuffle`.
fn shuffled<D: Dataset>(
    options: &Options,
    images: D,
    batches: usize,
) -> anyhow::Result<DataLoader<<D::Sample as Sample>::Batch>>
where
    D::Sample: Sample,
{
    let order = RandomSampler::new(images.len()).num_samples(batches * options.batch_size())?;
    Ok(DataLoader::builder(images).options(options.loader()).shuffle(false).sampler(order).build()?)
}

/// Measures epochs of `batches` batches and prints a line.
fn measure<L: Element>(
    options: &Options,
    loader: &DataLoader<(Tensor<f32>, Tensor<L>)>,
    batches: usize,
    filling_images_per_second: Option<f64>,
) -> anyhow::Result<()> {
    let warm_up = batches / WARM_UP_DIVISOR;
    ensure!(batches > warm_up + 1, "{batches} batches are too few");
    let (mut rates, mut shape, mut dtype, mut seen) = (Vec::new(), Vec::new(), "", 0.0);
    let cpu = system::cpu_microseconds()?;
    for _ in 0..options.epochs() {
        let mut arrivals = Vec::with_capacity(batches);
        for batch in loader.iter()? {
            let (images, labels) = batch?;
            seen += f64::from(images.as_slice()[0]);
            std::hint::black_box(labels.as_slice()[0]);
            arrivals.push(Instant::now());
            ensure!(shape.is_empty() || shape == images.shape(), "batches of different shapes");
            shape = images.shape().to_vec();
            dtype = images.dtype().name();
        }
        ensure!(arrivals.len() == batches, "{} of {batches} batches", arrivals.len());
        let steady = &arrivals[warm_up..];
        let seconds = (steady[steady.len() - 1] - steady[0]).as_secs_f64();
        rates.push(((steady.len() - 1) * options.batch_size()) as f64 / seconds);
    }
    std::hint::black_box(seen);
    let images = (batches * options.batch_size() * options.epochs()) as f64;
    system::print(&Line {
        loader: "ours",
        options,
        images_per_second: Spread::of(rates),
        filling_images_per_second,
        cpu_ms_per_image: (system::cpu_microseconds()? - cpu) / 1e3 / images,
        check: Check { batches, shape, dtype },
    })
}
