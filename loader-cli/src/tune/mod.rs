//! `loader tune`: measures numbers of workers and prefetch factors with the user's dataset, and writes the best
//! ones into the config.
//!
//! `search` decides what is measured and which setting wins, `measure` runs the loader, `table` shows the
//! result, and `edit` writes it.

mod edit;
mod measure;
mod search;
mod table;

use std::{
    path::Path,
    time::{Duration, Instant},
};

use loader_core::{
    DataLoader, Dataset, Error, LoaderOptions, NumWorkers, OptionInfo, PrefetchFactor, Sample,
    collate::Batch,
    config::{LayeredOptions, Origin},
    internal::printable,
};
use loader_data::OpenDataset;

use self::{
    measure::{Meter, Plan},
    search::{Bounds, Measured, Search, Setting},
};
use crate::{
    arguments::TuneArguments,
    events::{Event, IntervalFigures, TunedFigures},
    interrupt::Interrupt,
    progress::Task,
    reporter::Reporter,
    settings::{self, Target},
    stop::Stop,
};

/// Minimum of `--time`.
const MIN_TIME: Duration = Duration::from_secs(5);
/// Number of intervals, each with its warm-up, for which the time should suffice.
const INTERVALS: u32 = 30;
/// Part of such an interval that is the warm-up.
const WARM_UP_PART: u32 = 5;
/// Time between two lines of progress.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(10);

/// Runs the command. Returns 0, the number of failures that the exit status shows.
pub(crate) fn tune(
    arguments: &TuneArguments,
    reporter: &mut Reporter,
    interrupt: Interrupt,
) -> Result<u64, Stop> {
    let TuneArguments { config: path, time, .. } = arguments;
    if path.extension().is_none_or(|extension| extension != "toml") {
        let message = format!(
            "`{}` is not a config (a .toml file), into which the command could write the setting",
            path.display()
        );
        return Err(Stop::InvalidArguments(message));
    }
    if *time < MIN_TIME {
        let message = format!("--time: {time:?} is too short to compare settings; give at least 5 s");
        return Err(Stop::InvalidArguments(message));
    }
    let Target { dataset, options: layers, .. } = settings::read(path, &arguments.loader)?;
    let (options, _) = settings::with_rank(layers.options().clone())?;
    if options.world_size.is_some_and(|processes| processes > 1) {
        let message = "the command measures one process, but rank and world_size are set; tune on one machine \
                       without the other processes, with `--rank 0 --world-size 1`";
        return Err(Stop::InvalidArguments(message.to_owned()));
    }
    if !arguments.dry_run {
        edit::check(path).map_err(Stop::not_written(path))?;
    }
    let sweep = Sweep { arguments, layers, options, reporter, interrupt };
    let dataset = dataset.resolved()?;
    match dataset.open()? {
        OpenDataset::F32(images) => sweep.map_style(images, "image-folder"),
        OpenDataset::U8(images) => sweep.map_style(images, "image-folder-u8"),
        #[cfg(feature = "formats")]
        OpenDataset::Records(records) => match *records {
            loader_data::Records::Map(records) => sweep.map_style(records, "records"),
            loader_data::Records::Stream(records) => sweep.stream(records, "record-stream"),
        },
        _ => Err(Stop::without_formats(dataset.kind())),
    }
}

struct Sweep<'a> {
    arguments: &'a TuneArguments,
    layers: LayeredOptions,
    options: LoaderOptions,
    reporter: &'a mut Reporter,
    interrupt: Interrupt,
}

