//! `start`: the time from `iter()` to the first batch.

use std::time::Instant;

use anyhow::Context;
use loader_core::{DataLoader, Dataset, Element, Sample, Tensor};
use serde::Serialize;

use crate::{
    datasets::{Integers, Names, Rows, SAMPLES},
    options::{DatasetKind, Options},
    system::{self, Spread},
};

#[derive(Debug, Serialize)]
struct Line<'a> {
    loader: &'static str,
    options: &'a Options,
    /// Time of the first start in this process.
    cold_ms: f64,
    /// Time of each other start.
    first_batch_ms: Spread,
    /// Time of each drop of the iterator, until its workers are gone. The first drop is left out.
    drop_ms: Spread,
}

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    match options.dataset {
        DatasetKind::Trivial => measure(options, Integers { count: SAMPLES }),
        DatasetKind::Names => measure(options, Names::new(SAMPLES)?),
        DatasetKind::Memory => measure(options, Rows::new()?),
    }
}

fn measure<D, T>(options: &Options, dataset: D) -> anyhow::Result<()>
where
    D: Dataset,
    D::Sample: Sample<Batch = Tensor<T>>,
    T: Element,
{
    let loader = DataLoader::builder(dataset).options(options.loader()).build()?;
    let (mut starts, mut ends) = (Vec::new(), Vec::new());
    for _ in 0..=options.epochs() {
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
    ends.remove(0);
    let (first_batch_ms, drop_ms) = (Spread::of(starts), Spread::of(ends));
    system::print(&Line { loader: "ours", options, cold_ms, first_batch_ms, drop_ms })
}
