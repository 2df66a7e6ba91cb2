//! A main process that dies: `test-host WAY WORKERS`. It prints the process ids of its workers as one JSON
//! line while they work. Then it dies in the given way, or waits for a signal.
#![allow(unsafe_code)] // for `fork` and `signal`

use std::{
    io::Write,
    os::unix::process::CommandExt,
    process::{self, Command},
    thread,
    time::Duration,
};

use anyhow::Context as _;
use loader_core::{Error, collate::Batch, prelude::*};
use loader_tests::{
    datasets::{Fault, Faulty, Slow},
    processes,
};
use nix::{
    sys::{
        signal::{SigHandler, Signal, signal},
        wait::{WaitStatus, waitpid},
    },
    unistd::{ForkResult, fork},
};

/// How long a process sleeps that another one will kill.
const LONG: Duration = Duration::from_secs(60);

fn main() -> anyhow::Result<()> {
    loader_worker::init();
    restore_signals()?;
    let mut arguments = std::env::args().skip(1);
    let way = arguments.next().unwrap_or_default();
    let workers: usize = arguments.next().unwrap_or_default().parse()?;
    let faulty = |fault| DataLoader::builder(Faulty { count: 1000, at: 0, fault }).num_workers(workers);
    match way.as_str() {
        "chatty" => chatty(workers),
        "fork-load" => load_after_fork(workers),
        "rest" => rest(workers),
        "churn" => churn(workers),
        "dying" => dying(workers),
        "hung" => die(&way, faulty(Fault::Hang).batch_size(1000).build()?),
        "stopped" => die(&way, faulty(Fault::Stop).build()?),
        _ => {
            let dataset = Slow { count: 100_000, delay: Duration::from_millis(5) };
            die(&way, DataLoader::builder(dataset).batch_size(4).num_workers(workers).build()?)
        }
    }
}

/// Restores the default effect of signals that `nohup` or a shell may have set to be ignored.
fn restore_signals() -> nix::Result<()> {
    for number in [Signal::SIGHUP, Signal::SIGINT, Signal::SIGQUIT] {
        // SAFETY: no handler runs.
        unsafe { signal(number, SigHandler::SigDfl) }?;
    }
    Ok(())
}

fn die<B: Batch>(way: &str, loader: DataLoader<B>) -> anyhow::Result<()> {
    let mut batches = loader.iter()?;
    print_pids(&batches.worker_pids())?;
    match way {
        // Main is busy in `next`, or in the training step.
        "wait" => batches.by_ref().for_each(drop),
        "step" | "hung" | "stopped" => thread::sleep(LONG),
        "exec" => return Err(Command::new("sleep").arg("60").exec().into()),
        "program" => {
            // It has its own session, and all that it inherited.
            Command::new("setsid").args(["sleep", "60"]).spawn()?;
            process::abort();
        }
        "fork" => {
            // SAFETY: the child only sleeps, and calls nothing that needs a lock which another thread may
            // hold.
            if let ForkResult::Child = unsafe { fork() }? {
                thread::sleep(LONG);
                process::exit(0);
            }
            process::abort();
        }
        _ => anyhow::bail!("unknown way: {way}"),
    }
    Ok(())
}

/// Persistent workers wait for the next epoch.
fn rest(workers: usize) -> anyhow::Result<()> {
    let dataset = Slow { count: 40, delay: Duration::ZERO };
    let loader = DataLoader::builder(dataset).num_workers(workers).persistent_workers(true).build()?;
    let mut batches = loader.iter()?;
    let pids = batches.worker_pids();
    batches.by_ref().for_each(drop);
    drop(batches);
    print_pids(&pids)?;
    thread::sleep(LONG);
    Ok(())
}

/// Epochs start and end all the time.
fn churn(workers: usize) -> anyhow::Result<()> {
    let dataset = Slow { count: 10_000, delay: Duration::from_micros(200) };
    let loader = DataLoader::builder(dataset).num_workers(workers).build()?;
    for length in (0..40).cycle() {
        let batches = loader.iter()?;
        print_pids(&batches.worker_pids())?;
        batches.take(length).for_each(drop);
    }
    Ok(())
}

/// Workers are killed all the time, and replaced.
fn dying(workers: usize) -> anyhow::Result<()> {
    let dataset = Slow { count: 1_000_000, delay: Duration::from_micros(200) };
    let builder = DataLoader::builder(dataset).num_workers(workers).max_worker_deaths(1_000_000);
    let mut batches = builder.on_warning(|_| {}).build()?.iter()?;
    loop {
        let pids = batches.worker_pids();
        print_pids(&pids)?;
        for pid in pids {
            // The worker may have ended without being replaced yet.
            processes::try_signal(pid, Signal::SIGKILL);
            batches.by_ref().take(5).for_each(drop);
        }
    }
}

fn print_pids(pids: &[u32]) -> anyhow::Result<()> {
    println!("{}", serde_json::to_string(pids)?);
    Ok(std::io::stdout().flush()?)
}

/// A worker prints without end, and the parent of this process does not read its standard error. Prints
/// whether the death of another worker was noticed, and whether all workers ended. (A panic could not write
/// its message.)
fn chatty(workers: usize) -> anyhow::Result<()> {
    let dataset = Faulty { count: 100, at: 0, fault: Fault::PrintForever };
    let builder = DataLoader::builder(dataset).num_workers(workers);
    let loader = builder.on_worker_death(OnWorkerDeath::Fail).build()?;
    let mut batches = loader.iter()?;
    let pids = batches.worker_pids();
    thread::sleep(Duration::from_millis(300));
    processes::signal(pids[1], Signal::SIGKILL);
    let noticed =
        batches.next().is_some_and(|batch| matches!(batch, Err(Error::WorkerExited { worker: 1, .. })));
    drop(batches);
    println!("{noticed} {}", !processes::any_exists(&pids));
    Ok(())
}

/// A forked child loads with its parent's loader, and cannot use its parent's iterator.
fn load_after_fork(workers: usize) -> anyhow::Result<()> {
    let dataset = Slow { count: 40, delay: Duration::ZERO };
    let loader = DataLoader::builder(dataset).batch_size(2).num_workers(workers).build()?;
    let mut batches = loader.iter()?;
    let held: Vec<Tensor<u64>> = batches.by_ref().take(5).collect::<Result<_, _>>()?;
    let mut ahead = loader.epoch(1)?.convert_ahead(1, Ok)?;
    ahead.next().context("a first batch")??;
    // Once a batch is ready and the thread has another one, it holds no lock.
    thread::sleep(Duration::from_millis(200));
    // SAFETY: only this thread goes on in the child. The child does not wait for locks of other threads: the
    // reaper holds none that the code below needs.
    match unsafe { fork() }? {
        ForkResult::Child => {
            let refused = batches.next().is_some_and(|batch| batch.is_err());
            let no_thread = ahead.next().is_some_and(|batch| batch.is_err());
            drop(ahead);
            let own = loader.epoch(0)?.filter_map(Result::ok).count();
            process::exit(if refused && no_thread && own == 20 { 0 } else { 1 });
        }
        ForkResult::Parent { child } => {
            let status = waitpid(child, None)?;
            anyhow::ensure!(matches!(status, WaitStatus::Exited(_, 0)), "the child: {status:?}");
            anyhow::ensure!(held.iter().flat_map(|batch| batch.as_slice()).copied().eq(0..10));
            anyhow::ensure!(batches.filter_map(Result::ok).count() == 15, "the rest of the parent's epoch");
            anyhow::ensure!(ahead.filter_map(Result::ok).count() == 19, "the rest of the converted epoch");
        }
    }
    Ok(())
}
