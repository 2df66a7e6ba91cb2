//! A program with the features and adapters of the published packages: `.ci/package` builds it from packages alone.

use candle_core::Device;
use futures_util::TryStreamExt;
use loader::{
    data::{DatasetConfig, ImageFolder, Transform},
    prelude::*,
};
use loader_ndarray::TensorExt;
use ndarray::{Axis, Ix4};

/// `#[sample(candle)]` generates code that names the package `loader-candle`.
#[derive(Sample)]
#[sample(candle)]
struct Photo {
    pixels: Tensor<f32>,
    label: u32,
}

fn main() -> anyhow::Result<()> {
    loader::init(); // first line of main: a worker never returns from it

    let folder =
        std::env::args_os().nth(1).ok_or_else(|| anyhow::anyhow!("usage: package-adapters FOLDER"))?;
    let config = std::env::temp_dir().join(format!("package-adapters-{}.toml", std::process::id()));
    std::fs::write(&config, "[dataset]\nkind = \"image-folder\"\npath = \"photos\"\n")?;
    let kind = DatasetConfig::load(&config)?.0.kind();
    std::fs::remove_file(&config)?;
    anyhow::ensure!(kind == "image-folder", "the config has the kind {kind}");
    let images = ImageFolder::open(folder)?.transform(Transform::standard_eval(32))?;
    let photos = images.map(|(pixels, label), _| Ok(Photo { pixels, label }));
    let loader = DataLoader::builder(photos).batch_size(4).num_workers(2).build()?;

    let mut samples = 0;
    for batch in loader.iter()? {
        let batch: PhotoBatch = batch?;
        let PhotoCandle { pixels, label } = batch.to_candle(&Device::Cpu)?;
        samples += label.dim(0)?;
        let of_candle = pixels.mean_all()?.to_scalar::<f32>()?;
        let of_ndarray = batch.pixels.view_as::<Ix4>()?.mean_axis(Axis(0)).and_then(|mean| mean.mean());
        anyhow::ensure!(of_ndarray.is_some_and(|mean| (mean - of_candle).abs() < 1e-3), "the means differ");
    }
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    let streamed: Vec<PhotoBatch> = runtime.block_on(loader.iter()?.into_stream()?.try_collect())?;
    let streamed: usize = streamed.iter().map(|batch| batch.label.len()).sum();
    anyhow::ensure!(samples == loader.samples().unwrap_or(0) && streamed == samples, "{samples}, {streamed}");
    println!("{samples} photographs");
    Ok(())
}
