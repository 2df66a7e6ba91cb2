//! A program that loads an epoch: `test-steps KIND WORKERS`. It prints the pids of its workers as one JSON line, and at the end what the
//! epoch was, how many workers were started again, and the longest wait for a batch in milliseconds, as another. The environment says at which step of the protocol a process dies.

use std::{
    io::{self, Write},
    time::{Duration, Instant},
};

use anyhow::bail;
use loader_core::{collate::Batch, prelude::*};
use loader_tests::datasets::{Large, Noise, Slow, Squares};

fn main() -> anyhow::Result<()> {
    loader_worker::init();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [kind, workers] = &arguments[..] else { bail!("two arguments, please") };
    let workers: usize = workers.parse()?;
    match kind.as_str() {
        "small" => load(
            &DataLoader::builder(Noise { count: 120 })
                .batch_size(4)
                .shuffle(true)
                .num_workers(workers)
                .build()?,
        ),
        // Its first batches need larger slots than they have.
        "large" => load(
            &DataLoader::builder(Large { count: 60, bytes: 100_000 })
                .batch_size(3)
                .num_workers(workers)
                .build()?,
        ),
        // Main sleeps while each batch is loaded.
        "slow" => load(
            &DataLoader::builder(Slow { count: 40, delay: Duration::from_millis(5) })
                .batch_size(2)
                .num_workers(workers)
                .build()?,
        ),
        // Slots of more than a megabyte are offered while they are warm, and late batches are loaded twice.
        "offered" => load(
            &DataLoader::builder(Large { count: 360, bytes: 600_000 })
                .batch_size(3)
                .hedge(true)
                .prefetch_factor(3)
                .num_workers(workers)
                .build()?,
        ),
        "stream" => load(
            &DataLoader::stream(Squares { count: 120 })
                .shards(3)
                .batch_size(4)
                .collate(squares)
                .num_workers(workers)
                .build()?,
        ),
        "snapshots" => load(
            &DataLoader::stream(Squares { count: 120 })
                .snapshots()
                .shards(3)
                .batch_size(4)
                .collate(squares)
                .num_workers(workers)
                .build()?,
        ),
        _ => bail!("no such kind: {kind}"),
    }
}

/// Without what depends on how often a shard was read.
fn squares(samples: Vec<(u64, u64)>) -> anyhow::Result<Vec<u64>> {
    Ok(samples.into_iter().map(|(square, _)| square).collect())
}

fn load<B: Batch>(loader: &DataLoader<B>) -> anyhow::Result<()> {
    let mut batches = loader.iter()?;
    say(&batches.worker_pids())?;
    let (mut digest, mut longest) = (Digest::new(), Duration::ZERO);
    loop {
        let asked = Instant::now();
        let Some(batch) = batches.next() else { break };
        longest = longest.max(asked.elapsed());
        digest.add(&batches.last_batch().expect("a batch was returned").indices, &batch?);
    }
    let restarts = batches.report().restarts;
    drop(batches);
    say(&(digest.order(), digest.content(), restarts, longest.as_millis()))
}

fn say(value: &impl serde::Serialize) -> anyhow::Result<()> {
    println!("{}", serde_json::to_string(value)?);
    Ok(io::stdout().flush()?)
}
