//! Measures what this loader does when something goes wrong, with the faults of
//! `benchmarks/faults/pytorch.py`, and with faults from outside: of the surroundings of its processes, and of its files.
//! Each fault is tried many times, each time in a separate process. Prints a table, and fails if a batch was wrong, or
//! missing without an error, or if a try did not keep the promise of its fault.
//!
//! ```sh
//! cargo run --release -p loader-benchmarks --features formats --bin loader-bench-faults -- \
//!     [--tries N] [--only NAME] [--write | --document]
//! ```

mod artefacts;
mod host;
mod list;
mod outside;
mod results;
mod surroundings;
mod template;
mod tries;

use std::{env, process::ExitCode};

use anyhow::ensure;
use clap::Parser;

use crate::{
    list::{Action, FAULTS, Fault},
    results::Results,
    tries::{Impossible, OUTCOMES, Try},
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
    /// Number of the try, for a program in which a fault happens.
    #[arg(long, hide = true, default_value_t = 0)]
    number: usize,
}

fn main() -> anyhow::Result<ExitCode> {
    // Before `init`, which takes a template for a worker.
    if let [_, argument, fault, number] = &env::args().collect::<Vec<_>>()[..]
        && argument == template::ARGUMENT
    {
        return template::serve(fault, number.parse()?);
    }
    loader_worker::init();
    run(&Arguments::parse())?;
    Ok(ExitCode::SUCCESS)
}

fn run(arguments: &Arguments) -> anyhow::Result<()> {
    if let Some(name) = &arguments.host {
        let fault = Fault::find(name)?;
        return match fault.action {
            Action::Outside(what) => outside::run(fault, what, arguments.number),
            _ => host::run(fault),
        };
    }
    if arguments.document {
        return results::write_document();
    }
    println!(
        "| fault | tries | survived | one batch lost | lost | hung | wrong | error | time: median (range) | tries with leftovers | what the user sees |"
    );
    println!("|{}", "---|".repeat(11));
    let (mut all, mut skipped) = (Vec::new(), 0);
    for fault in FAULTS.iter().filter(|fault| fault.name.contains(&arguments.only)) {
        match (0..arguments.tries).map(|number| tries::run(fault, number)).collect::<Result<Vec<_>, _>>() {
            Ok(tries) => {
                println!("{}", row(fault, &tries));
                all.extend(tries);
            }
            Err(error) if error.is::<Impossible>() => {
                skipped += 1;
                println!("SKIPPED: faults: {}: {error:#}", fault.description);
            }
            Err(error) => return Err(error.context(fault.name)),
        }
    }
    let broken: Vec<&Try> = all.iter().filter(|done| !done.is_right()).collect();
    let names = broken.iter().map(|done| done.fault.as_str()).collect::<Vec<_>>().join(", ");
    println!("faults: {} tries, {} faults skipped, {} tries wrong", all.len(), skipped, broken.len());
    if arguments.write {
        Results::write(all)?;
        results::write_document()?;
    }
    ensure!(
        names.is_empty(),
        "batches were wrong, or missing without an error, or a promise was broken, in tries of {names}"
    );
    Ok(())
}

fn row(fault: &Fault, tries: &[Try]) -> String {
    let count = |outcome| tries.iter().filter(|done| done.outcome == outcome).count();
    let left_over = tries.iter().filter(|done| done.left_over).count();
    let text = tries.iter().find_map(|done| done.text.clone()).unwrap_or_default().replace('\n', " ");
    let counts = OUTCOMES.map(|outcome| count(outcome).to_string()).join(" | ");
    let took = results::spread(tries.iter().map(|done| done.milliseconds / 1e3).collect());
    format!("| {} | {} | {counts} | {took} | {left_over} | {text} |", fault.description, tries.len())
}
