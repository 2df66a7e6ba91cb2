//! What programs with candle usually do, beside this loader with `loader-candle`: samples a second, time to the first
//! batch, and memory.
//!
//!     cargo run --release -- digits
//!     cargo run --release -- photographs --folder ../../.data/images
//!
//! Each figure has a process of its own. In each round the sides take turns. The last lines have the medians of
//! the rounds, as JSON. All sides load the same samples with the same decoder, and make candle's tensors of them.

mod sides;

use std::{
    env,
    path::PathBuf,
    process::{Command, Stdio},
};

use anyhow::{Context, ensure};
use clap::{Parser, ValueEnum};
use serde_json::{Value, json};

use sides::Figures;

#[derive(Debug, Parser)]
struct Options {
    workload: Workload,
    /// Folder with one sub-folder of photographs per class.
    #[arg(long, required_if_eq("workload", "photographs"))]
    folder: Option<PathBuf>,
    #[arg(long, default_value_t = 64)]
    batch_size: usize,
    /// Number of batches; by default 2,000 of digits, and 20 of photographs.
    #[arg(long)]
    batches: Option<usize>,
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Measures this side once, in this process.
    #[arg(long)]
    side: Option<Side>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Workload {
    Digits,
    Photographs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Side {
    /// The loop loads each batch itself.
    Plain,
    /// A thread loads batches, and sends them over a channel with room for two.
    Thread,
    /// This loader, without workers.
    InProcess,
    /// This loader, with one worker.
    OneWorker,
    /// This loader, with two workers.
    TwoWorkers,
}

fn main() -> anyhow::Result<()> {
    loader::init(); // first line of main: a worker never returns from it

    let options = Options::parse();
    if let Some(side) = options.side {
        println!("{}", json!(sides::measure(&options, side)?));
        return Ok(());
    }
    let mut all: Vec<Vec<Figures>> = Side::value_variants().iter().map(|_| Vec::new()).collect();
    for round in 0..options.rounds {
        for (side, figures) in Side::value_variants().iter().zip(&mut all) {
            let measured = in_a_process(*side)?;
            println!("{}", json!({ "round": round, "side": name(*side), "figures": measured }));
            figures.push(measured);
        }
    }
    let checksum = all[0][0]["checksum"];
    let same = all.iter().flatten().all(|figures| figures["checksum"] == checksum);
    ensure!(same, "the sides have not loaded the same values");
    for (side, figures) in Side::value_variants().iter().zip(all) {
        let medians: Figures = figures[0].keys().map(|key| (key.clone(), median(&figures, key))).collect();
        println!(
            "{}",
            json!({ "workload": format!("{:?}", options.workload), "side": name(*side), "medians": medians })
        );
    }
    Ok(())
}

/// Measures one side in a new process, with the options of this one.
fn in_a_process(side: Side) -> anyhow::Result<Figures> {
    let mut command = Command::new(env::current_exe()?);
    let output = command
        .args(env::args_os().skip(1))
        .args(["--side", &name(side)])
        .stderr(Stdio::inherit())
        .output()?;
    ensure!(output.status.success(), "{}: {}", name(side), output.status);
    let figures: Value = serde_json::from_slice(&output.stdout)?;
    let figures = figures.as_object().context("the figures are no object")?;
    figures.iter().map(|(key, value)| Ok((key.clone(), value.as_f64().context("no number")?))).collect()
}

fn median(figures: &[Figures], key: &str) -> f64 {
    let mut values: Vec<f64> = figures.iter().map(|figures| figures[key]).collect();
    values.sort_by(f64::total_cmp);
    (values[(values.len() - 1) / 2] + values[values.len() / 2]) / 2.0
}

fn name(side: Side) -> String {
    side.to_possible_value().expect("every side has a name").get_name().to_owned()
}