impl Sweep<'_> {
    fn map_style<D: Dataset<Sample: Sample> + Clone>(self, dataset: D, name: &str) -> Result<u64, Stop> {
        let warn = measure::warnings(self.reporter.screen());
        self.run(|options| {
            let builder = DataLoader::builder(dataset.clone()).options(options).registered(name);
            builder.on_warning(warn.clone()).build()
        })
    }

    #[cfg(feature = "formats")]
    fn stream<D: loader_core::SnapshotDataset<Sample: Sample> + Clone>(
        self,
        dataset: D,
        name: &str,
    ) -> Result<u64, Stop> {
        if self.options.shards.is_none() {
            let message = "the dataset is read in order: without `shards`, the number of workers determines the \
                           order of the batches; set `shards` in [loader] to the largest number of workers that \
                           you would use";
            return Err(Stop::InvalidArguments(message.to_owned()));
        }
        let warn = measure::warnings(self.reporter.screen());
        self.run(|options| {
            let builder = DataLoader::stream(dataset.clone()).snapshots().options(options).registered(name);
            builder.on_warning(warn.clone()).build()
        })
    }

    fn run<B: Batch>(
        self,
        build: impl Fn(LoaderOptions) -> Result<DataLoader<B>, Error>,
    ) -> Result<u64, Stop> {
        let Self { arguments, layers, options, reporter, interrupt } = self;
        // Checks all options before a worker starts.
        let loader = build(measure::options_of(Setting::new(1, 2), &options))?;
        let bounds = bounds(&layers, &options, loader.len(), !arguments.step.is_zero())?;
        let share = arguments.time / INTERVALS;
        let plan = Plan {
            options,
            step: arguments.step,
            length: share - share / WARM_UP_PART,
            warm_up: share / WARM_UP_PART,
            started: Instant::now(),
            time: arguments.time,
        };
        let state = loader.state();
        drop(loader);
        let total = Some(arguments.time.as_secs());
        reporter.begin(Task { name: "tune".to_owned(), total, unit: "seconds" }, PROGRESS_INTERVAL);
        let mut meter = Meter::new(build, plan, state, reporter, interrupt);
        let mut search = Search::new(bounds);
        let outcome = explore(&mut meter, &mut search, interrupt)
            .and_then(|()| compare(&mut meter, &mut search, interrupt));
        let failed = meter.failed();
        interrupt.take_last_output();
        reporter.finish();
        finish(arguments, &layers, &search, reporter, failed, outcome)
    }
}

