//! `loader pack`: packs a folder of files into tar archives in WebDataset's layout or into Parquet files, or checks
//! them.

use std::{
    path::Path,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use loader_core::internal::printable;
use loader_data::{PackError, PackFormat, PackOptions, PackPlan, PackSummary, check_packed};

use crate::{
    arguments::{PackArguments, PackedFormat},
    interrupt::Interrupt,
    layout,
    progress::{Task, time_left},
    reporter::Reporter,
    stop::Stop,
};

/// Time between two lines of progress if standard error is not a terminal.
const PROGRESS: Duration = Duration::from_secs(10);

/// Interval at which the progress is read.
const TICK: Duration = Duration::from_millis(100);

/// Number of bytes in the unit of the progress.
const MEGABYTE: u64 = 1_000_000;

/// Runs the command. Returns the number of unfinished, missing or damaged archives that `--check` has found.
pub(crate) fn pack(
    arguments: &PackArguments,
    reporter: &mut Reporter,
    interrupt: Interrupt,
) -> Result<u64, Stop> {
    let PackArguments { source, output, check, .. } = arguments;
    match output {
        Some(_) if *check => {
            let message = "--check takes only the folder of the archives; leave the source out";
            Err(Stop::InvalidArguments(message.to_owned()))
        }
        Some(output) => {
            let summary = write(arguments, output, reporter, interrupt)?;
            let PackSummary { shards, samples, kept } = summary;
            reporter.line(&printable(format_args!(
                "{}: {samples} samples in {shards} archives; {kept} of the archives were there already",
                output.display()
            )))?;
            Ok(0)
        }
        None => {
            let (shards, problems) = check_packed(source)?;
            let good = shards - problems.len();
            problems.iter().try_for_each(|problem| reporter.line(&printable(problem)))?;
            let of = printable(source.display());
            reporter.line(&format!("{of}: {good} of {shards} archives are intact"))?;
            Ok(problems.len() as u64)
        }
    }
}

fn write(
    arguments: &PackArguments,
    output: &Path,
    reporter: &mut Reporter,
    interrupt: Interrupt,
) -> Result<PackSummary, Stop> {
    let format = match arguments.format {
        PackedFormat::Tar => PackFormat::Tar,
        PackedFormat::Parquet => PackFormat::Parquet,
    };
    let options = PackOptions { shard_bytes: arguments.shard_size, shuffle: arguments.shuffle, format };
    let plan = PackPlan::new(&arguments.source, &options)?;
    if !plan.classes().is_empty() {
        layout::check_splits(&arguments.source, &arguments.source)?;
    }
    let total = Some(plan.bytes().div_ceil(MEGABYTE));
    reporter.begin(Task { name: "packing".to_owned(), total, unit: "MB" }, PROGRESS);
    // Relaxed: the number is only displayed.
    let done = AtomicU64::new(0);
    let begun = Instant::now();
    let summary = thread::scope(|scope| {
        let packing = scope.spawn(|| {
            plan.write(output, |bytes| {
                done.fetch_add(bytes, Relaxed);
                interrupt.check().is_ok()
            })
        });
        while !packing.is_finished() {
            reporter.update(|task| {
                let done = done.load(Relaxed) / MEGABYTE;
                (done, time_left(done, task, begun.elapsed()))
            });
            thread::park_timeout(TICK);
        }
        packing.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    reporter.finish();
    match summary {
        Err(PackError::Stopped) => Err(interrupt.check().err().unwrap_or(Stop::Reported)),
        summary => Ok(summary?),
    }
}
