//! A main process that dies: `test-host WAY WORKERS`. It prints the pids of its workers as one JSON line while they work, then
//! dies in the given way.
#![allow(unsafe_code)] // for `fork` and `signal`, which only a test wants

use std::{io::Write, os::unix::process::CommandExt, process::Command, thread, time::Duration};

use loader_core::{Error, prelude::*};
use loader_tests::datasets::{Fault, Faulty, Slow};
use nix::{
    sys::signal::{SigHandler, Signal, signal},
    unistd::{ForkResult, fork},
};

fn main() -> anyhow::Result<()> {
    loader_worker::init();
    end_by_signals()?;
    let mut arguments = std::env::args().skip(1);
    let way = arguments.next().unwrap_or_default();
    let workers: usize = arguments.next().unwrap_or_default().parse()?;
    if way == "hung" {
        // Workers that never look at anything again.
        let dataset = Faulty { count: 1000, at: 0, fault: Fault::Hang };
        return die(&way, DataLoader::builder(dataset).batch_size(1000).num_workers(workers).build()?);
    }
    match way.as_str() {
        "chatty" => return chatty(workers),
        "fork-load" => return load_after_fork(workers),
        "rest" => return rest(workers),
        "churn" => return churn(workers),
        "dying" => return dying(workers),
        "stopped" => {
            let dataset = Faulty { count: 1000, at: 0, fault: Fault::Stop };
            return die(&way, DataLoader::builder(dataset).num_workers(workers).build()?);
        }
        _ => {}
    }
    let dataset = Slow { count: 100_000, delay: Duration::from_millis(5) };
    die(&way, DataLoader::builder(dataset).batch_size(4).num_workers(workers).build()?)
}

/// Lets every signal have its default effect. A program that `nohup` or a shell starts in the background ignores some of them.
fn end_by_signals() -> nix::Result<()> {
    for number in [Signal::SIGHUP, Signal::SIGINT, Signal::SIGQUIT] {
        // SAFETY: no handler runs.
        unsafe { signal(number, SigHandler::SigDfl) }?;
    }
    Ok(())
}

fn die<B: loader_core::collate::Batch>(way: &str, loader: DataLoader<B>) -> anyhow::Result<()> {
    let mut batches = loader.iter()?;
    say(&batches.worker_pids())?;
    match way {
        // To be killed from outside: busy in `next`, or in the training step.
        "wait" => batches.by_ref().for_each(drop),
        "step" | "hung" | "stopped" => thread::sleep(Duration::from_secs(60)),
        "exit" => std::process::exit(3),
        "abort" => std::process::abort(),
        "panic" => panic!("the training step panics"),
        "return" => return Ok(()),
        "leak" => std::mem::forget(batches),
        "exec" => return Err(Command::new("sleep").arg("60").exec().into()),
        "program" => {
            // It lives on, in a session of its own, with whatever it inherited.
            Command::new("setsid").args(["sleep", "60"]).spawn()?;
            std::process::abort();
        }
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

/// Persistent workers, at rest between two epochs.
fn rest(workers: usize) -> anyhow::Result<()> {
    let dataset = Slow { count: 40, delay: Duration::ZERO };
    let loader = DataLoader::builder(dataset).num_workers(workers).persistent_workers(true).build()?;
    let mut batches = loader.iter()?;
    let pids = batches.worker_pids();
    batches.by_ref().for_each(drop);
    drop(batches);
    say(&pids)?;
    thread::sleep(Duration::from_secs(60));
    Ok(())
}

/// Epochs that start and end all the time.
fn churn(workers: usize) -> anyhow::Result<()> {
    let dataset = Slow { count: 10_000, delay: Duration::from_micros(200) };
    let loader = DataLoader::builder(dataset).num_workers(workers).build()?;
    for length in (0..40).cycle() {
        let batches = loader.iter()?;
        say(&batches.worker_pids())?;
        batches.take(length).for_each(drop);
    }
    Ok(())
}

/// Workers that die all the time, and are started again.
fn dying(workers: usize) -> anyhow::Result<()> {
    let dataset = Slow { count: 1_000_000, delay: Duration::from_micros(200) };
    let builder = DataLoader::builder(dataset).num_workers(workers).max_worker_deaths(1_000_000);
    let mut batches = builder.on_warning(|_| {}).build()?.iter()?;
    loop {
        let pids = batches.worker_pids();
        say(&pids)?;
        for pid in pids {
            // It may have ended and not been replaced yet.
            let pid = nix::unistd::Pid::from_raw(pid.cast_signed());
            let _ = nix::sys::signal::kill(pid, Signal::SIGKILL);
            batches.by_ref().take(5).for_each(drop);
        }
    }
}

fn say(pids: &[u32]) -> anyhow::Result<()> {
    println!("{}", serde_json::to_string(pids)?);
    Ok(std::io::stdout().flush()?)
}

/// Workers that print without end, while nobody reads this process's standard error.
fn chatty(workers: usize) -> anyhow::Result<()> {
    let dataset = Faulty { count: 100, at: 0, fault: Fault::PrintForever };
    let builder = DataLoader::builder(dataset).num_workers(workers);
    let loader = builder.on_worker_death(OnWorkerDeath::Fail).build()?;
    let mut batches = loader.iter()?;
    let pids = batches.worker_pids();
    thread::sleep(Duration::from_millis(300));
    // The death of another worker must be noticed all the same.
    loader_tests::processes::signal(pids[1], Signal::SIGKILL);
    let died =
        batches.next().is_some_and(|batch| matches!(batch, Err(Error::WorkerExited { worker: 1, .. })));
    drop(batches);
    println!("{died} {}", pids.iter().all(|&pid| !loader_tests::processes::exists(pid)));
    Ok(())
}

/// A forked child that loads with its parent's loader must not touch its parent's batches.
fn load_after_fork(workers: usize) -> anyhow::Result<()> {
    let dataset = Slow { count: 40, delay: Duration::ZERO };
    let loader = DataLoader::builder(dataset).batch_size(2).num_workers(workers).build()?;
    let mut batches = loader.iter()?;
    let held: Vec<Tensor<u64>> = batches.by_ref().take(5).collect::<Result<_, _>>()?;
    // SAFETY: this thread is the only one that the child goes on with; what other threads may hold locked (the reaper: nothing
    // that is used here) it does not wait for.
    match unsafe { fork() }? {
        ForkResult::Child => {
            let refused = batches.next().is_some_and(|batch| batch.is_err());
            let own = loader.epoch(0)?.filter_map(Result::ok).count();
            std::process::exit(if refused && own == 20 { 0 } else { 1 });
        }
        ForkResult::Parent { child } => {
            let status = nix::sys::wait::waitpid(child, None)?;
            let intact = held.iter().flat_map(|batch| batch.as_slice()).copied().eq(0..10);
            let rest = batches.filter_map(Result::ok).count();
            println!("{} {intact} {rest}", matches!(status, nix::sys::wait::WaitStatus::Exited(_, 0)));
        }
    }
    Ok(())
}
