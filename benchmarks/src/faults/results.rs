//! Writes the file of tries. Makes the tables in `docs/reliability.md` from that file and from the file of
//! PyTorch's tries.

use std::{fs, path::Path, process::Command};

use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};

use crate::{
    list::{Action, FAULTS, Fault, Outside, Promise},
    tries::{Outcome, Try},
};

const OURS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/results/faults.json");
const PYTORCH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/results/faults-pytorch.json");
const DOCUMENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/reliability.md");
/// The lines of the document before and after the tables.
const BEGIN: &str = "<!-- made by loader-bench-faults: begin -->\n";
const END: &str = "<!-- made by loader-bench-faults: end -->\n";

/// The file with the results of this loader.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Results {
    machine: Machine,
    pub(crate) tries: Vec<Try>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Machine {
    date: String,
    processor: String,
    cores: usize,
    memory: String,
    kernel: String,
    /// Load average over the last minute of the measurement.
    load_average: f64,
}

/// The file with the results of PyTorch.
#[derive(Debug, Deserialize)]
struct PyTorch {
    versions: Versions,
    tries: Vec<PyTorchTry>,
}

#[derive(Debug, Deserialize)]
struct Versions {
    torch: String,
}

#[derive(Debug, Deserialize)]
struct PyTorchTry {
    fault: String,
    outcome: String,
    seconds: Option<f64>,
    /// Number of workers that were running when the drop returned, and number 2 s later.
    workers_running: Option<Vec<u32>>,
}

impl Results {
    /// Writes the tries to the file. Keeps the earlier tries of faults that were not tried this time.
    pub(crate) fn write(mut tries: Vec<Try>) -> anyhow::Result<()> {
        if let Ok(before) = read::<Self>(OURS) {
            let tried = |name: &str| tries.iter().any(|one| one.fault == name);
            let kept: Vec<Try> = before.tries.into_iter().filter(|one| !tried(&one.fault)).collect();
            tries.extend(kept);
        }
        let number = |one: &Try| FAULTS.iter().position(|fault| fault.name == one.fault);
        tries.retain(|one| number(one).is_some());
        tries.sort_by_key(number);
        let results = Self { machine: Machine::this()?, tries };
        fs::write(OURS, serde_json::to_string_pretty(&results)? + "\n").context(OURS)
    }
}

impl Machine {
    fn this() -> anyhow::Result<Self> {
        let read = |path| fs::read_to_string(path).context(path);
        let line = |text: &str, name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
            line.trim_start_matches([' ', '\t', ':']).trim().to_owned()
        };
        let date = Command::new("date").arg("+%F").output()?.stdout;
        Ok(Self {
            date: String::from_utf8(date)?.trim().to_owned(),
            processor: line(&read("/proc/cpuinfo")?, "model name"),
            cores: std::thread::available_parallelism()?.get(),
            memory: line(&read("/proc/meminfo")?, "MemTotal"),
            kernel: read("/proc/sys/kernel/osrelease")?.trim().to_owned(),
            load_average: read("/proc/loadavg")?.split(' ').next().unwrap_or_default().parse()?,
        })
    }
}

/// Writes the tables to the document.
pub(crate) fn write_document() -> anyhow::Result<()> {
    let text = fs::read_to_string(DOCUMENT).context(DOCUMENT)?;
    fs::write(DOCUMENT, with_tables(&text)?).context(DOCUMENT)
}

/// Returns the text of the document with its tables made again from the files of results.
fn with_tables(text: &str) -> anyhow::Result<String> {
    let (before, rest) = text.split_once(BEGIN).context("the document has no line where the tables begin")?;
    let (_, after) = rest.split_once(END).context("the document has no line where the tables end")?;
    Ok(format!("{before}{BEGIN}{}{END}{after}", tables()?))
}

fn tables() -> anyhow::Result<String> {
    let (ours, pytorch): (Results, PyTorch) = (read(OURS)?, read(PYTORCH)?);
    let torch = &pytorch.versions.torch;
    let mut text = format!(
        "| fault | tries | survived | one batch lost | lost | hung | wrong | time to the outcome: median (range) | PyTorch {torch}: tries | survived | lost | hung | wrong |\n|{}\n",
        "---|".repeat(13)
    );
    let (mut drops, mut mains, mut outsides) = (String::new(), String::new(), String::new());
    for fault in FAULTS {
        let tries: Vec<&Try> = ours.tries.iter().filter(|one| one.fault == fault.name).collect();
        if let Action::Outside(what) = fault.action {
            outsides += &outside_row(fault, what, &tries);
            continue;
        }
        ensure!(!tries.is_empty(), "{OURS} has no tries of `{}`: run with --write", fault.name);
        let theirs = |one: &&PyTorchTry| Some(one.fault.as_str()) == fault.pytorch;
        let theirs: Vec<&PyTorchTry> = pytorch.tries.iter().filter(theirs).collect();
        ensure!(
            fault.pytorch.is_none() == theirs.is_empty(),
            "{PYTORCH} has no tries of `{:?}`",
            fault.pytorch
        );
        match fault.action {
            Action::Drop(_) => drops += &drop_row(fault, &tries, &theirs),
            Action::Main(..) => mains += &main_row(fault, &tries, &theirs),
            _ => text += &epoch_row(fault, &tries, &theirs),
        }
    }
    text += &format!(
        "\n| fault, and a drop of the iterator in mid-epoch | tries | returned | time: median (range) | tries with leftovers | PyTorch {torch}: returned | time: median (range) | tries with a worker left |\n|{}\n{drops}",
        "---|".repeat(8)
    );
    text += &format!(
        "\n| how main ends in mid-epoch | tries | all workers ended | time: median (range) | PyTorch {torch}: all workers ended within 1 s | within 20 s |\n|{}\n{mains}",
        "---|".repeat(6)
    );
    text += &format!(
        "\n| fault from outside | promise | tries | every batch arrived | an error, no batch wrong | neither | tries with leftovers |\n|{}\n{outsides}",
        "---|".repeat(7)
    );
    let Machine { date, processor, cores, load_average, .. } = &ours.machine;
    text += &format!(
        "\nMeasured on {date}: {processor}, {cores} cores, load average {load_average:.1} at the end.\n"
    );
    Ok(text)
}

