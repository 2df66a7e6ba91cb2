//! Memory of the main process and of each worker in the middle of an epoch.

use serde::Serialize;

use crate::{
    options::Options,
    start,
    system::{self, Memory},
};

/// Batches to load before looking.
const BATCHES: usize = 400;

#[derive(Debug, Serialize)]
struct Line<'a> {
    loader: &'static str,
    options: &'a Options,
    batches: usize,
    main: Memory,
    workers: Vec<Memory>,
    /// Of all processes: what the loader takes from the machine (with what the program has anyway).
    pss: u64,
}

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let loader = start::open(options)?;
    let batches = options.batches.unwrap_or(BATCHES);
    let mut iter = loader.iter()?;
    for batch in iter.by_ref().take(batches) {
        std::hint::black_box(batch?.as_slice()[0]);
    }
    let main = Memory::of(std::process::id())?;
    let workers = iter.worker_pids().into_iter().map(Memory::of).collect::<anyhow::Result<Vec<_>>>()?;
    let pss = main.pss + workers.iter().map(|worker| worker.pss).sum::<u64>();
    system::print(&Line { loader: "ours", options, batches, main, workers, pss })
}
