//! A main process that dies: `test-host WAY WORKERS`. It prints the pids of its workers as one JSON line while they work, then
//! dies in the given way.
#![allow(unsafe_code)] // for `fork`, which only a test wants

use std::{io::Write, os::unix::process::CommandExt, process::Command, thread, time::Duration};

use loader_core::prelude::*;
use loader_tests::datasets::{Fault, Faulty, Slow};
use nix::unistd::{ForkResult, fork};

fn main() -> anyhow::Result<()> {
    loader_worker::init();
    let mut arguments = std::env::args().skip(1);
    let way = arguments.next().unwrap_or_default();
    let workers: usize = arguments.next().unwrap_or_default().parse()?;
    if way == "hung" {
        // Workers that never look at anything again.
        let dataset = Faulty { count: 1000, at: 0, fault: Fault::Hang };
        return die(&way, DataLoader::builder(dataset).batch_size(1000).num_workers(workers).build()?);
    }
    let dataset = Slow { count: 100_000, delay: Duration::from_millis(5) };
    die(&way, DataLoader::builder(dataset).batch_size(4).num_workers(workers).build()?)
}

fn die<B: loader_core::collate::Batch>(way: &str, loader: DataLoader<B>) -> anyhow::Result<()> {
    let mut batches = loader.iter()?;
    println!("{}", serde_json::to_string(&batches.worker_pids())?);
    std::io::stdout().flush()?;
    match way {
        // To be killed from outside: busy in `next`, or in the training step.
        "wait" => batches.by_ref().for_each(drop),
        "step" | "hung" => thread::sleep(Duration::from_secs(60)),
        "exit" => std::process::exit(3),
        "abort" => std::process::abort(),
        "panic" => panic!("the training step panics"),
        "return" => return Ok(()),
        "leak" => std::mem::forget(batches),
        "exec" => return Err(Command::new("sleep").arg("60").exec().into()),
        "fork" => {
            // SAFETY: the child only sleeps, and calls nothing that another thread may hold a lock of.
            if let ForkResult::Child = unsafe { fork() }? {
                thread::sleep(Duration::from_secs(60));
                std::process::exit(0);
            }
            std::process::abort();
        }
        _ => anyhow::bail!("no such way to die: {way}"),
    }
    Ok(())
}
