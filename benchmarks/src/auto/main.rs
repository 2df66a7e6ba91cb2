//! Compares `num_workers = "auto"` and `prefetch_factor = "auto"` with fixed numbers of workers, on five loads.
//! Each round measures every setting of a load, in turn. Prints a table, and writes
//! `benchmarks/results/auto.json` with `--write`.
//!
//! ```sh
//! cargo run --release -p loader-benchmarks --bin loader-bench-auto -- [--rounds N] [--only NAME] [--write]
//! ```

mod loads;

use std::{
    fs, iter,
    time::{Duration, Instant},
};

use anyhow::Context;
use clap::Parser;
use loader_core::{AutoWorkers, DataLoader, LoaderOptions, PrefetchFactor};
use serde::Serialize;

use loads::{LOADS, Load, Samples};

const RESULTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/results/auto.json");
/// Numbers of workers of the sweep; 0 is PyTorch's default.
const FIXED: [usize; 6] = [0, 1, 2, 4, 8, 16];
/// The search may take this many seconds. Then the rate is measured for as long as that of a fixed setting.
const SEARCH: Duration = Duration::from_secs(30);
/// Time before a fixed setting is measured, and for which it is.
const WARM_UP: Duration = Duration::from_secs(2);
const MEASURED: Duration = Duration::from_secs(8);

#[derive(Debug, Parser)]
struct Arguments {
    /// Number of rounds. Each takes eight minutes.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Measure only the loads whose name contains this text.
    #[arg(long, default_value = "")]
    only: String,
    /// Write the results to benchmarks/results/auto.json.
    #[arg(long)]
    write: bool,
}

#[derive(Debug, Serialize)]
struct Results {
    cpus: usize,
    loads: Vec<Compared>,
}

/// All rounds of a load.
#[derive(Debug, Serialize)]
struct Compared {
    load: &'static str,
    rounds: Vec<Round>,
    /// Number of workers with the highest median rate.
    best: usize,
    /// Rate of the search, divided by that of the best number of workers in the same round.
    auto_to_best: Vec<f64>,
}

/// Batches per second.
#[derive(Debug, Serialize)]
struct Round {
    /// For each of [`FIXED`].
    fixed: Vec<f64>,
    auto: Found,
}

/// What a search has found.
#[derive(Debug, Serialize)]
struct Found {
    rate: f64,
    workers: usize,
    prefetch_factor: usize,
    /// Number of batches and seconds until the last change.
    settled_after_batches: u64,
    settled_after_seconds: f64,
    decisions: Vec<String>,
}

fn main() -> anyhow::Result<()> {
    loader_worker::init();
    let arguments = Arguments::parse();
    let cpus = std::thread::available_parallelism()?.get();
    println!(
        "| load | best fixed | auto | auto / best | workers found | settled after | PyTorch's default (0) | {cpus} workers |"
    );
    println!("|{}", "---|".repeat(8));
    let mut loads = Vec::new();
    for load in LOADS.iter().filter(|load| load.name.contains(&arguments.only)) {
        let rounds: Vec<Round> =
            iter::repeat_with(|| round(load)).take(arguments.rounds).collect::<Result<_, _>>()?;
        let compared = compare(load, rounds);
        println!("{}", row(&compared, cpus));
        loads.push(compared);
    }
    if arguments.write {
        fs::write(RESULTS, serde_json::to_string_pretty(&Results { cpus, loads })? + "\n")?;
    }
    Ok(())
}

fn round(load: &Load) -> anyhow::Result<Round> {
    let fixed = FIXED.iter().map(|&workers| {
        let options = LoaderOptions::default().num_workers(workers);
        Ok(measure(load, options, WARM_UP)?.rate)
    });
    let fixed = fixed.collect::<anyhow::Result<_>>()?;
    let max = FIXED[FIXED.len() - 1];
    let auto = LoaderOptions::default()
        .num_workers(AutoWorkers::default().max(max))
        .prefetch_factor(PrefetchFactor::Auto);
    Ok(Round { fixed, auto: measure(load, auto, SEARCH)? })
}

/// Runs a program that trains on the load for `warm_up` and [`MEASURED`].
fn measure(load: &Load, options: LoaderOptions, warm_up: Duration) -> anyhow::Result<Found> {
    let options = options.batch_size(load.batch_size);
    let loader = DataLoader::builder(Samples(load.kind)).options(options).build()?;
    let mut batches = loader.iter()?;
    let (started, mut measured_from, mut count) = (Instant::now(), None, 0_u64);
    let (mut arrivals, mut last) = (Vec::new(), started);
    for batch in &mut batches {
        std::hint::black_box(batch?.as_slice()[0]);
        load.kind.step();
        last = Instant::now();
        arrivals.push(last - started);
        match measured_from {
            None if last - started >= warm_up => measured_from = Some(last),
            None => {}
            Some(from) => {
                count += 1;
                if last - from >= MEASURED {
                    break;
                }
            }
        }
    }
    let from = measured_from.context("the dataset is too short")?;
    let report = batches.report();
    let settled_after_batches = report.tuning.last().map_or(0, |decision| decision.batch);
    let index = usize::try_from(settled_after_batches)?.saturating_sub(1);
    Ok(Found {
        rate: count as f64 / (last - from).as_secs_f64(),
        workers: batches.num_workers(),
        prefetch_factor: report.tuning.last().map_or(2, |decision| decision.prefetch_factor.1),
        settled_after_batches,
        settled_after_seconds: if settled_after_batches == 0 { 0.0 } else { arrivals[index].as_secs_f64() },
        decisions: report.tuning.iter().map(ToString::to_string).collect(),
    })
}

fn compare(load: &Load, rounds: Vec<Round>) -> Compared {
    let rate = |index: usize| median(rounds.iter().map(|round| round.fixed[index]));
    let best = (0..FIXED.len()).max_by(|&a, &b| rate(a).total_cmp(&rate(b))).expect("there are settings");
    let auto_to_best = rounds.iter().map(|round| round.auto.rate / round.fixed[best]).collect();
    Compared { load: load.name, best: FIXED[best], auto_to_best, rounds }
}

fn row(compared: &Compared, cpus: usize) -> String {
    let Compared { load, rounds, best, auto_to_best } = compared;
    let of_fixed = |workers: usize| {
        let index = FIXED.iter().position(|&fixed| fixed == workers)?;
        Some(format!("{:.1}/s", median(rounds.iter().map(|round| round.fixed[index]))))
    };
    let of_fixed = |workers| of_fixed(workers).unwrap_or_else(|| "not measured".into());
    let auto = median(rounds.iter().map(|round| round.auto.rate));
    let (low, high) = (
        auto_to_best.iter().copied().fold(f64::MAX, f64::min),
        auto_to_best.iter().copied().fold(0.0, f64::max),
    );
    let ratio = format!("{:.2} ({low:.2}–{high:.2})", median(auto_to_best.iter().copied()));
    let found: Vec<_> = rounds
        .iter()
        .map(|round| format!("{} x {}", round.auto.workers, round.auto.prefetch_factor))
        .collect();
    let batches = median(rounds.iter().map(|round| round.auto.settled_after_batches as f64));
    let seconds = median(rounds.iter().map(|round| round.auto.settled_after_seconds));
    format!(
        "| {load} | {best} workers, {} | {auto:.1}/s | {ratio} | {} | {batches:.0} batches, {seconds:.1} s | {} | {} |",
        of_fixed(*best),
        found.join(", "),
        of_fixed(0),
        of_fixed(cpus),
    )
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
