//! `memory`: the memory of main and of each worker in the middle of an epoch.

use loader_core::{DataLoader, Dataset, Sample, collate::Batch};
use serde::Serialize;

use crate::{
    datasets::{Integers, Names, Rows, SAMPLES},
    options::{DatasetKind, Options},
    system::{self, Memory},
};

/// Number of batches to load before the measurement.
const BATCHES: usize = 400;

#[derive(Debug, Serialize)]
struct Line<'a> {
    loader: &'static str,
    options: &'a Options,
    batches: usize,
    main: Memory,
    workers: Vec<Memory>,
    /// Sum over all processes: the memory of the loader and of the rest of the program.
    pss: u64,
}

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    match options.dataset {
        DatasetKind::Trivial => measure(options, Integers { count: SAMPLES }),
        DatasetKind::Names => measure(options, Names::new(SAMPLES)?),
        DatasetKind::Memory => measure(options, Rows::new()?),
    }
}

fn measure<D>(options: &Options, dataset: D) -> anyhow::Result<()>
where
    D: Dataset,
    D::Sample: Sample,
{
    let loader = DataLoader::builder(dataset).options(options.loader()).build()?;
    after(options, &loader, options.batches.unwrap_or(BATCHES))
}

/// Prints the memory after the first `batches` of an epoch.
pub(crate) fn after<B: Batch>(
    options: &Options,
    loader: &DataLoader<B>,
    batches: usize,
) -> anyhow::Result<()> {
    let mut iter = loader.iter()?;
    for batch in iter.by_ref().take(batches) {
        std::hint::black_box(batch?);
    }
    let main = Memory::of(std::process::id())?;
    let workers = iter.worker_pids().into_iter().map(Memory::of).collect::<anyhow::Result<Vec<_>>>()?;
    let pss = main.pss + workers.iter().map(|worker| worker.pss).sum::<u64>();
    system::print(&Line { loader: "ours", options, batches, main, workers, pss })
}
