//! `stragglers`: the time of an epoch in which one sample in a hundred takes fifty times as long.

use std::time::{Duration, Instant};

use anyhow::ensure;
use loader_core::DataLoader;
use serde::Serialize;

use crate::{
    datasets::Stragglers,
    options::Options,
    system::{self, Spread},
    throughput::{self, Check},
};

const BATCHES: usize = 200;
/// Number of batches in the checksum.
const CHECKED: usize = 4;

#[derive(Debug, Serialize)]
struct Line<'a> {
    loader: &'static str,
    options: &'a Options,
    batches: usize,
    /// Time of each epoch, from `iter()` to the end.
    seconds: Spread,
    /// Total time of the samples, divided by the number of workers.
    ideal_seconds: f64,
    /// Ideal time divided by the median time.
    of_ideal: f64,
    check: Check,
}

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let batch_size = options.batch_size();
    let checked = Stragglers { count: CHECKED * batch_size };
    let check = throughput::check(options, checked, i64::cast_unsigned)?;
    let batches = options.batches.unwrap_or(BATCHES);
    let count = batches * batch_size;
    let loader = DataLoader::builder(Stragglers { count }).options(options.loader()).build()?;
    let mut epochs = Vec::new();
    for _ in 0..options.epochs() {
        let (called, mut arrived) = (Instant::now(), 0);
        for batch in loader.iter()? {
            std::hint::black_box(batch?.as_slice()[0]);
            arrived += 1;
        }
        epochs.push(called.elapsed().as_secs_f64());
        ensure!(arrived == batches, "{arrived} of {batches} batches");
    }
    let pauses: Duration = (0..count).map(Stragglers::pause).sum();
    let ideal_seconds = pauses.as_secs_f64() / options.workers.max(1) as f64;
    let seconds = Spread::of(epochs);
    let of_ideal = ideal_seconds / seconds.median;
    system::print(&Line { loader: "ours", options, batches, seconds, ideal_seconds, of_ideal, check })
}
