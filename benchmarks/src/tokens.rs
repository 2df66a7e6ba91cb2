//! `tokens`: the cost of batches of 16 x 2048 tokens, which are read from a file of 16-bit numbers; and, with
//! `--decoder`, the cost of the same batches without a loader.

use std::{fs::File, hint::black_box, os::unix::fs::FileExt, path::Path};

use anyhow::{Context, ensure};
use loader_core::{DType, Dataset, SampleContext, Subset, rand::seq::SliceRandom};
use loader_data::Tokens;

use crate::{
    formats,
    options::Options,
    throughput::{self, ends},
};

/// Number of tokens in a sample.
const LENGTH: usize = 2048;
const BYTES: usize = LENGTH * size_of::<u16>();
/// Number of batches in the checksum.
const CHECKED: usize = 16;

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    // A worker need not start in the current folder of this process.
    let path = std::path::absolute(options.file.as_deref().context("--file is missing")?)?;
    if options.decoder {
        return formats::decoder(options, || decode(options, &path));
    }
    let tokens = Tokens::<i64>::open(&path, DType::U16, LENGTH)?.stride(LENGTH)?;
    let batches = options.batches.unwrap_or(tokens.len() / options.batch_size());
    let wanted = batches.max(CHECKED) * options.batch_size();
    ensure!(wanted <= tokens.len(), "{} has {} samples, {wanted} are needed", path.display(), tokens.len());
    throughput::measure(
        options,
        batches,
        CHECKED,
        |count| Ok(Subset::new(tokens.clone(), 0..count)?),
        |batch| ends(batch).map(|token| token as f64).sum(),
        i64::cast_unsigned,
    )
}

/// Reads and widens the samples of an epoch in order, or with `--shuffle` in random order, and collects them
/// into batches.
fn decode(options: &Options, path: &Path) -> anyhow::Result<usize> {
    let file = File::open(path)?;
    let samples = options.batches.context("--batches is missing")? * options.batch_size();
    let mut order: Vec<usize> = (0..samples).collect();
    if options.shuffle {
        order.shuffle(SampleContext::new(0).rng());
    }
    let mut bytes = [0; BYTES];
    for indices in order.chunks(options.batch_size()) {
        let mut tokens = Vec::with_capacity(indices.len() * LENGTH);
        for index in indices {
            file.read_exact_at(&mut bytes, (index * BYTES) as u64)?;
            let (words, _) = bytes.as_chunks();
            tokens.extend(words.iter().map(|&word| i64::from(u16::from_le_bytes(word))));
        }
        black_box(tokens);
    }
    Ok(samples)
}
