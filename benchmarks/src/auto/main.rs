//! Compares `num_workers = "auto"` and `prefetch_factor = "auto"` with fixed numbers of workers, on five
//! loads. Each round measures every setting of a load, in turn. Also compares the rate that the loader
//! predicts for twice as many workers with the measured one. Prints two tables. With `--write`, replaces the
//! measured loads in `benchmarks/results/auto.json` and keeps the others.
//!
//! ```sh
//! cargo run --release -p loader-benchmarks --bin loader-bench-auto -- [--rounds N] [--only NAME] [--write]
//! ```

mod loads;

use std::{
    fs, iter,
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use clap::Parser;
use loader_core::{AutoWorkers, DataLoader, LoaderOptions, PrefetchFactor};
use serde::{Deserialize, Serialize};

use loads::{LOADS, Load, Samples};

const RESULTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/results/auto.json");
/// Numbers of workers and prefetch factors of the sweep; the first is PyTorch's default.
const FIXED: [(usize, usize); 8] = [(0, 2), (1, 2), (2, 2), (4, 2), (8, 2), (16, 2), (2, 8), (16, 8)];
/// Time that the loader gets to find its setting, before the rate is measured.
const SEARCH: Duration = Duration::from_secs(30);
/// Time before the rate of a fixed setting is measured.
const WARM_UP: Duration = Duration::from_secs(1);
/// Time for which each rate is measured.
const MEASURED: Duration = Duration::from_secs(6);

#[derive(Debug, Parser)]
struct Arguments {
    /// Number of rounds, at least 1. Each takes eight minutes.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Measure only the loads whose name contains this text.
    #[arg(long, default_value = "")]
    only: String,
    /// Write the measured loads into benchmarks/results/auto.json.
    #[arg(long)]
    write: bool,
}

#[derive(Debug, Serialize, Deserialize)]
struct Results {
    cpus: usize,
    loads: Vec<Compared>,
}

/// All rounds of a load.
#[derive(Debug, Serialize, Deserialize)]
struct Compared {
    load: String,
    rounds: Vec<Round>,
    /// Number of workers, at least 1, and prefetch factor with the highest median rate.
    best: (usize, usize),
    /// Rate with `auto`, divided by that of the best fixed setting in the same round.
    auto_to_best: Vec<f64>,
}

/// One measurement of each fixed setting, and one with `auto`. Rates are in batches per second.
#[derive(Debug, Serialize, Deserialize)]
struct Round {
    /// For each of [`FIXED`].
    fixed: Vec<f64>,
    /// For each of [`FIXED`], the rate that the loader predicts for twice as many workers.
    predicted_for_twice: Vec<Option<f64>>,
    auto: Measurement,
}

/// What one run has measured.
#[derive(Debug, Serialize, Deserialize)]
struct Measurement {
    rate: f64,
    predicted_for_twice: Option<f64>,
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
    let before = if arguments.write { read(cpus)? } else { Vec::new() };
    println!(
        "| load | best fixed | auto | auto / best | workers found | settled after | PyTorch's default (0) | {cpus} workers |"
    );
    println!("|{}", "---|".repeat(8));
    let mut loads = Vec::new();
    for load in LOADS.iter().filter(|load| load.name.contains(&arguments.only)) {
        let rounds: Vec<Round> =
            iter::repeat_with(|| round(load)).take(arguments.rounds as usize).collect::<Result<_, _>>()?;
        let compared = compare(load, rounds);
        println!("{}", row(&compared, cpus));
        loads.push(compared);
    }
    println!("\n| load | workers | predicted / measured with twice as many |");
    println!("|{}", "---|".repeat(3));
    loads.iter().flat_map(predictions).for_each(|row| println!("{row}"));
    if arguments.write {
        fs::write(RESULTS, text(&Results { cpus, loads: merged(before, loads) })?)?;
    }
    Ok(())
}

/// Returns the loads in the results file, if there is one.
fn read(cpus: usize) -> anyhow::Result<Vec<Compared>> {
    if !fs::exists(RESULTS)? {
        return Ok(Vec::new());
    }
    let results: Results = serde_json::from_str(&fs::read_to_string(RESULTS)?).context(RESULTS)?;
    let measured = results.cpus;
    ensure!(
        measured == cpus,
        "{RESULTS} is of {measured} CPUs, and this machine has {cpus}; move the file away"
    );
    Ok(results.loads)
}

fn text(results: &Results) -> anyhow::Result<String> {
    Ok(serde_json::to_string_pretty(results)? + "\n")
}

/// Replaces the loads that were measured again, and adds those that are new.
fn merged(mut loads: Vec<Compared>, measured: Vec<Compared>) -> Vec<Compared> {
    for new in measured {
        match loads.iter_mut().find(|before| before.load == new.load) {
            Some(before) => *before = new,
            None => loads.push(new),
        }
    }
    loads
}

fn round(load: &Load) -> anyhow::Result<Round> {
    let fixed = FIXED.iter().map(|&(workers, prefetch_factor)| {
        let mut options = LoaderOptions::default().num_workers(workers);
        options.prefetch_factor = (workers > 0).then_some(PrefetchFactor::Fixed(prefetch_factor));
        let found = measure(load, options, WARM_UP)?;
        Ok((found.rate, found.predicted_for_twice))
    });
    let (fixed, predicted_for_twice) = fixed.collect::<anyhow::Result<Vec<_>>>()?.into_iter().unzip();
    let max = FIXED.iter().map(|&(workers, _)| workers).max().expect("there are settings");
    let auto = LoaderOptions::default()
        .num_workers(AutoWorkers::default().max(max))
        .prefetch_factor(PrefetchFactor::Auto);
    Ok(Round { fixed, predicted_for_twice, auto: measure(load, auto, SEARCH)? })
}

/// Runs a program that trains on the load for `warm_up` and [`MEASURED`].
fn measure(load: &Load, options: LoaderOptions, warm_up: Duration) -> anyhow::Result<Measurement> {
    let options = options.batch_size(load.batch_size);
    let loader = DataLoader::builder(Samples(load.kind)).options(options).on_warning(|_| {}).build()?;
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
    let (workers, cpus) = (batches.num_workers(), std::thread::available_parallelism()?.get());
    Ok(Measurement {
        predicted_for_twice: report.figures.map(|figures| figures.predicted_rate(2 * workers, cpus)),
        rate: count as f64 / (last - from).as_secs_f64(),
        workers,
        prefetch_factor: report.tuning.last().map_or(2, |decision| decision.prefetch_factor.1),
        settled_after_batches,
        settled_after_seconds: if settled_after_batches == 0 { 0.0 } else { arrivals[index].as_secs_f64() },
        decisions: report.tuning.iter().map(ToString::to_string).collect(),
    })
}

fn compare(load: &Load, rounds: Vec<Round>) -> Compared {
    let rate = |index: usize| median(rounds.iter().map(|round| round.fixed[index]));
    let with_workers = (0..FIXED.len()).filter(|&index| FIXED[index].0 > 0);
    let best = with_workers.max_by(|&a, &b| rate(a).total_cmp(&rate(b))).expect("there are settings");
    let auto_to_best = rounds.iter().map(|round| round.auto.rate / round.fixed[best]).collect();
    Compared { load: load.name.to_owned(), best: FIXED[best], auto_to_best, rounds }
}

fn row(compared: &Compared, cpus: usize) -> String {
    let Compared { load, rounds, best, auto_to_best } = compared;
    let of_fixed = |setting| {
        let index = FIXED.iter().position(|&fixed| fixed == setting)?;
        Some(format!("{:.1}/s", median(rounds.iter().map(|round| round.fixed[index]))))
    };
    let of_fixed = |setting| of_fixed(setting).unwrap_or_else(|| "not measured".into());
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
        "| {load} | {} x {}, {} | {auto:.1}/s | {ratio} | {} | {batches:.0} batches, {seconds:.1} s | {} | {} |",
        best.0,
        best.1,
        of_fixed(*best),
        found.join(", "),
        of_fixed((0, 2)),
        of_fixed((cpus, 2)),
    )
}

