//! A training script: `test-script KIND WORKERS PERSISTENT LEAKS WAY`. It prints the process ids of its
//! workers as one JSON line, trains with a dataset of the given kind, and ends in the given way.

use std::{io::Write, process};

use anyhow::{Context, bail};
use loader_core::{collate::Batch, prelude::*};
use loader_tests::datasets::{AsStream, Fault, Faulty};
use nix::sys::signal::{Signal, raise};

fn main() -> anyhow::Result<()> {
    loader_worker::init();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [kind, workers, persistent, leaks, way] = &arguments[..] else { bail!("five arguments are needed") };
    let (workers, persistent, leaks): (usize, bool, bool) =
        (workers.parse()?, persistent.parse()?, leaks.parse()?);
    let (bad_index, fault) = match way.as_str() {
        "worker-fails" => (12, Fault::Error),
        "worker-is-killed" => (12, Fault::Kill),
        // No sample has this index.
        _ => (usize::MAX, Fault::Error),
    };
    let dataset = Faulty { count: 40, at: bad_index, fault };
    match kind.as_str() {
        "map" => {
            let builder = DataLoader::builder(dataset).batch_size(2);
            train(&builder.num_workers(workers).persistent_workers(persistent).build()?, leaks, way)
        }
        "stream" => {
            let builder = DataLoader::stream(AsStream(dataset)).batch_size(2);
            train(&builder.num_workers(workers).persistent_workers(persistent).build()?, leaks, way)
        }
        _ => bail!("unknown kind: {kind}"),
    }
}

fn train<B: Batch>(loader: &DataLoader<B>, leaks: bool, way: &str) -> anyhow::Result<()> {
    let mut batches = loader.iter()?;
    println!("{}", serde_json::to_string(&batches.worker_pids())?);
    std::io::stdout().flush()?;
    let mut step = 0;
    for batch in batches.by_ref() {
        drop(batch.context("a batch failed")?);
        step += 1;
        match way {
            "early" => break,
            "main-panics" if step == 3 => panic!("the training step panics"),
            "main-exits" if step == 3 => process::exit(7),
            "main-aborts" if step == 3 => process::abort(),
            "main-is-killed" if step == 3 => drop(raise(Signal::SIGKILL)),
            _ => {}
        }
    }
    if leaks {
        std::mem::forget(batches);
    }
    Ok(())
}
