//! Rows of 64 floats in memory, such as small images of digits.

use std::sync::Arc;

use burn_core::{
    data::{
        dataloader::batcher::Batcher,
        dataset::{Dataset as BurnDataset, DatasetError, InMemDataset},
    },
    tensor::{Device, Tensor, TensorData},
};
use loader::{DataLoader, TensorDataset};
use loader_burn::{BurnLoader, ToBurn};
use serde::{Deserialize, Serialize};

use crate::{Batch, Loader, loaders, options::Options};

const ROWS: usize = 65_536;
const COLUMNS: usize = 64;

/// A row, as a user of burn would write it.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Row {
    numbers: Vec<f32>,
    label: i64,
}

impl Row {
    /// Returns row `index`. The sum of a batch is exact, because the numbers are small integers.
    fn new(index: usize) -> Self {
        let number = |column| ((index * 7 + column * 3) % 17) as f32;
        Self { numbers: (0..COLUMNS).map(number).collect(), label: (index % 10) as i64 }
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct Rows(Vec<Row>);

impl BurnDataset<Row> for Rows {
    fn get(&self, index: usize) -> Result<Row, DatasetError> {
        Ok(self.0[index].clone())
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}

struct Stack;

impl Batcher<Row, Batch<2>> for Stack {
    fn batch(&self, rows: Vec<Row>, device: &Device) -> Batch<2> {
        let numbers: Vec<f32> = rows.iter().flat_map(|row| row.numbers.iter().copied()).collect();
        let labels: Vec<i64> = rows.iter().map(|row| row.label).collect();
        (
            Tensor::from_data(TensorData::new(numbers, [rows.len(), COLUMNS]), device),
            Tensor::from_data(TensorData::new(labels, [rows.len()]), device),
        )
    }
}

pub(crate) fn loader(options: &Options) -> anyhow::Result<Loader<2>> {
    let rows: Vec<Row> = (0..ROWS).map(Row::new).collect();
    if options.stacks_in_workers() {
        return ours(options, &rows);
    }
    if options.as_it_comes {
        return Ok(loaders::burn(options, InMemDataset::new(rows), Stack));
    }
    loaders::of(options, Rows(rows), Stack)
}

/// Tensors whose rows workers stack. The workers share their memory.
fn ours(options: &Options, rows: &[Row]) -> anyhow::Result<Loader<2>> {
    let numbers: Vec<f32> = rows.iter().flat_map(|row| row.numbers.iter().copied()).collect();
    let labels: Vec<i64> = rows.iter().map(|row| row.label).collect();
    let numbers = loader::Tensor::from_vec(numbers, [ROWS, COLUMNS])?;
    let labels = loader::Tensor::from_vec(labels, [ROWS])?;
    let loader = DataLoader::builder(TensorDataset::new((numbers, labels))?)
        .batch_size(options.batch_size())
        .shuffle(true)
        .seed(loaders::SEED)
        .num_workers(options.workers)
        .build()?;
    let loader =
        BurnLoader::new(loader, |(numbers, labels): (loader::Tensor<f32>, loader::Tensor<i64>), device| {
            Ok::<_, loader_burn::Error>((numbers.to_burn(device)?, labels.to_burn(device)?))
        });
    Ok(Arc::new(loader.device(&Device::flex())))
}
