//! Burn's loader and this one, over a dataset and a `Batcher` of burn.

use std::{fmt::Debug, sync::Arc};

use burn_core::{
    data::{
        dataloader::{DataLoaderBuilder, batcher::Batcher},
        dataset::Dataset,
    },
    tensor::Device,
};
use loader::{DataLoader, collate};
use loader_burn::{BurnDataset, BurnLoader};
use serde::{Serialize, de::DeserializeOwned};

use crate::{
    Batch, Loader,
    options::{Options, Side},
};

/// Seed of the order of the samples.
pub(crate) const SEED: u64 = 7;

/// Returns the loader that the options name.
pub(crate) fn of<D, I, const R: usize>(
    options: &Options,
    dataset: D,
    batcher: impl Batcher<I, Batch<R>> + 'static,
) -> anyhow::Result<Loader<R>>
where
    D: Dataset<I> + Serialize + DeserializeOwned + 'static,
    I: Serialize + DeserializeOwned + Send + Sync + Clone + Debug + 'static,
    Vec<I>: collate::Batch,
{
    if options.loader == Side::Burn {
        return Ok(burn(options, dataset, batcher));
    }
    let loader = DataLoader::builder(BurnDataset::new(dataset))
        .batch_size(options.batch_size())
        .shuffle(true)
        .seed(SEED)
        .num_workers(options.workers)
        .collate(|items| Ok(items))
        .build()?;
    Ok(Arc::new(BurnLoader::batched(loader, batcher).device(&Device::flex())))
}

/// Returns burn's loader.
pub(crate) fn burn<I, const R: usize>(
    options: &Options,
    dataset: impl Dataset<I> + 'static,
    batcher: impl Batcher<I, Batch<R>> + 'static,
) -> Loader<R>
where
    I: Send + Sync + Clone + Debug + 'static,
{
    DataLoaderBuilder::new(batcher)
        .batch_size(options.batch_size())
        .shuffle(SEED)
        .num_workers(options.workers)
        .set_device(Device::flex())
        .build(dataset)
}
