//! `shutdown`: the time from the drop of an iterator in the middle of an epoch until its workers are gone,
//! also if something is wrong with one of them.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use loader_core::{DataLoader, Iter, Tensor, Warning};
use nix::{
    errno::Errno,
    sys::{
        signal::{Signal, kill},
        wait::{Id, WaitPidFlag, waitid},
    },
    unistd::Pid,
};
use serde::Serialize;
use tempfile::TempDir;

use crate::{
    datasets::{SAMPLES, Sticky, Stuck},
    options::{Fault, Options},
    system::{self, Spread},
};

/// Number of batches before the drop.
const BATCHES: usize = 10;
/// Maximum time until the fault has happened, and until all workers are gone.
const LIMIT: Duration = Duration::from_secs(60);

#[derive(Debug, Serialize)]
struct Line<'a> {
    loader: &'static str,
    options: &'a Options,
    /// Time of each drop until no process is left. The first drop is left out.
    drop_ms: Spread,
    /// Time of each drop until it returns.
    returned_ms: Spread,
    /// Number of drops during which a worker was being started.
    while_starting: usize,
}

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let (mut gone, mut returned, mut while_starting) = (Vec::new(), Vec::new(), 0);
    for number in 0..=options.epochs() {
        let epoch = Faulty::new(options)?;
        let mut iter = epoch.loader.iter()?;
        epoch.read(&mut iter)?;
        let is_starting = epoch.begin(&mut iter)?;
        let called = Instant::now();
        drop(iter);
        let until_returned = called.elapsed();
        // A zombie counts as a process that is left.
        while has_children()? {
            ensure!(called.elapsed() < LIMIT, "workers are left {LIMIT:?} after the drop");
            thread::sleep(Duration::from_micros(50));
        }
        let until_gone = called.elapsed();
        if number > 0 {
            gone.push(until_gone.as_secs_f64() * 1e3);
            returned.push(until_returned.as_secs_f64() * 1e3);
            while_starting += usize::from(is_starting);
        }
    }
    let (drop_ms, returned_ms) = (Spread::of(gone), Spread::of(returned));
    system::print(&Line { loader: "ours", options, drop_ms, returned_ms, while_starting })
}

/// A loader, one of whose workers will have the fault.
struct Faulty {
    fault: Fault,
    batches: usize,
    loader: DataLoader<Tensor<i64>>,
    replaced: Arc<AtomicUsize>,
    folder: TempDir,
}

impl Faulty {
    fn new(options: &Options) -> anyhow::Result<Self> {
        let (fault, batches) = (options.fault, options.batches.unwrap_or(BATCHES));
        ensure!(fault == Fault::None || options.workers > 1, "`--fault` needs at least two workers");
        let folder = tempfile::tempdir()?;
        let replaced = Arc::new(AtomicUsize::new(0));
        // The worker gets stuck in a batch that is being loaded at the drop, but is not the very next one.
        let stuck = matches!(fault, Fault::Stuck | Fault::Blocked).then(|| Stuck {
            index: (batches + 1) * options.batch_size(),
            blocks_signals: fault == Fault::Blocked,
            note: note(folder.path()),
        });
        // There are enough samples to read on until main notices a death.
        let dataset = Sticky { count: 100 * SAMPLES, stuck };
        let mut builder = DataLoader::builder(dataset).options(options.loader());
        if fault == Fault::Killed {
            let replaced = Arc::clone(&replaced);
            builder = builder.in_order(false).on_warning(move |warning| {
                if matches!(warning, Warning::WorkerReplaced { .. }) {
                    replaced.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        Ok(Self { fault, batches, loader: builder.build()?, replaced, folder })
    }

    fn read(&self, iter: &mut Iter<Tensor<i64>>) -> anyhow::Result<()> {
        for _ in 0..self.batches {
            next(iter)?;
        }
        Ok(())
    }

    /// Causes the fault and waits until it has happened. Returns true if a worker is being started then.
    fn begin(&self, iter: &mut Iter<Tensor<i64>>) -> anyhow::Result<bool> {
        match self.fault {
            Fault::None => {}
            Fault::Stuck | Fault::Blocked => {
                let note = note(self.folder.path());
                wait_until(|| Ok(note.exists()))?;
            }
            Fault::Stopped => {
                let victim = iter.worker_pids()[0];
                kill(Pid::from_raw(victim.cast_signed()), Signal::SIGSTOP)?;
                wait_until(|| Ok(state(victim)? == 'T'))?;
            }
            Fault::Killed => {
                let victim = iter.worker_pids()[0];
                kill(Pid::from_raw(victim.cast_signed()), Signal::SIGKILL)?;
                // Reads batches of the other worker, until a warning says that the dead worker is replaced.
                while self.replaced.load(Ordering::Relaxed) == 0 {
                    next(iter)?;
                }
                return Ok(iter.worker_pids()[0] == victim);
            }
        }
        Ok(false)
    }
}

fn next(iter: &mut Iter<Tensor<i64>>) -> anyhow::Result<()> {
    std::hint::black_box(iter.next().context("the epoch is too short")??.as_slice()[0]);
    Ok(())
}

fn note(folder: &Path) -> PathBuf {
    folder.join("stuck")
}

fn wait_until(condition: impl Fn() -> anyhow::Result<bool>) -> anyhow::Result<()> {
    let called = Instant::now();
    while !condition()? {
        ensure!(called.elapsed() < LIMIT, "the fault did not happen within {LIMIT:?}");
        thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// Returns the kernel's letter for the state of a process.
fn state(pid: u32) -> anyhow::Result<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let after_name = stat.rsplit_once(") ").context("a process without a name")?.1;
    after_name.chars().next().context("a process without a state")
}

/// True if this process has children, including zombies. It starts no other children than workers.
fn has_children() -> anyhow::Result<bool> {
    let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    match waitid(Id::All, flags) {
        Ok(_) => Ok(true),
        Err(Errno::ECHILD) => Ok(false),
        Err(error) => Err(error.into()),
    }
}