fn epoch_row(fault: &Fault, tries: &[&Try], theirs: &[&PyTorchTry]) -> String {
    let outcomes = [Outcome::Survived, Outcome::LostOne, Outcome::Lost, Outcome::Hung, Outcome::Wrong];
    let ours = outcomes.map(|outcome| count(tries, |one| one.outcome == outcome)).join(" | ");
    let theirs = if theirs.is_empty() {
        ["-"; 5].join(" | ")
    } else {
        let outcome = |name| count(theirs, |one| one.outcome == name);
        let outcomes = ["survived", "lost", "hung", "wrong"].map(outcome);
        format!("{} | {}", theirs.len(), outcomes.join(" | "))
    };
    format!(
        "| {} | {} | {ours} | {} | {theirs} |\n",
        fault.description,
        tries.len(),
        spread(seconds_of(tries))
    )
}

fn drop_row(fault: &Fault, tries: &[&Try], theirs: &[&PyTorchTry]) -> String {
    let returned = count(tries, |one| one.outcome == Outcome::Survived);
    let left = count(tries, |one| one.left_over);
    let ours = format!("{} | {returned} | {} | {left}", tries.len(), spread(seconds_of(tries)));
    let returned = count(theirs, |one| one.outcome == "returned");
    let left = count(theirs, |one| {
        one.workers_running.as_ref().and_then(|workers| workers.last()).is_some_and(|&workers| workers > 0)
    });
    let took = theirs.iter().filter_map(|one| one.seconds).collect();
    format!(
        "| {} | {ours} | {returned} of {} | {} | {left} |\n",
        fault.description,
        theirs.len(),
        spread(took)
    )
}

fn main_row(fault: &Fault, tries: &[&Try], theirs: &[&PyTorchTry]) -> String {
    let gone = count(tries, |one| one.outcome == Outcome::Survived);
    let within = |max| count(theirs, |one| one.seconds.is_some_and(|seconds| seconds <= max));
    let theirs = format!("{} of {} | {} of {}", within(1.0), theirs.len(), within(20.0), theirs.len());
    format!(
        "| {} | {} | {gone} | {} | {theirs} |\n",
        fault.description,
        tries.len(),
        spread(seconds_of(tries))
    )
}

fn outside_row(fault: &Fault, what: Outside, tries: &[&Try]) -> String {
    let promise = match what.promise() {
        Promise::Survives => "every batch arrives",
        Promise::SurvivesOrError => "every batch arrives, or an error",
        Promise::Error => "an error",
    };
    let survived = count(tries, |one| one.outcome == Outcome::Survived);
    let refused = count(tries, |one| one.outcome == Outcome::Refused);
    let neither = count(tries, |one| !matches!(one.outcome, Outcome::Survived | Outcome::Refused));
    let left = count(tries, |one| one.left_over);
    let all = tries.len();
    format!("| {} | {promise} | {all} | {survived} | {refused} | {neither} | {left} |\n", fault.description)
}

fn count<T>(tries: &[&T], counts: impl Fn(&T) -> bool) -> String {
    tries.iter().filter(|one| counts(one)).count().to_string()
}

/// Returns the time of each try in seconds.
fn seconds_of(tries: &[&Try]) -> Vec<f64> {
    tries.iter().map(|one| one.milliseconds / 1e3).collect()
}

/// Formats median and range of times in seconds.
pub(crate) fn spread(mut seconds: Vec<f64>) -> String {
    seconds.sort_by(f64::total_cmp);
    let (Some(min), Some(max)) = (seconds.first(), seconds.last()) else { return "never".to_owned() };
    let median = (seconds[(seconds.len() - 1) / 2] + seconds[seconds.len() / 2]) / 2.0;
    // The maximum determines the unit of all three.
    let (factor, unit, digits) = match *max {
        max if max >= 1.0 => (1.0, "s", 1),
        max if max >= 0.02 => (1e3, "ms", 0),
        _ => (1e3, "ms", 1),
    };
    let shown = |value: f64| format!("{:.digits$}", value * factor);
    format!("{} {unit} ({}-{})", shown(median), shown(*min), shown(*max))
}

fn read<T: for<'de> Deserialize<'de>>(path: impl AsRef<Path>) -> anyhow::Result<T> {
    let path = path.as_ref();
    let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
    serde_json::from_str(&text).with_context(|| path.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_has_the_tables_of_the_results() {
        let text = fs::read_to_string(DOCUMENT).unwrap();
        let made = with_tables(&text).unwrap();
        assert!(
            text == made,
            "run `cargo run --release -p loader-benchmarks --features formats --bin loader-bench-faults -- --document`"
        );
    }

    #[test]
    fn a_spread_is_a_median_and_a_range() {
        assert_eq!(spread(vec![0.5, 0.1, 0.3]), "300 ms (100-500)");
        assert_eq!(spread(vec![0.002, 0.001]), "1.5 ms (1.0-2.0)");
        assert_eq!(spread(vec![5.04, 0.9]), "3.0 s (0.9-5.0)");
        assert_eq!(spread(Vec::new()), "never");
    }
}
