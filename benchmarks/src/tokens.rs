//! `tokens`: the cost of batches of 16 x 2048 tokens, which are read from a file of 16-bit numbers.

use anyhow::{Context, ensure};

use crate::{
    datasets::Tokens,
    options::Options,
    throughput::{self, ends},
};

/// Number of batches in the checksum.
const CHECKED: usize = 16;

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let path = options.file.as_deref().context("--file is missing")?;
    let available = Tokens::available(path)?;
    let batches = options.batches.unwrap_or(available / options.batch_size());
    let wanted = batches.max(CHECKED) * options.batch_size();
    ensure!(wanted <= available, "{} has {available} samples, {wanted} are needed", path.display());
    // A worker need not start in the current folder of this process.
    let path = std::path::absolute(path)?;
    throughput::measure(
        options,
        batches,
        CHECKED,
        |count| Ok(Tokens::new(path.clone(), count)),
        |batch| ends(batch).map(|token| token as f64).sum(),
        i64::cast_unsigned,
    )
}
