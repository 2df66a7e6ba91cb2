//! `loader plan`: which sample goes where, as the loader's own samplers say.

use std::io::{self, BufWriter, Write};

use loader_core::{
    LoaderOptions,
    sampler::{BatchSampler, Epoch, FixedBatches, RandomSampler, Sampler, SequentialSampler},
};
use serde::Serialize;

use crate::{arguments::PlanArguments, interrupt::Interrupt, stop::Stop};

/// Prints the plan. There is nothing that could fail in it, so the number of errors is 0.
pub(crate) fn plan(arguments: &PlanArguments, interrupt: Interrupt) -> Result<u64, Stop> {
    let options = arguments.options().over(LoaderOptions::from_env()?).resolved();
    let batches = sampler(arguments.length, &options)?;
    let mut out = BufWriter::new(io::stdout().lock());
    for epoch in 0..arguments.epochs {
        let plan = batches.batches(Epoch { seed: options.seed.unwrap_or_default(), number: epoch });
        for (batch, indices) in (0u64..).zip(plan) {
            interrupt.check()?;
            serde_json::to_writer(&mut out, &Line { epoch, batch, indices }).map_err(io::Error::from)?;
            out.write_all(b"\n")?;
        }
    }
    out.flush()?;
    Ok(0)
}

#[derive(Serialize)]
struct Line {
    epoch: u64,
    batch: u64,
    indices: Vec<usize>,
}

fn sampler(length: usize, options: &LoaderOptions) -> Result<FixedBatches<Box<dyn Sampler>>, Stop> {
    let sampler: Box<dyn Sampler> = match options.shuffle {
        Some(true) => Box::new(RandomSampler::new(length)),
        _ => Box::new(SequentialSampler::new(length)),
    };
    match options.batch_size {
        Some(0) => {
            Err(Stop::InvalidArguments("batch_size: 0 samples do not make a batch; use 1 or more".to_owned()))
        }
        size => Ok(FixedBatches::new(sampler, size.unwrap_or(1), options.drop_last.unwrap_or_default())),
    }
}
