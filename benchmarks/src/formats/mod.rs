//! `parquet`, `arrow`, `json-lines`, `csv` and `tar`: samples from files, in the order of the files (`arrow` with
//! `--shuffle`: in random order); and, with `--decoder`, the same batches from the library that decodes the format.

mod arrow;
mod csv;
mod json_lines;
mod parquet;
mod tar;

use std::time::Instant;

use anyhow::{Context, bail, ensure};
use loader_core::{DataLoader, Element, Tensor, collate::Batch};
use serde::Serialize;

use crate::{
    memory,
    options::{Options, Workload},
    system::{self, Checksum, Spread},
    throughput,
};

/// Number of batches in the checksum.
const CHECKED: usize = 16;

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let path = std::path::absolute(options.file.as_deref().context("--file is missing")?)?;
    match (options.workload, options.decoder) {
        (Workload::Parquet, false) => measure(options, &parquet::loader(options, &path)?, parquet::columns),
        (Workload::Parquet, true) => decoder(options, || parquet::decode(&path)),
        (Workload::JsonLines, false) if options.records => {
            measure(options, &json_lines::record_loader(options, &path)?, json_lines::record_columns)
        }
        (Workload::JsonLines, false) => {
            measure(options, &json_lines::loader(options, &path)?, json_lines::columns)
        }
        (Workload::JsonLines, true) => decoder(options, || json_lines::decode(options, &path)),
        (Workload::Arrow, false) => {
            // In order, because each side shuffles differently.
            let check = check(&arrow::loader(options, &path, false)?, parquet::columns)?;
            let loader = arrow::loader(options, &path, options.shuffle)?;
            throughput::time(options, &loader, batches(options)?, |_| 0.0, &check)
        }
        (Workload::Arrow, true) => bail!("`arrow` has no decoder, because the file is not encoded"),
        (Workload::Csv, false) if options.records => {
            measure(options, &csv::record_loader(options, &path)?, csv::record_columns)
        }
        (Workload::Csv, false) => measure(options, &csv::loader(options, &path)?, csv::columns),
        (Workload::Csv, true) => decoder(options, || csv::decode(options, &path)),
        (Workload::Tar, false) => measure(options, &tar::loader(options, &path)?, tar::columns),
        (Workload::Tar, true) => decoder(options, || tar::decode(options, &path)),
        (other, _) => unreachable!("{other:?} reads no such file"),
    }
}

/// A column of a batch, for the checksum.
struct Column {
    shape: Vec<usize>,
    dtype: &'static str,
    bits: Vec<u64>,
}

impl Column {
    fn of<T: Element>(tensor: &Tensor<T>, bits: impl Fn(T) -> u64) -> Self {
        let bits = tensor.as_slice().iter().map(|&element| bits(element)).collect();
        Self { shape: tensor.shape().to_vec(), dtype: T::DTYPE.name(), bits }
    }

    fn of_f32(tensor: &Tensor<f32>) -> Self {
        Self::of(tensor, |element| u64::from(element.to_bits()))
    }

    fn of_texts(texts: &[String]) -> Self {
        let bits = texts.iter().flat_map(|text| text.bytes()).map(u64::from).collect();
        Self { shape: vec![texts.len()], dtype: "text", bits }
    }
}

/// The results on which all sides must agree.
#[derive(Debug, Serialize)]
struct Check {
    batches: usize,
    /// Shape and type of each column of the last batch.
    columns: Vec<(Vec<usize>, &'static str)>,
    checksum: String,
}

/// Measures epochs of the whole file, or the memory in the middle of one, and prints a line.
fn measure<B: Batch>(
    options: &Options,
    loader: &DataLoader<B>,
    columns: impl Fn(&B) -> anyhow::Result<Vec<Column>>,
) -> anyhow::Result<()> {
    if options.memory {
        return memory::after(options, loader, batches(options)? / 2);
    }
    let check = check(loader, columns)?;
    throughput::time(options, loader, batches(options)?, |_| 0.0, &check)
}

/// Loads the first batches and returns their columns and checksum.
fn check<B: Batch>(
    loader: &DataLoader<B>,
    columns: impl Fn(&B) -> anyhow::Result<Vec<Column>>,
) -> anyhow::Result<Check> {
    let (mut checksum, mut seen) = (Checksum::default(), Vec::new());
    for batch in loader.iter()?.take(CHECKED) {
        let columns = columns(&batch?)?;
        columns.iter().for_each(|column| checksum.batch(column.bits.iter().copied()));
        seen = columns.into_iter().map(|column| (column.shape, column.dtype)).collect();
    }
    Ok(Check { batches: CHECKED, columns: seen, checksum: checksum.text() })
}

fn batches(options: &Options) -> anyhow::Result<usize> {
    options.batches.context("--batches is missing: the number of batches in the file")
}

#[derive(Debug, Serialize)]
struct DecoderLine<'a> {
    loader: &'static str,
    options: &'a Options,
    batches: usize,
    /// For each epoch, its time divided by the number of batches that a loader makes of the file.
    us_per_batch: Spread,
    cpu_us_per_batch: f64,
}

/// Measures `decode`, which decodes the whole file and returns its number of samples.
pub(crate) fn decoder(options: &Options, decode: impl Fn() -> anyhow::Result<usize>) -> anyhow::Result<()> {
    let batches = batches(options)?;
    let expected = batches * options.batch_size();
    let mut per_batch = Vec::new();
    let cpu = system::cpu_microseconds()?;
    for _ in 0..options.epochs() {
        let started = Instant::now();
        let samples = decode()?;
        per_batch.push(started.elapsed().as_secs_f64() * 1e6 / batches as f64);
        ensure!(samples == expected, "{samples} samples, not {expected}");
    }
    let cpu_us_per_batch = (system::cpu_microseconds()? - cpu) / (batches * options.epochs()) as f64;
    let us_per_batch = Spread::of(per_batch);
    system::print(&DecoderLine { loader: "ours", options, batches, us_per_batch, cpu_us_per_batch })
}
