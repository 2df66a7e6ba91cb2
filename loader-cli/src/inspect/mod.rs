//! `loader inspect`: reads a dataset once and prints what is in it.
//!
//! `open` opens the dataset without its bad files, `every_file` goes on after a damaged one, `statistics` describes
//! the samples, in the workers, `report` prints the result, and `sheet` draws images.

#[cfg(feature = "formats")]
mod every_file;
mod open;
mod report;
mod sheet;
mod statistics;

use std::time::{Duration, Instant};

use loader_core::{DataLoader, Error, OnBadSample};

use crate::{
    arguments::InspectArguments,
    events::json_line,
    interrupt::Interrupt,
    progress::{self, Task},
    replace_file,
    reporter::Reporter,
    stop::Stop,
    workers::Workers,
};
use open::Source;
use report::{BadSampleEntry, Inspection};
use statistics::Statistics;

/// Default of `batch_size`. Workers keep only the statistics of a batch.
const BATCH_SIZE: usize = 32;

/// Default of `max_bad_samples`.
const MAX_BAD_SAMPLES: u64 = 1000;

/// Time between two lines of progress if standard error is not a terminal.
const PROGRESS: Duration = Duration::from_secs(10);

/// Runs the command. Returns the number of failures that make its exit status 1.
pub(crate) fn inspect(
    arguments: &InspectArguments,
    reporter: &mut Reporter,
    interrupt: Interrupt,
) -> Result<u64, Stop> {
    if let Some(path) = &arguments.contact_sheet {
        replace_file::check(path).map_err(Stop::not_written(path))?;
    }
    let (mut source, mut options) = Source::open(arguments)?;
    let batch_size = options.batch_size.unwrap_or(BATCH_SIZE);
    options.batch_size = Some(arguments.limit.map_or(batch_size, |limit| limit.min(batch_size)));
    options.on_bad_sample = Some(OnBadSample::Skip);
    options.max_bad_samples.get_or_insert(MAX_BAD_SAMPLES);
    options.drop_last = None;

    let workers = Workers::default();
    let loader = source.statistics(options.clone(), workers.listener(reporter))?;
    let read = read(&loader, arguments.limit, reporter, interrupt)?;
    let inspection = Inspection::new(&mut source, read);
    let text = if arguments.json { json_line(&inspection) } else { inspection.to_string() };
    reporter.line(text.trim_end())?;
    if let Some(path) = &arguments.contact_sheet {
        sheet::write(path, &source.thumbnails(options, workers.listener(reporter))?)?;
    }
    Ok(if inspection.has_too_many_bad_samples {
        1
    } else if arguments.strict {
        inspection.bad()
    } else {
        0
    })
}

/// What was read.
#[derive(Debug, Default)]
struct Read {
    statistics: Statistics,
    bad_samples: Vec<BadSampleEntry>,
    has_too_many_bad_samples: bool,
    /// True if the epoch was read to its end.
    is_complete: bool,
    elapsed: Duration,
}

/// Reads batches until there are no more, or at least `limit` samples were read.
fn read(
    loader: &DataLoader<Statistics>,
    limit: Option<usize>,
    reporter: &mut Reporter,
    interrupt: Interrupt,
) -> Result<Read, Stop> {
    let limit = limit.map_or(u64::MAX, |limit| limit as u64);
    let mut read = Read::default();
    let begun = Instant::now();
    let mut batches = loader.epoch(0)?;
    let total = loader.len().map(|batches| batches as u64);
    reporter.begin(Task { name: "inspecting".to_owned(), total, unit: "batches" }, PROGRESS);
    while read.statistics.samples < limit {
        interrupt.check()?;
        match batches.next() {
            Some(Ok(statistics)) => read.statistics.merge(statistics),
            Some(Err(Error::TooManyBadSamples { .. })) => {
                read.has_too_many_bad_samples = true;
                break;
            }
            Some(Err(error)) => return Err(error.into()),
            None => {
                read.is_complete = true;
                break;
            }
        }
        reporter.update(|task| progress::of_epoch(&batches.report(), task));
    }
    reporter.finish();
    read.bad_samples = batches.report().bad_samples.iter().map(BadSampleEntry::new).collect();
    read.elapsed = begun.elapsed();
    Ok(read)
}
