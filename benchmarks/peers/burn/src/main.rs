//! Burn's data loader beside this loader, both in a program of burn and behind burn's trait `DataLoader`.
//!
//! Both sides have the same dataset (of burn, with the decoder of loader-data) and the same `Batcher`. With
//! `--same-decoder`, they still decode in the same way, but this loader makes the tensors in its workers. With
//! `--as-it-comes`, each has what its users would take: burn has its own datasets, too.

mod loaders;
mod options;
mod photos;
mod rows;
#[path = "../../../src/system.rs"]
#[allow(dead_code, reason = "some of its functions are for other benchmarks")]
mod system;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use burn_core::{
    data::dataloader::DataLoader as BurnDataLoader,
    tensor::{Int, Tensor},
};
use clap::Parser;
use options::{Options, Workload};
use serde::Serialize;
use serde_json::{Value, json};
use system::{Memory, Spread};

/// The first fifth of an epoch is warm-up, as in the other benchmarks.
const WARM_UP_DIVISOR: usize = 5;
/// Time between two looks at the memory.
const LOOK: Duration = Duration::from_millis(20);

/// A batch on either side: numbers and labels.
type Batch<const D: usize> = (Tensor<D>, Tensor<1, Int>);
type Loader<const D: usize> = Arc<dyn BurnDataLoader<Batch<D>>>;

fn main() -> anyhow::Result<()> {
    loader::init();
    let options = Options::parse();
    match options.workload {
        Workload::Images => {
            throughput(&options, &photos::loader(&options)?, |(_, labels)| labels_sum(labels))
        }
        Workload::Rows => throughput(&options, &rows::loader(&options)?, |(numbers, labels)| {
            Ok(numbers.clone().sum().try_into_scalar::<f32>()? as f64 + labels_sum(labels)?)
        }),
        Workload::Memory => memory(&options, &photos::loader(&options)?),
    }
}

fn labels_sum(labels: &Tensor<1, Int>) -> anyhow::Result<f64> {
    Ok(labels.clone().sum().try_into_scalar::<i64>()? as f64)
}

/// Measures the time from the first `iter` to the first batch, and the rate of the epochs after the first. `content`
/// is added up over the first epoch, and must be equal on both sides.
fn throughput<const D: usize>(
    options: &Options,
    loader: &Loader<D>,
    content: impl Fn(&Batch<D>) -> anyhow::Result<f64>,
) -> anyhow::Result<()> {
    let (mut sum, mut batches, mut samples) = (0.0, 0, 0);
    let mut shape = [0; D];
    let mut first_batch = None;
    let started = Instant::now();
    for batch in loader.iter() {
        let batch = batch?;
        first_batch.get_or_insert_with(|| started.elapsed());
        sum += content(&batch)?;
        batches += 1;
        samples += batch.0.dims()[0];
        // The last batch may have fewer samples. Burn's threads return it at any time.
        shape = shape.max(batch.0.dims());
    }
    let warm_up = batches / WARM_UP_DIVISOR;
    ensure!(batches > warm_up + 1, "{batches} batches are too few");

    let first_batch = first_batch.context("no batches")?;
    let (mut rates, mut later) = (Vec::new(), Vec::new());
    let cpu = system::cpu_microseconds()?;
    for _ in 0..options.epochs {
        let started = Instant::now();
        let mut arrivals = Vec::with_capacity(batches);
        for batch in loader.iter() {
            let (numbers, _) = std::hint::black_box(batch?);
            arrivals.push((Instant::now(), numbers.dims()[0]));
        }
        ensure!(arrivals.len() == batches, "{} of {batches} batches", arrivals.len());
        later.push((arrivals[0].0 - started).as_secs_f64() * 1e3);
        let steady = &arrivals[warm_up..];
        let seconds = (steady[steady.len() - 1].0 - steady[0].0).as_secs_f64();
        let samples: usize = steady[1..].iter().map(|(_, samples)| samples).sum();
        rates.push(samples as f64 / seconds);
    }
    let loaded = (samples * options.epochs) as f64;
    options.print(json!({
        "samples_per_second": Spread::of(rates),
        // Of the first epoch, which starts the threads of burn and the workers of this loader.
        "first_batch_ms": first_batch.as_secs_f64() * 1e3,
        // Of the other epochs. Burn's threads are still there; this loader starts workers again.
        "later_first_batch_ms": Spread::of(later),
        "cpu_us_per_sample": (system::cpu_microseconds()? - cpu) / loaded,
        "check": { "batches": batches, "samples": samples, "shape": shape.as_slice(), "sum": sum },
    }))
}

/// Measures the peak of the memory of all processes in an epoch, while the program takes `--step-ms` per batch.
fn memory<const D: usize>(options: &Options, loader: &Loader<D>) -> anyhow::Result<()> {
    let (mut batches, mut shape) = (0, [0; D]);
    let ended = AtomicBool::new(false);
    let peak = thread::scope(|scope| {
        let looking = scope.spawn(|| {
            let mut peak = Peak::default();
            while !ended.load(Ordering::Relaxed) {
                peak.look();
                thread::sleep(LOOK);
            }
            peak
        });
        let loaded = (|| {
            for batch in loader.iter() {
                let batch = batch?;
                thread::sleep(Duration::from_millis(options.step_ms));
                batches += 1;
                shape = shape.max(batch.0.dims());
            }
            anyhow::Ok(())
        })();
        ended.store(true, Ordering::Relaxed);
        let peak =
            looking.join().map_err(|_| anyhow::anyhow!("the thread that reads the memory has panicked"))?;
        loaded.map(|()| peak)
    })?;
    options.print(json!({
        "pss": peak.pss,
        "processes": peak.processes,
        "check": { "batches": batches, "shape": shape.as_slice() },
    }))
}

/// The most memory seen.
#[derive(Debug, Default, Serialize)]
struct Peak {
    /// Sum over this process and its children.
    pss: u64,
    /// Number of processes then.
    processes: usize,
}

impl Peak {
    fn look(&mut self) {
        let pids: Vec<u32> = [std::process::id()].into_iter().chain(children()).collect();
        // A process may end meanwhile.
        let found: Vec<Memory> = pids.into_iter().filter_map(|pid| Memory::of(pid).ok()).collect();
        let pss = found.iter().map(|memory| memory.pss).sum();
        if pss > self.pss {
            *self = Self { pss, processes: found.len() };
        }
    }
}

/// Returns the children of all threads of this process.
fn children() -> Vec<u32> {
    let threads = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let lists = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok());
    lists
        .flat_map(|list| list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
        .collect()
}

impl Options {
    /// Prints a line of JSON.
    fn print(&self, figures: Value) -> anyhow::Result<()> {
        let mut line = json!({ "loader": self.loader, "options": self });
        let figures = figures.as_object().context("the figures are not an object")?;
        line.as_object_mut().context("the line is not an object")?.extend(figures.clone());
        system::print(&line)
    }
}
