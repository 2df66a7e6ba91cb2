//! A training script that ends in some way: `test-script KIND WORKERS STAYS HOLD WAY`. It prints the pids of its workers as one JSON
//! line, and ends as its last argument says.

use std::{io::Write, process::exit};

use anyhow::{Context, bail};
use loader_core::{collate::Batch, prelude::*};
use loader_tests::datasets::{Counting, Fault, Faulty};
use nix::sys::{
    resource::{Resource, getrlimit, setrlimit},
    signal::{Signal, raise},
};

fn main() -> anyhow::Result<()> {
    loader_worker::init();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [kind, workers, stays, hold, way] = &arguments[..] else { bail!("five arguments, please") };
    let (workers, stays, hold): (usize, bool, bool) = (workers.parse()?, stays.parse()?, hold.parse()?);
    let fault = match way.as_str() {
        "worker-error" => Fault::Error,
        "worker-kill" => Fault::Kill,
        _ => Fault::Ragged,
    };
    match kind.as_str() {
        "map" => {
            // A fault behind the end is none.
            let at = if matches!(fault, Fault::Ragged) { usize::MAX } else { 12 };
            let builder = DataLoader::builder(Faulty { count: 40, at, fault }).batch_size(2);
            train(&builder.num_workers(workers).persistent_workers(stays).build()?, hold, way)
        }
        "stream" => {
            let dataset = Counting { count: 40 }.map(|sample, _| Ok(sample));
            let builder = DataLoader::stream(dataset).batch_size(2);
            let builder = builder.num_workers(workers).persistent_workers(stays);
            match fault {
                Fault::Ragged => train(&builder.build()?, hold, way),
                _ => {
                    let loader = builder.collate(|samples| {
                        if samples.iter().any(|(number, _)| *number == 12) {
                            // Which of the two is asked for is not known here; the environment goes to the workers.
                            if std::env::var_os("SCRIPT_KILLS").is_some() {
                                raise(Signal::SIGKILL)?;
                            }
                            bail!("the disk is on fire");
                        }
                        Ok(samples.len() as u64)
                    });
                    train(&loader.build()?, hold, way)
                }
            }
        }
        _ => bail!("no such kind: {kind}"),
    }
}

fn train<B: Batch>(loader: &DataLoader<B>, hold: bool, way: &str) -> anyhow::Result<()> {
    let mut batches = loader.iter()?;
    println!("{}", serde_json::to_string(&batches.worker_pids())?);
    std::io::stdout().flush()?;
    if way == "descriptors" {
        return hold_many(loader);
    }
    let mut step = 0;
    for batch in batches.by_ref() {
        drop(batch.context("a batch failed")?);
        step += 1;
        match way {
            "early-exit" => break,
            "loader-error" if step == 3 => panic!("Error loader"),
            "loader-exit" if step == 3 => exit(7),
            "loader-kill" if step == 3 => drop(raise(Signal::SIGKILL)),
            _ => {}
        }
    }
    if hold {
        std::mem::forget(batches);
    }
    Ok(())
}

/// Keeps many small batches where a process may have few files open.
fn hold_many<B: Batch>(loader: &DataLoader<B>) -> anyhow::Result<()> {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, 100, hard)?;
    let mut held = Vec::new();
    for _ in 0..40 {
        for batch in loader.iter()? {
            held.push(batch?);
        }
    }
    anyhow::ensure!(held.len() >= 200);
    Ok(())
}
