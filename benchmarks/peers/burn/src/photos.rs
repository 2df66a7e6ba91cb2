//! Photographs, cropped at random to 224 x 224.

use std::{
    io,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use anyhow::Context;
use burn_core::{
    data::{
        dataloader::batcher::Batcher,
        dataset::{Dataset as BurnDataset, DatasetError},
    },
    tensor::{Device, Tensor, TensorData},
};
use loader::{
    DataLoader, Dataset, Sample, SampleContext,
    data::{ImageFolder, Transform},
};
use loader_burn::BurnLoader;
use serde::{Deserialize, Serialize};

use crate::{Batch, Loader, loaders, options::Options};

const SIDE: usize = 224;

pub(crate) fn loader(options: &Options) -> anyhow::Result<Loader<4>> {
    let folder = options.folder.as_deref().context("--folder is missing")?;
    if options.stacks_in_workers() {
        return ours(options, folder);
    }
    if options.as_it_comes {
        return as_it_comes::loader(options, folder);
    }
    loaders::of(options, Photos { folder: open(folder)?, loaded: AtomicU64::new(0) }, Stack)
}

fn open(folder: &Path) -> anyhow::Result<ImageFolder> {
    Ok(ImageFolder::open(folder)?.transform(Transform::standard_train(SIDE as u32))?)
}

/// A dataset of burn with the decoder of loader-data.
#[derive(Serialize, Deserialize)]
struct Photos {
    folder: ImageFolder,
    /// Number of samples loaded. It is the seed of the next crop, because burn's datasets do not know the epoch.
    #[serde(skip)]
    loaded: AtomicU64,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Photo {
    pixels: loader::Tensor<f32>,
    label: i64,
}

impl BurnDataset<Photo> for Photos {
    fn get(&self, index: usize) -> Result<Photo, DatasetError> {
        let mut context = SampleContext::new(self.loaded.fetch_add(1, Ordering::Relaxed));
        let (pixels, label) = self
            .folder
            .get(index, &mut context)
            .map_err(|error| DatasetError::new(io::Error::other(error)))?;
        Ok(Photo { pixels, label: label.into() })
    }

    fn len(&self) -> usize {
        self.folder.len()
    }
}

struct Stack;

impl Batcher<Photo, Batch<4>> for Stack {
    fn batch(&self, photos: Vec<Photo>, device: &Device) -> Batch<4> {
        let mut pixels = Vec::with_capacity(photos.len() * 3 * SIDE * SIDE);
        photos.iter().for_each(|photo| pixels.extend_from_slice(photo.pixels.as_slice()));
        let labels: Vec<i64> = photos.iter().map(|photo| photo.label).collect();
        stacked(pixels, labels, device)
    }
}

fn stacked(pixels: Vec<f32>, labels: Vec<i64>, device: &Device) -> Batch<4> {
    let count = labels.len();
    (
        Tensor::from_data(TensorData::new(pixels, [count, 3, SIDE, SIDE]), device),
        Tensor::from_data(TensorData::new(labels, [count]), device),
    )
}

/// The sample of this loader's own side.
#[derive(Sample)]
#[sample(burn)]
struct Labelled {
    #[sample(rank = 4)]
    pixels: loader::Tensor<f32>,
    label: i64,
}

/// Workers decode into the batch, which becomes burn's tensors without a copy.
fn ours(options: &Options, folder: &Path) -> anyhow::Result<Loader<4>> {
    let samples = open(folder)?.map(|(pixels, label), _| Ok(Labelled { pixels, label: label.into() }));
    let loader = DataLoader::builder(samples)
        .batch_size(options.batch_size())
        .shuffle(true)
        .seed(loaders::SEED)
        .num_workers(options.workers)
        .build()?;
    let loader = BurnLoader::new(loader, |batch: LabelledBatch, device| {
        let LabelledBurn { pixels, label } = batch.to_burn(device)?;
        Ok::<_, loader_burn::Error>((pixels, label))
    });
    Ok(Arc::new(loader.device(&Device::flex())))
}

#[cfg(not(feature = "vision"))]
mod as_it_comes {
    use super::*;

    pub(super) fn loader(_options: &Options, _folder: &Path) -> anyhow::Result<Loader<4>> {
        anyhow::bail!("build with the feature `vision`, which has burn's dataset of images")
    }
}

/// Burn's own dataset of images. It decodes whole images, and the batcher crops and resizes them with the package
/// image, because burn has no such transforms.
#[cfg(feature = "vision")]
mod as_it_comes {
    use burn_core::data::dataset::vision::{Annotation, ImageDatasetItem, ImageFolderDataset, PixelData};
    use image::{
        RgbImage,
        imageops::{self, FilterType},
    };
    use rand::RngExt;

    use super::*;

    pub(super) fn loader(options: &Options, folder: &Path) -> anyhow::Result<Loader<4>> {
        let images = ImageFolderDataset::new_classification(folder)?;
        Ok(loaders::burn(options, images, CropAndStack))
    }

    struct CropAndStack;

    impl Batcher<ImageDatasetItem, Batch<4>> for CropAndStack {
        fn batch(&self, items: Vec<ImageDatasetItem>, device: &Device) -> Batch<4> {
            let mut pixels = Vec::with_capacity(items.len() * 3 * SIDE * SIDE);
            let mut labels = Vec::with_capacity(items.len());
            for item in items {
                let Annotation::Label(label) = item.annotation else {
                    panic!("{}: no label", item.image_path)
                };
                labels.push(label as i64);
                let PixelData::U8(bytes) = item.image else { panic!("{}: not 8 bits", item.image_path) };
                let image = RgbImage::from_raw(item.image_width as u32, item.image_height as u32, bytes);
                add_crop(&image.expect("the image has 3 channels"), &mut pixels);
            }
            stacked(pixels, labels, device)
        }
    }

    /// Appends a random crop, resized, flipped at random, and normalised.
    fn add_crop(image: &RgbImage, pixels: &mut Vec<f32>) {
        let mut rng = rand::rng();
        let [left, top, width, height] = random_crop(image.width(), image.height(), &mut rng);
        let crop = imageops::crop_imm(image, left, top, width, height);
        let mut resized = imageops::resize(&*crop, SIDE as u32, SIDE as u32, FilterType::Triangle);
        if rng.random() {
            imageops::flip_horizontal_in_place(&mut resized);
        }
        for (channel, (mean, std)) in
            Transform::IMAGENET_MEAN.into_iter().zip(Transform::IMAGENET_STD).enumerate()
        {
            pixels.extend(resized.pixels().map(|pixel| (f32::from(pixel[channel]) / 255.0 - mean) / std));
        }
    }

    /// Returns left, top, width and height, chosen as torchvision's `RandomResizedCrop` does.
    fn random_crop(width: u32, height: u32, rng: &mut impl rand::Rng) -> [u32; 4] {
        let area = f64::from(width) * f64::from(height);
        for _ in 0..10 {
            let area = area * rng.random_range(0.08..1.0);
            let ratio = rng.random_range((3.0_f64 / 4.0).ln()..(4.0_f64 / 3.0).ln()).exp();
            let (wide, tall) = ((area * ratio).sqrt().round() as u32, (area / ratio).sqrt().round() as u32);
            if (1..=width).contains(&wide) && (1..=height).contains(&tall) {
                return [rng.random_range(0..=width - wide), rng.random_range(0..=height - tall), wide, tall];
            }
        }
        let side = width.min(height);
        [(width - side) / 2, (height - side) / 2, side, side]
    }
}
