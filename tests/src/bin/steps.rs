//! A program that loads an epoch: `test-steps KIND WORKERS`. It prints two lines of JSON: at the start the
//! pids of its workers, at the end the digests of order and content, the number of restarts, and the longest
//! wait for a batch in milliseconds. The environment sets the fault point at which a process dies.

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
    let [kind, workers] = &arguments[..] else { bail!("usage: test-steps KIND WORKERS") };
    let workers: usize = workers.parse()?;
    match kind.as_str() {
        "small" => load(
            &DataLoader::builder(Noise { count: 120 })
                .batch_size(4)
                .shuffle(true)
                .num_workers(workers)
                .build()?,
        ),
        // The first batches need larger slots than those that main leases.
        "large" => load(
            &DataLoader::builder(Large { count: 60, bytes: 100_000 })
                .batch_size(3)
                .num_workers(workers)
                .build()?,
        ),
        // Main waits for each batch.
        "slow" => load(
            &DataLoader::builder(Slow { count: 40, delay: Duration::from_millis(5) })
                .batch_size(2)
                .num_workers(workers)
                .build()?,
        ),
        // Main offers warmer slots to tasks, because the slots have more than a megabyte, and hedges late
        // batches.
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
        _ => bail!("unknown kind {kind}"),
    }
}

/// Leaves out the second number of each sample, which depends on how often the shard was read.
fn squares(samples: Vec<(u64, u64)>) -> anyhow::Result<Vec<u64>> {
    Ok(samples.into_iter().map(|(square, _)| square).collect())
}

fn load<B: Batch>(loader: &DataLoader<B>) -> anyhow::Result<()> {
    let mut batches = loader.iter()?;
    print(&batches.worker_pids())?;
    let (mut digest, mut longest) = (BatchDigest::new(), Duration::ZERO);
    loop {
        let started = Instant::now();
        let Some(batch) = batches.next() else { break };
        longest = longest.max(started.elapsed());
        digest.add(&batches.last_batch().expect("a batch was returned").indices, &batch?);
    }
    let restarts = batches.report().restarts;
    drop(batches);
    print(&(digest.order(), digest.content(), restarts, longest.as_millis()))
}

fn print(value: &impl serde::Serialize) -> anyhow::Result<()> {
    println!("{}", serde_json::to_string(value)?);
    Ok(io::stdout().flush()?)
}
