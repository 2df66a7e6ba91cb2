//! From `iter()` to the first batch.

use std::time::Instant;

use anyhow::Context as _;
use loader_core::{DataLoader, Tensor};
use serde::Serialize;

use crate::{
    datasets::{Integers, Names},
    options::{BATCH, Kind, Options},
    system::{self, Spread},
};

#[derive(Debug, Serialize)]
struct Line<'a> {
    loader: &'static str,
    options: &'a Options,
    /// The first start in this process.
    cold_ms: f64,
    /// One figure a start, the first one left out.
    first_batch_ms: Spread,
    /// Until the iterator was dropped and its workers were gone.
    drop_ms: Spread,
}

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let loader = open(options)?;
    let (mut starts, mut ends) = (Vec::new(), Vec::new());
    for _ in 0..=options.epochs {
        let called = Instant::now();
        let mut iter = loader.iter()?;
        let batch = iter.next().context("an epoch without a batch")??;
        starts.push(called.elapsed().as_secs_f64() * 1e3);
        std::hint::black_box(batch.as_slice()[0]);
        let called = Instant::now();
        drop(iter);
        ends.push(called.elapsed().as_secs_f64() * 1e3);
    }
    let cold_ms = starts.remove(0);
    let (first_batch_ms, drop_ms) = (Spread::of(starts), Spread::of(ends));
    system::print(&Line { loader: "ours", options, cold_ms, first_batch_ms, drop_ms })
}

/// A loader over the dataset that the command line names, in a random order.
pub(crate) fn open(options: &Options) -> anyhow::Result<DataLoader<Tensor<i64>>> {
    const SAMPLES: usize = 1_000_000;
    let workers = options.workers;
    let loader = match options.dataset {
        Kind::Trivial => DataLoader::builder(Integers { count: SAMPLES })
            .batch_size(BATCH)
            .shuffle(options.shuffle)
            .num_workers(workers)
            .build()?,
        Kind::Names => DataLoader::builder(Names::new(SAMPLES)?)
            .batch_size(BATCH)
            .shuffle(options.shuffle)
            .num_workers(workers)
            .build()?,
    };
    Ok(loader)
}
