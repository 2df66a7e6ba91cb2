//! Folders of JPEGs, one per class. dataloader-rs has no decoders, so this dataset uses zune-jpeg and
//! fast_image_resize, as the loader does.

use std::{
    cell::RefCell,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, ensure};
use dataloader_rs::{Dataset, error::Result};
use fast_image_resize::{
    FilterType, PixelType, ResizeAlg, ResizeOptions, Resizer,
    images::{Image, ImageRef},
};
use zune_jpeg::{
    JpegDecoder,
    zune_core::{bytestream::ZCursor, colorspace::ColorSpace, options::DecoderOptions},
};

/// Shape of a sample.
pub(crate) const SHAPE: [usize; 3] = [3, 224, 224];
const SIDE: u32 = 224;
const PLANE: usize = 224 * 224;
const MEAN: [f32; 3] = [0.485, 0.456, 0.406];
const STD: [f32; 3] = [0.229, 0.224, 0.225];

/// For each file, the picture transformed as for training, and the number of its class.
pub(crate) struct Images {
    files: Vec<(PathBuf, i64)>,
    count: usize,
    /// For each channel, the normalised value of each byte.
    tables: [[f32; 256]; 3],
}

impl Images {
    pub(crate) fn open(folder: &Path) -> anyhow::Result<Self> {
        let entries = |path: &Path| -> anyhow::Result<Vec<PathBuf>> {
            let entries = fs::read_dir(path).with_context(|| format!("reading {}", path.display()))?;
            let mut paths = entries.map(|entry| Ok(entry?.path())).collect::<anyhow::Result<Vec<_>>>()?;
            paths.sort();
            Ok(paths)
        };
        let mut files = Vec::new();
        let classes = entries(folder)?.into_iter().filter(|path| path.is_dir());
        for (label, class) in classes.enumerate() {
            let is_jpeg = |path: &PathBuf| {
                path.extension()
                    .is_some_and(|name| name.eq_ignore_ascii_case("jpg") || name.eq_ignore_ascii_case("jpeg"))
            };
            files.extend(entries(&class)?.into_iter().filter(is_jpeg).map(|path| (path, label as i64)));
        }
        ensure!(!files.is_empty(), "{}: there are no class folders with JPEGs", folder.display());
        let tables = std::array::from_fn(|channel| {
            std::array::from_fn(|byte| (byte as f32 / 255.0 - MEAN[channel]) / STD[channel])
        });
        Ok(Self { count: files.len(), files, tables })
    }

    /// Returns `count` samples, which repeat the files.
    pub(crate) fn repeated(self, count: usize) -> Self {
        Self { count, ..self }
    }
}

/// Buffers that a thread reuses for every picture.
#[derive(Default)]
struct Buffers {
    resizer: Resizer,
    pixels: Vec<u8>,
    scaled: Vec<u8>,
}

thread_local! {
    static BUFFERS: RefCell<Buffers> = RefCell::default();
}

impl Dataset for Images {
    type Item = (Vec<f32>, i64);

    fn get(&self, index: usize) -> Result<(Vec<f32>, i64)> {
        let (path, label) = &self.files[index % self.files.len()];
        let picture = BUFFERS.with_borrow_mut(|buffers| self.load(path, buffers));
        Ok((picture.with_context(|| path.display().to_string())?, *label))
    }

    fn len(&self) -> usize {
        self.count
    }
}

impl Images {
    fn load(&self, path: &Path, buffers: &mut Buffers) -> anyhow::Result<Vec<f32>> {
        let bytes = fs::read(path)?;
        let options = DecoderOptions::default().jpeg_set_out_colorspace(ColorSpace::RGB);
        let mut decoder = JpegDecoder::new_with_options(ZCursor::new(&bytes), options);
        decoder.decode_headers()?;
        let info = decoder.info().context("no header")?;
        let (width, height) = (u32::from(info.width), u32::from(info.height));
        buffers.pixels.resize(decoder.output_buffer_size().context("no size")?, 0);
        decoder.decode_into(&mut buffers.pixels)?;

        let [left, top, crop_width, crop_height] = random_crop(width, height);
        let whole = ImageRef::new(width, height, &buffers.pixels, PixelType::U8x3)?;
        buffers.scaled.resize(PLANE * 3, 0);
        let mut scaled = Image::from_slice_u8(SIDE, SIDE, &mut buffers.scaled, PixelType::U8x3)?;
        let options = ResizeOptions::new()
            .resize_alg(ResizeAlg::Convolution(FilterType::Bilinear))
            .use_alpha(false)
            .crop(left.into(), top.into(), crop_width.into(), crop_height.into());
        buffers.resizer.resize(&whole, &mut scaled, &options)?;

        let mut picture = vec![0.0; PLANE * 3];
        let flipped = fastrand::bool();
        for (channel, (plane, table)) in picture.chunks_exact_mut(PLANE).zip(&self.tables).enumerate() {
            let rows = buffers.scaled.chunks_exact(SIDE as usize * 3);
            for (row, pixels) in plane.chunks_exact_mut(SIDE as usize).zip(rows) {
                let bytes = pixels.as_chunks::<3>().0.iter().map(|pixel| table[usize::from(pixel[channel])]);
                if flipped {
                    row.iter_mut().rev().zip(bytes).for_each(|(out, value)| *out = value);
                } else {
                    row.iter_mut().zip(bytes).for_each(|(out, value)| *out = value);
                }
            }
        }
        Ok(picture)
    }
}

/// Returns left, top, width and height of a random crop, chosen as by torchvision's `RandomResizedCrop`.
fn random_crop(width: u32, height: u32) -> [u32; 4] {
    let (full_width, full_height) = (f64::from(width), f64::from(height));
    let (low, high): (f64, f64) = (3.0 / 4.0, 4.0 / 3.0);
    for _ in 0..10 {
        let area = full_width * full_height * (0.08 + fastrand::f64() * 0.92);
        let ratio = (low.ln() + fastrand::f64() * (high.ln() - low.ln())).exp();
        let (wide, tall) = ((area * ratio).sqrt().round() as u32, (area / ratio).sqrt().round() as u32);
        if (1..=width).contains(&wide) && (1..=height).contains(&tall) {
            return [fastrand::u32(0..=width - wide), fastrand::u32(0..=height - tall), wide, tall];
        }
    }
    // No random crop fits, so the crop is the largest one with an allowed ratio, in the middle.
    let ratio = full_width / full_height;
    let wide = if ratio > high { (full_height * high).round() as u32 } else { width };
    let tall = if ratio < low { (full_width / low).round() as u32 } else { height };
    [(width - wide) / 2, (height - tall) / 2, wide, tall]
}
