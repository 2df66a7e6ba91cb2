//! `resume`: a run is stopped in the middle of an epoch and resumed with another number of workers.

use std::time::Instant;

use anyhow::{Context, ensure};
use loader_core::{DataLoader, Error, LoaderOptions, State, Tensor};
use serde::Serialize;

use crate::{
    datasets::{Integers, SAMPLES},
    options::Options,
    system::{self, Spread},
};

/// Number of batches before the first run is stopped.
const BATCHES: usize = 10_000;
/// Number of batches after that which are compared with those of a run that was not stopped.
const COMPARED: usize = 20;

#[derive(Debug, Serialize)]
struct Line<'a> {
    loader: &'static str,
    options: &'a Options,
    /// Size of the state as JSON.
    state_bytes: usize,
    /// Time to take the state and write it as JSON.
    save_us: Spread,
    /// Time from reading the JSON to the next batch.
    resume_ms: Spread,
    check: Check,
}

#[derive(Debug, Serialize)]
struct Check {
    /// Number of batches that equal those of a run that was not stopped.
    batches: usize,
}

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let stop = options.batches.unwrap_or(BATCHES);
    let first = loader(options.loader(), options.workers)?;
    let mut batches = first.iter()?;
    ensure!(batches.by_ref().take(stop).filter(Result::is_ok).count() == stop, "the epoch is too short");
    let (mut saves, mut resumes, mut json) = (Vec::new(), Vec::new(), String::new());
    for _ in 0..options.epochs() {
        let called = Instant::now();
        json = serde_json::to_string(&batches.state())?;
        saves.push(called.elapsed().as_secs_f64() * 1e6);
    }
    let expected = batches.take(COMPARED).collect::<Result<Vec<_>, Error>>()?;
    let second = loader(options.loader(), options.workers + 1)?;
    for _ in 0..options.epochs() {
        let called = Instant::now();
        let mut rest = second.resume(&serde_json::from_str::<State>(&json)?)?;
        let next = rest.next().context("the state is at the end of the epoch")??;
        resumes.push(called.elapsed().as_secs_f64() * 1e3);
        let further = rest.take(COMPARED - 1).collect::<Result<Vec<_>, Error>>()?;
        ensure!(std::iter::once(&next).chain(&further).eq(&expected), "the resumed run has other batches");
    }
    let (save_us, resume_ms) = (Spread::of(saves), Spread::of(resumes));
    let check = Check { batches: COMPARED };
    system::print(&Line { loader: "ours", options, state_bytes: json.len(), save_us, resume_ms, check })
}

fn loader(options: LoaderOptions, workers: usize) -> Result<DataLoader<Tensor<i64>>, Error> {
    DataLoader::builder(Integers { count: SAMPLES }).options(options.num_workers(workers)).build()
}
