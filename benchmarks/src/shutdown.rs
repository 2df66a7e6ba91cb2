//! From the drop of an iterator in the middle of an epoch until its workers are gone.

use std::{
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use loader_core::DataLoader;
use serde::Serialize;

use crate::{
    datasets::{Integers, SAMPLES},
    options::Options,
    system::{self, Spread},
};

/// Batches before the drop.
const BATCHES: usize = 10;
/// No worker may take longer.
const LIMIT: Duration = Duration::from_secs(60);

#[derive(Debug, Serialize)]
struct Line<'a> {
    loader: &'static str,
    options: &'a Options,
    /// One figure a drop, the first one left out.
    drop_ms: Spread,
}

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let batches = options.batches.unwrap_or(BATCHES);
    let loader = DataLoader::builder(Integers { count: SAMPLES }).options(options.loader()).build()?;
    let mut drops = Vec::new();
    for _ in 0..=options.epochs() {
        let mut iter = loader.iter()?;
        for _ in 0..batches {
            std::hint::black_box(iter.next().context("the epoch is too short")??.as_slice()[0]);
        }
        let workers: Vec<PathBuf> =
            iter.worker_pids().into_iter().map(|pid| PathBuf::from(format!("/proc/{pid}"))).collect();
        let called = Instant::now();
        drop(iter);
        // A process that nobody has waited for yet is still there.
        while workers.iter().any(|worker| worker.exists()) {
            ensure!(called.elapsed() < LIMIT, "workers are left");
            thread::sleep(Duration::from_micros(50));
        }
        drops.push(called.elapsed().as_secs_f64() * 1e3);
    }
    drops.remove(0);
    system::print(&Line { loader: "ours", options, drop_ms: Spread::of(drops) })
}
