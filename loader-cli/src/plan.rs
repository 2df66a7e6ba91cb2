//! `loader plan`: prints the indices of each batch, computed by the same samplers as in a loader.

use std::io::{self, BufWriter, Write};

use loader_core::{LoaderOptions, sampler::Epoch};
use serde::Serialize;

use crate::{arguments::PlanArguments, interrupt::Interrupt, reporter::Reporter, settings, stop::Stop};

pub(crate) fn plan(arguments: &PlanArguments, reporter: &Reporter, interrupt: Interrupt) -> Result<(), Stop> {
    let (options, launched) =
        settings::with_rank(arguments.loader.options.clone().over(LoaderOptions::from_env()?))?;
    reporter.launched(launched.as_ref());
    let options = options.resolved();
    let batches = options.batch_sampler(arguments.length)?;
    let (seed, order) = (options.seed.unwrap_or_default(), options.order.unwrap_or_default());
    let mut out = BufWriter::new(io::stdout().lock());
    for epoch in 0..arguments.epochs {
        let plan = batches.batches(Epoch::new(seed, epoch).order(order));
        for (batch, indices) in (0u64..).zip(plan) {
            interrupt.check()?;
            serde_json::to_writer(&mut out, &PlannedBatch { epoch, batch, indices })
                .map_err(io::Error::from)?;
            out.write_all(b"\n")?;
        }
    }
    Ok(out.flush()?)
}

#[derive(Serialize)]
struct PlannedBatch {
    epoch: u64,
    batch: u64,
    indices: Vec<usize>,
}