/// Measures each setting that may win once, for at most half of the time.
fn explore<F, B>(meter: &mut Meter<'_, F>, search: &mut Search, interrupt: Interrupt) -> Result<(), Stop>
where
    F: Fn(LoaderOptions) -> Result<DataLoader<B>, Error>,
    B: Batch,
{
    let half = meter.left() / 2;
    while let Some(setting) = search.next_new().filter(|_| meter.left() > half) {
        let Some(interval) = meter.measure(setting)? else { break };
        let first = interval.samples_per_second();
        let samples_per_batch = interval.samples as f64 / interval.batches as f64;
        let measure::Interval { figures, affordable_workers, .. } = interval;
        let rounds = Vec::new();
        search.add(Measured { setting, first, rounds, figures, samples_per_batch, affordable_workers });
        note(meter, search, interrupt, 0, setting, &interval)?;
    }
    Ok(())
}

/// Measures the settings that may still win in turn, round by round, until the time is over.
fn compare<F, B>(meter: &mut Meter<'_, F>, search: &mut Search, interrupt: Interrupt) -> Result<(), Stop>
where
    F: Fn(LoaderOptions) -> Result<DataLoader<B>, Error>,
    B: Batch,
{
    let mut longest = Duration::ZERO;
    for round in 1.. {
        let contenders = search.contenders();
        let has_time = longest.mul_f64(contenders.len() as f64) <= meter.left();
        if round > search::MIN_ROUNDS && (contenders.len() < 2 || !has_time) {
            break;
        }
        for setting in contenders {
            let before = meter.left();
            let Some(interval) = meter.measure(setting)? else { return Ok(()) };
            longest = longest.max(before.saturating_sub(meter.left()));
            search.add_round(setting, interval.samples_per_second(), interval.figures);
            note(meter, search, interrupt, round, setting, &interval)?;
        }
    }
    Ok(())
}

/// Prints an interval with `--json`. Otherwise keeps the table in case that a signal ends the process.
fn note<F, B>(
    meter: &mut Meter<'_, F>,
    search: &Search,
    interrupt: Interrupt,
    round: usize,
    setting: Setting,
    interval: &measure::Interval,
) -> Result<(), Stop>
where
    F: Fn(LoaderOptions) -> Result<DataLoader<B>, Error>,
    B: Batch,
{
    let &measure::Interval { batches, samples, elapsed, .. } = interval;
    let figures = IntervalFigures {
        round,
        num_workers: setting.num_workers,
        prefetch_factor: setting.prefetch_factor,
        batches,
        samples,
        seconds: elapsed.as_secs_f64(),
        samples_per_second: interval.samples_per_second(),
    };
    if !meter.reporter().json() {
        interrupt.set_last_output(table::table(search.measured(), None));
    }
    Ok(meter.reporter().event(&Event::Interval(figures))?)
}

/// Prints the table and the winner, and writes the winner into the config.
fn finish(
    arguments: &TuneArguments,
    layers: &LayeredOptions,
    search: &Search,
    reporter: &Reporter,
    failed: u64,
    outcome: Result<(), Stop>,
) -> Result<u64, Stop> {
    let choice = outcome.as_ref().ok().and_then(|()| search.choose());
    if !search.measured().is_empty() {
        reporter
            .text(table::table(search.measured(), choice.as_ref().map(|choice| choice.setting)).trim_end())?;
    }
    outcome?;
    for line in table::not_measured(&search.not_measured()) {
        reporter.text(&line)?;
    }
    if failed > 0 {
        reporter.text(&format!("{failed} batches failed and are not counted; the first error is above"))?;
    }
    let Some(choice) = choice else {
        return Err(Stop::TooLittleTime(arguments.time));
    };
    for line in table::choice(&choice) {
        reporter.text(&line)?;
    }
    for line in overridden(layers, &arguments.config) {
        reporter.warning(&line);
    }
    let path = &arguments.config;
    let written = (!arguments.dry_run).then_some(&**path);
    if written.is_some() {
        edit::write(path, choice.setting).map_err(Stop::not_written(path))?;
        reporter.text(&format!("wrote {}", printable(path.display())))?;
    }
    reporter.event(&Event::Tuned(TunedFigures {
        num_workers: choice.setting.num_workers,
        prefetch_factor: choice.setting.prefetch_factor,
        samples_per_second: choice.rate,
        gain: choice.gain,
        rounds: search.measured().iter().map(|measured| measured.rounds.len()).max().unwrap_or(0),
        failed_batches: failed,
        written,
    }))?;
    Ok(0)
}

/// Returns what the sweep may measure. `batches` is the number of batches of an epoch.
fn bounds(
    layers: &LayeredOptions,
    options: &LoaderOptions,
    batches: Option<usize>,
    has_step: bool,
) -> Result<Bounds, Stop> {
    if batches == Some(0) {
        return Err(Error::EmptyDataset.into());
    }
    let fixed = |workers| match workers {
        NumWorkers::Fixed(workers) => Some(workers),
        NumWorkers::Auto(auto) => auto.max,
    };
    let automatic = options.clone().num_workers(NumWorkers::auto()).resolved();
    let max_workers = automatic.num_workers.and_then(fixed).unwrap_or(1);
    let limits = [options.shards, batches].into_iter().flatten();
    let max_workers = limits.fold(max_workers, usize::min);
    let current = match (options.num_workers.unwrap_or_default(), options.prefetch_factor) {
        (NumWorkers::Fixed(0), _) => Some(Setting::new(0, 2)),
        (NumWorkers::Fixed(workers), Some(PrefetchFactor::Fixed(factor))) => {
            Some(Setting::new(workers, factor))
        }
        (NumWorkers::Fixed(workers), None) => Some(Setting::new(workers, 2)),
        _ => None,
    };
    let needs_workers = |option: &&OptionInfo| {
        let is_replaced = option.name() == "prefetch_factor" && !is_over_file(layers, option);
        option.needs_workers() && option.get(options).is_some() && !is_replaced
    };
    let needs_workers: Vec<_> = OptionInfo::ALL.iter().filter(needs_workers).map(OptionInfo::name).collect();
    let current = current.filter(|setting| setting.num_workers > 0 || needs_workers.is_empty());
    Ok(Bounds { cpus: options.count_cpus(), max_workers, needs_workers, current, has_step })
}

/// True if the option comes from a layer over the config.
fn is_over_file(layers: &LayeredOptions, option: &OptionInfo) -> bool {
    matches!(layers.origin(option), Some(Origin::Variable(_) | Origin::CommandLine))
}

/// Returns a warning for each option whose value in the config has no effect.
fn overridden(layers: &LayeredOptions, config: &Path) -> Vec<String> {
    let is_written = |option: &&OptionInfo| ["num_workers", "prefetch_factor"].contains(&option.name());
    let over = OptionInfo::ALL.iter().filter(is_written).filter(|option| is_over_file(layers, option));
    let line = |option: &OptionInfo| {
        let (name, origin) = (option.name(), layers.origin(option).expect("it has an origin"));
        format!("a run does not use the {name} of {} while the {origin} sets it", config.display())
    };
    over.map(line).collect()
}