/// Returns a row for each number of workers whose double was measured too.
fn predictions(compared: &Compared) -> Vec<String> {
    let position = |setting| FIXED.iter().position(|&fixed| fixed == setting);
    let pairs = FIXED.iter().filter_map(|&(workers, prefetch_factor)| {
        let twice = position((2 * workers, prefetch_factor)).filter(|_| workers > 0)?;
        Some((workers, position((workers, prefetch_factor))?, twice))
    });
    let row = |(workers, index, twice): (usize, usize, usize)| {
        let ratios = compared
            .rounds
            .iter()
            .filter_map(|round| Some(round.predicted_for_twice[index]? / round.fixed[twice]));
        format!("| {} | {workers} | {:.2} |", compared.load, median(ratios))
    };
    pairs.map(row).collect()
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loads_that_were_not_measured_stay_as_they_are() {
        let committed = fs::read_to_string(RESULTS).unwrap();
        let read = || serde_json::from_str::<Results>(&committed).unwrap();
        let Results { cpus, loads: before } = read();
        let names = |loads: &[Compared]| loads.iter().map(|load| load.load.clone()).collect::<Vec<_>>();
        let (order, mut again) = (names(&before), read().loads.swap_remove(1));
        again.auto_to_best = vec![0.5];
        let mut new = read().loads.swap_remove(0);
        new.load = "new".to_owned();

        let mut loads = merged(before, vec![again, new]);
        assert_eq!(loads.pop().map(|load| load.load).as_deref(), Some("new"));
        assert_eq!(names(&loads), order);
        assert_eq!(loads[1].auto_to_best, [0.5]);
        loads[1] = read().loads.swap_remove(1);
        assert_eq!(text(&Results { cpus, loads }).unwrap(), committed);
    }
}
