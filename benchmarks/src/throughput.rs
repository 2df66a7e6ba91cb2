//! Measures the time per batch in steady state, for any dataset.

use std::time::Instant;

use anyhow::Context;
use anyhow::ensure;
use loader_core::{DType, DataLoader, Dataset, Element, Sample, Tensor, collate::Batch};
use serde::Serialize;

use crate::{
    options::Options,
    system::{self, Checksum, Spread},
};

/// The first fifth of an epoch is warm-up: prefetched batches and costs that occur only once are in it.
pub(crate) const WARM_UP_DIVISOR: usize = 5;

#[derive(Debug, Serialize)]
struct Line<'a, C> {
    loader: &'static str,
    options: &'a Options,
    batches: usize,
    /// For each epoch, the time after the warm-up divided by the number of batches in it.
    us_per_batch: Spread,
    /// 99th percentile of the times between two batches, over all epochs after the warm-up.
    p99_us: f64,
    /// Processor time of all processes, including the start of the workers.
    cpu_us_per_batch: f64,
    /// Processor time of main alone, for the batches between the first and the last fifth of each epoch.
    main_cpu_us_per_batch: f64,
    /// The same for all workers together; `None` if a worker had ended by then.
    worker_cpu_us_per_batch: Option<f64>,
    check: &'a C,
}

/// The results on which all sides must agree.
#[derive(Debug, Serialize)]
pub(crate) struct Check {
    batches: usize,
    shape: Vec<usize>,
    dtype: &'static str,
    pub(crate) checksum: String,
}

/// Measures epochs of `batches` batches and prints a line. `open` makes a dataset with the given number of
/// samples. `look` reads a batch in place of the training step. `bits` returns the bits of an element for the
/// checksum.
pub(crate) fn measure<D, T>(
    options: &Options,
    batches: usize,
    checked: usize,
    open: impl Fn(usize) -> anyhow::Result<D>,
    look: impl Fn(&Tensor<T>) -> f64,
    bits: impl Fn(T) -> u64,
) -> anyhow::Result<()>
where
    D: Dataset,
    D::Sample: Sample<Batch = Tensor<T>>,
    T: Element,
{
    let check = check(options, open(checked * options.batch_size())?, bits)?;
    let loader =
        DataLoader::builder(open(batches * options.batch_size())?).options(options.loader()).build()?;
    time(options, &loader, batches, look, &check)
}

/// Measures epochs of `batches` batches of `loader` and prints a line with `check`. `look` reads a batch in
/// place of the training step.
pub(crate) fn time<B: Batch>(
    options: &Options,
    loader: &DataLoader<B>,
    batches: usize,
    look: impl Fn(&B) -> f64,
    check: &impl Serialize,
) -> anyhow::Result<()> {
    let warm_up = batches / WARM_UP_DIVISOR;
    ensure!(batches > warm_up + 1, "{batches} batches are too few");
    // Processor time is not measured in the last fifth, because workers end while the last batches are read.
    let last_counted = batches - 1 - warm_up;
    let (mut per_batch, mut gaps, mut seen) = (Vec::new(), Vec::new(), 0.0);
    let (mut main_cpu, mut worker_cpu) = (0.0, Some(0.0));
    let cpu = system::cpu_microseconds()?;
    for _ in 0..options.epochs() {
        let mut arrivals = Vec::with_capacity(batches);
        let mut iter = loader.iter()?;
        let mut before = (0.0, None);
        while let Some(batch) = iter.next() {
            seen += look(&batch?);
            arrivals.push(Instant::now());
            if arrivals.len() == warm_up + 1 {
                before = split_cpu(&iter.worker_pids())?;
            } else if arrivals.len() == last_counted + 1 {
                let after = split_cpu(&iter.worker_pids())?;
                main_cpu += after.0 - before.0;
                worker_cpu = worker_cpu.zip(after.1.zip(before.1)).map(|(sum, (to, from))| sum + to - from);
            }
        }
        ensure!(arrivals.len() == batches, "{} of {batches} batches", arrivals.len());
        let steady = &arrivals[warm_up..];
        let micros = |from: &Instant, to: &Instant| (*to - *from).as_secs_f64() * 1e6;
        per_batch.push(micros(&steady[0], &steady[steady.len() - 1]) / (steady.len() - 1) as f64);
        gaps.extend(steady.windows(2).map(|pair| micros(&pair[0], &pair[1])));
    }
    std::hint::black_box(seen);
    let cpu = system::cpu_microseconds()? - cpu;
    let counted = ((last_counted - warm_up) * options.epochs()) as f64;
    system::print(&Line {
        loader: "ours",
        options,
        batches,
        us_per_batch: Spread::of(per_batch),
        p99_us: system::percentile_99(gaps),
        cpu_us_per_batch: cpu / (batches * options.epochs()) as f64,
        main_cpu_us_per_batch: main_cpu / counted,
        worker_cpu_us_per_batch: worker_cpu.map(|cpu| cpu / counted),
        check,
    })
}

/// Returns the processor time so far in microseconds: of main, and of all workers if all of them run.
fn split_cpu(workers: &[u32]) -> anyhow::Result<(f64, Option<f64>)> {
    let main = system::cpu_microseconds_of(std::process::id())?;
    Ok((main, workers.iter().map(|&pid| system::cpu_microseconds_of(pid).ok()).sum()))
}

/// Returns the first and the last element of a batch.
pub(crate) fn ends<T: Element>(batch: &Tensor<T>) -> impl Iterator<Item = T> {
    let elements = batch.as_slice();
    [elements[0], elements[elements.len() - 1]].into_iter()
}

/// Loads `dataset` and returns the shape, type and checksum of its batches. They are always loaded in order,
/// because each side shuffles differently.
pub(crate) fn check<D, T>(options: &Options, dataset: D, bits: impl Fn(T) -> u64) -> anyhow::Result<Check>
where
    D: Dataset,
    D::Sample: Sample<Batch = Tensor<T>>,
    T: Element,
{
    let loader = DataLoader::builder(dataset).options(options.loader()).shuffle(false).build()?;
    let (mut checksum, mut shape) = (Checksum::default(), Vec::new());
    for batch in loader.iter()? {
        let batch = batch?;
        checksum.batch(batch.as_slice().iter().map(|&element| bits(element)));
        shape = batch.shape().to_vec();
    }
    let dtype: DType = T::DTYPE;
    Ok(Check {
        batches: loader.len().context("a map-style dataset has a length")?,
        shape,
        dtype: dtype.name(),
        checksum: checksum.text(),
    })
}
