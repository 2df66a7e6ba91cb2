//! `tar-images`: the photographs of `images` with the same transform, from tar archives in WebDataset's layout.

use anyhow::Context;
use loader_core::{DataLoader, IterableDataset, Tensor};
use loader_data::{TarShards, Transform};
use serde::Deserialize;

use super::measure;
use crate::options::Options;

/// Number of archives, each of which a shard reads.
const ARCHIVES: usize = 4;

#[derive(Deserialize)]
struct Row {
    #[serde(rename = "jpg")]
    image: Tensor<f32>,
    cls: u32,
}

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let pattern = std::path::absolute(options.file.as_deref().context("--file is missing")?)?;
    let batches = options.batches.context("--batches is missing: the number of batches in the archives")?;
    let shards = TarShards::open(pattern)?.decode_images(Transform::standard_train(224))?;
    let samples = shards.rows::<Row>().map(|row, _cx| Ok((row.image, row.cls)));
    let loader = DataLoader::stream(samples).options(options.loader()).shards(ARCHIVES).build()?;
    measure(options, &loader, batches, None)
}
