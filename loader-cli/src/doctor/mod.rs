//! `loader doctor`: checks what the loader needs of this machine, and of a dataset if one is given.
//!
//! What can be tried is tried: a check makes sealed memory, starts workers and reads files, instead of
//! comparing version numbers. Each check is one line: what was found, what it means, what to do.

#[cfg(feature = "formats")]
mod cache;
mod cpus;
mod dataset;
mod kernel;
mod limits;
mod report;
mod storage;
mod workers;

use std::path::Path;

use loader_core::{
    LoaderOptions, NumWorkers, PrefetchFactor,
    config::{ConfigError, LayeredOptions},
};

use crate::{
    arguments::DoctorArguments,
    events::json_line,
    interrupt::Interrupt,
    reporter::Reporter,
    settings::{self, Target},
    stop::Stop,
};
use report::{Check, Report, Status};

/// Runs the command. Returns the number of errors that it found.
pub(crate) fn doctor(
    arguments: &DoctorArguments,
    reporter: &Reporter,
    interrupt: Interrupt,
) -> Result<u64, Stop> {
    let mut report = Report::default();
    let (options, target) = match read(arguments) {
        Ok((options, target)) => {
            report.extend(arguments.target.as_deref().map(readable));
            (options, target)
        }
        Err(stop) => {
            let (_, problem) = stop.message().unwrap_or_default();
            let meaning = "`loader run` refuses it; the checks below have the default options";
            report.add(Check::new("settings", Status::Error, problem, meaning).advice("correct it"));
            (LoaderOptions::default(), None)
        }
    };
    let plan = Plan::new(options);
    report.extend(kernel::checks());
    interrupt.check()?;
    report.extend(limits::checks(&plan));
    report.extend(cpus::checks(&plan));
    interrupt.check()?;
    report.extend(workers::checks(&plan));
    interrupt.check()?;
    if let Some(target) = target {
        report.extend(dataset::checks(target, interrupt)?);
    }
    let text = if arguments.json { json_line(&report) } else { report.to_string() };
    reporter.line(&text)?;
    Ok(report.count(Status::Error))
}

/// Reads the options, and the target if there is one.
fn read(arguments: &DoctorArguments) -> Result<(LoaderOptions, Option<Target>), Stop> {
    match &arguments.target {
        Some(path) => {
            let target = settings::read(path, &arguments.loader)?;
            Ok((target.options.options().clone(), Some(target)))
        }
        None => {
            let of_env = || -> Result<_, ConfigError> { LayeredOptions::default().under_env() };
            let options = of_env()?.under_command_line(arguments.loader.options.clone());
            Ok((options.options().clone(), None))
        }
    }
}

fn readable(target: &Path) -> Check {
    let target = target.display();
    Check::new(
        "settings",
        Status::Ok,
        format!("{target} can be read"),
        "`loader config --print` shows its values",
    )
}

/// What a run with the user's options would start.
struct Plan {
    options: LoaderOptions,
    /// Number of workers with which the checks are made.
    workers: u64,
    prefetch_factor: u64,
}

impl Plan {
    fn new(mut options: LoaderOptions) -> Self {
        // Without a number, as many as the loader would begin with by itself.
        options.num_workers.get_or_insert_with(NumWorkers::auto);
        let prefetch_factor = match options.clone().resolved().prefetch_factor {
            Some(PrefetchFactor::Fixed(factor)) => factor as u64,
            _ => 2,
        };
        let workers = options.first_workers() as u64;
        Self { options, workers, prefetch_factor }
    }
}
