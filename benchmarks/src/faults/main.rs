//! Measures what this loader does when something goes wrong, with the faults of
//! `benchmarks/faults/pytorch.py`. Each fault is tried many times, each time in a separate process. Prints a
//! table, and fails if a batch was wrong, or missing without an error.
//!
//! ```sh
//! cargo run --release -p loader-benchmarks --bin loader-bench-faults -- \
//!     [--tries N] [--only NAME] [--write | --document]
//! ```

mod host;
mod list;
mod results;
mod tries;

use anyhow::ensure;
use clap::Parser;

use crate::{
    list::{FAULTS, Fault},
    results::Results,
    tries::{Outcome, Try},
};

#[derive(Debug, Parser)]
struct Arguments {
    /// Number of tries of each fault.
    #[arg(long, default_value_t = 20)]
    tries: usize,
    /// Try only the faults whose name contains this text.
    #[arg(long, default_value = "")]
    only: String,
    /// Write every try to benchmarks/results/faults.json, and the tables to docs/reliability.md.
    #[arg(long)]
    write: bool,
    /// Run no fault; write the tables from benchmarks/results/faults.json to docs/reliability.md.
    #[arg(long, conflicts_with = "write")]
    document: bool,
    /// Run as the program in which this fault happens.
    #[arg(long, hide = true)]
    host: Option<String>,
}

fn main() -> anyhow::Result<()> {
    loader_worker::init();
    let arguments = Arguments::parse();
    if let Some(name) = &arguments.host {
        return host::run(Fault::find(name)?);
    }
    if arguments.document {
        return results::write_document();
    }
    println!(
        "| fault | tries | survived | one batch lost | lost | hung | wrong | time: median (range) | tries with leftovers | what the user sees |"
    );
    println!("|{}", "---|".repeat(10));
    let mut all = Vec::new();
    for fault in FAULTS.iter().filter(|fault| fault.name.contains(&arguments.only)) {
        let tries: Vec<Try> = (0..arguments.tries).map(|_| tries::run(fault)).collect::<Result<_, _>>()?;
        println!("{}", row(fault, &tries));
        all.extend(tries);
    }
    let wrong = all.iter().filter(|done| done.outcome == Outcome::Wrong).count();
    if arguments.write {
        Results::write(all)?;
        results::write_document()?;
    }
    ensure!(wrong == 0, "in {wrong} tries batches were wrong, or missing without an error");
    Ok(())
}

fn row(fault: &Fault, tries: &[Try]) -> String {
    let count = |outcome| tries.iter().filter(|done| done.outcome == outcome).count();
    let left_over = tries.iter().filter(|done| done.left_over).count();
    let text = tries.iter().find_map(|done| done.text.clone()).unwrap_or_default();
    let outcomes = [Outcome::Survived, Outcome::LostOne, Outcome::Lost, Outcome::Hung, Outcome::Wrong];
    let counts = outcomes.map(|outcome| count(outcome).to_string()).join(" | ");
    let took = results::spread(tries.iter().map(|done| done.milliseconds / 1e3).collect());
    format!("| {} | {} | {counts} | {took} | {left_over} | {text} |", fault.description, tries.len())
}
