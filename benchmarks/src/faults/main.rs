//! What this loader does when something goes wrong: the faults of `benchmarks/faults/pytorch.py`, each tried many times, each time in a
//! process of its own. `loader-bench-faults [--tries N] [--only NAME]` prints a table.

mod host;
mod list;
mod tries;

use clap::Parser;

use crate::{
    list::{FAULTS, Fault},
    tries::{Outcome, Try},
};

#[derive(Debug, Parser)]
struct Arguments {
    /// How often each fault is tried.
    #[arg(long, default_value_t = 20)]
    tries: usize,
    /// Only faults whose name contains this.
    #[arg(long, default_value = "")]
    only: String,
    /// Be the program that the fault happens to.
    #[arg(long, hide = true)]
    host: Option<String>,
}

fn main() -> anyhow::Result<()> {
    loader_worker::init();
    let arguments = Arguments::parse();
    if let Some(name) = &arguments.host {
        return host::run(Fault::find(name)?);
    }
    println!(
        "| fault | tries | survived | lost | hung | wrong | median ms (least-most) | left over | what the user sees |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    for fault in FAULTS.iter().filter(|fault| fault.name.contains(&arguments.only)) {
        let tries: Vec<Try> = (0..arguments.tries).map(|_| tries::run(fault)).collect::<Result<_, _>>()?;
        println!("{}", row(fault, &tries));
    }
    Ok(())
}

fn row(fault: &Fault, tries: &[Try]) -> String {
    let count = |outcome| tries.iter().filter(|done| done.outcome == outcome).count();
    let mut times: Vec<f64> = tries.iter().map(|done| done.milliseconds).collect();
    times.sort_by(f64::total_cmp);
    let (least, median, most) = (times[0], times[times.len() / 2], times[times.len() - 1]);
    let left_over = tries.iter().filter(|done| done.left_over).count();
    let text = tries.iter().find_map(|done| done.text.clone()).unwrap_or_default();
    format!(
        "| {} | {} | {} | {} | {} | {} | {median:.0} ({least:.0}-{most:.0}) | {left_over} | {text} |",
        fault.about,
        tries.len(),
        count(Outcome::Survived),
        count(Outcome::Lost),
        count(Outcome::Hung),
        count(Outcome::Wrong),
    )
}
