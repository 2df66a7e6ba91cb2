//! `loader run`: loads epochs like a training loop, and drops the batches.

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use loader_core::{
    BatchDigest, DataLoader, Dataset, Error, Iter, LoaderOptions, Sample, State,
    collate::Batch,
    sampler::{DistributedSampler, RandomSampler, Sampler},
};
use loader_data::OpenDataset;

use crate::{
    arguments::RunArguments,
    events::Event,
    interrupt::Interrupt,
    page, replace_file,
    reporter::Reporter,
    settings::Settings,
    state_file::{self, Saver},
    stop::{StateProblem, Stop},
    workers::Workers,
};

/// Time between two notes of an unfinished epoch for `--report`.
const NOTE_INTERVAL: Duration = Duration::from_secs(1);

/// Runs the command. Returns the number of batches that failed.
pub(crate) fn run(
    arguments: &RunArguments,
    reporter: &mut Reporter,
    interrupt: Interrupt,
) -> Result<u64, Stop> {
    let Settings { dataset, loader, launched } = Settings::new(arguments)?;
    reporter.launched(launched.as_ref());
    let rank = loader.rank.unwrap_or(0);
    let files: Vec<_> = arguments.resume.iter().map(|path| state_file::of_rank(path, rank)).collect();
    let world_size = loader.world_size.unwrap_or(1);
    let are_shared = files.len() > 1 || (world_size > 1 && files == arguments.resume);
    if let Some(save) = arguments.save_state.as_deref().filter(|_| are_shared) {
        state_file::check_names(save, &files, world_size)?;
    }
    for (option, file) in [("--save-state", &arguments.save_state), ("--report", &arguments.report)] {
        state_file::check_is_own(option, file.as_deref(), world_size)?;
    }
    let (_, groups) = loader.group()?.unwrap_or((0, 1));
    let resumed = state_file::read_all(&files, groups)?;
    let saver = arguments.save_state.as_deref().map(|path| Saver::new(state_file::of_rank(path, rank)));
    let saver = saver.transpose()?;
    let report = arguments.report.as_deref().map(|path| state_file::of_rank(path, rank));
    report.as_deref().map_or(Ok(()), |path| replace_file::check(path).map_err(Stop::not_written(path)))?;
    let opened = dataset.open()?;
    let settings = Settings { dataset, loader: loader.clone().resolved(), launched };
    if let Some(path) = report {
        page::begin(path, &settings);
    }
    let workers = Workers::default();
    let run = Run {
        arguments,
        settings,
        reporter,
        interrupt,
        workers,
        files,
        resumed,
        saver,
        has_begun: false,
        epochs: 0,
        batches: 0,
        restarts: 0,
        errors: 0,
    };
    // The stock worker program, which LOADER_WORKER may name, knows the datasets by these names.
    match opened {
        OpenDataset::F32(images) => run.load(images, loader, "image-folder"),
        OpenDataset::U8(images) => run.load(images, loader, "image-folder-u8"),
        #[cfg(feature = "formats")]
        OpenDataset::Records(records) => match *records {
            loader_data::Records::Map(records) => run.load(records, loader, "records"),
            loader_data::Records::Stream(records) => run.load_stream(records, loader, "record-stream"),
        },
        _ => Err(Stop::without_formats(run.settings.dataset.kind())),
    }
}

struct Run<'a> {
    arguments: &'a RunArguments,
    settings: Settings,
    reporter: &'a mut Reporter,
    interrupt: Interrupt,
    workers: Workers,
    /// The files of `--resume`.
    files: Vec<PathBuf>,
    /// The state to begin with, until the run begins.
    resumed: Option<State>,
    saver: Option<Saver>,
    /// True once the event `start` was printed.
    has_begun: bool,
    /// Number of epochs that were loaded to their end.
    epochs: u64,
    /// Number of batches returned, including those that failed.
    batches: usize,
    restarts: u64,
    errors: u64,
}

impl Run<'_> {
    fn load<D: Dataset<Sample: Sample>>(
        self,
        dataset: D,
        options: LoaderOptions,
        name: &str,
    ) -> Result<u64, Stop> {
        let length = dataset.len();
        let mut builder = DataLoader::builder(dataset).options(options).registered(name);
        if let Some(samples) = self.arguments.samples {
            if length == 0 {
                return Err(Error::EmptyDataset.into());
            }
            let draws = RandomSampler::new(length).replacement(true).num_samples(samples);
            builder =
                builder.sampler(draws.expect("the dataset is not empty, and `--samples` is at least 1"));
        }
        let loader = builder.on_warning(self.workers.listener(self.reporter)).build()?;
        self.load_epochs(&loader)
    }

    /// Loads an iterable dataset.
    #[cfg(feature = "formats")]
    fn load_stream<D: loader_core::SnapshotDataset<Sample: Sample>>(
        self,
        dataset: D,
        options: LoaderOptions,
        name: &str,
    ) -> Result<u64, Stop> {
        if self.arguments.samples.is_some() {
            let message =
                "--samples draws samples by their index, which a stream does not have; leave it out";
            return Err(Stop::InvalidArguments(message.to_owned()));
        }
        let builder = DataLoader::stream(dataset).snapshots().options(options).registered(name);
        let loader = builder.on_warning(self.workers.listener(self.reporter)).build()?;
        self.load_epochs(&loader)
    }

    /// Loads the epochs. Then, however the run ended, writes the state of the run if `--save-state` is set,
    /// and the page if `--report` is set.
    fn load_epochs<B: Batch>(mut self, loader: &DataLoader<B>) -> Result<u64, Stop> {
        self.reporter.view().watch(loader.stats_reader());
        let mut outcome = self.load_rest(loader);
        let end = match &outcome {
            Ok(_) => "The run ended by itself.".to_owned(),
            Err(stop) => match stop.message() {
                Some((_, message)) => format!("The run ended early: {message}."),
                None => "The run ended early.".to_owned(),
            },
        };
        for saved in [state_file::save(), page::save(&end)] {
            if let Err(stop) = saved {
                self.reporter.stopped(&stop);
                outcome = outcome.and(Err(Stop::Reported));
            }
        }
        outcome
    }

    fn load_rest<B: Batch>(&mut self, loader: &DataLoader<B>) -> Result<u64, Stop> {
        let mut state = self.resumed.take().unwrap_or_else(|| loader.state());
        if !state.is_merged() {
            self.note(|| state.clone());
        }
        while state.epoch() < self.arguments.epochs && !self.is_enough() {
            state = self.load_epoch(loader, &state)?;
        }
        self.end()?;
        Ok(self.errors)
    }

    /// Loads the rest of an epoch from `state` on. Returns the state behind it, or where `--stop-after` ended
    /// it.
    ///
    /// # Errors
    /// [`Stop::EpochNotRead`] if errors have cut the epoch short, and the state of the run is saved.
    fn load_epoch<B: Batch>(&mut self, loader: &DataLoader<B>, state: &State) -> Result<State, Stop> {
        let mut batches = loader.resume(state).map_err(|error| self.refused(error))?;
        let epoch = batches.epoch();
        if state.is_merged() {
            // From now on, a state is that of this rank.
            self.note(|| batches.state());
        }
        self.begin_epoch(loader, &batches, state)?;
        let mut digest = self.settings.loader.digest.unwrap_or_default().then(BatchDigest::new);
        let mut noted: Option<Instant> = None;
        loop {
            let interrupted = self.interrupt.check();
            // Behind the last batch, the run that resumes from the state reports the epoch.
            if interrupted.is_err() || self.is_enough() {
                if self.arguments.report.is_some() {
                    page::note_epoch(batches.report());
                }
                interrupted?;
                self.restarts += batches.report().restarts;
                self.reporter.stopped_after(epoch, self.batches)?;
                return Ok(batches.state());
            }
            let batch = batches.next();
            self.workers.report_changes(batches.worker_pids(), self.reporter)?;
            let Some(batch) = batch else { break };
            if let Err(error @ Error::TimedOut { .. }) = &batch {
                // No batch is lost, and the next call waits again, until `WorkerStuck` ends the epoch.
                self.reporter.error(epoch, None, error)?;
                page::note_error(epoch, error);
                continue;
            }
            self.batches += 1;
            self.batch_returned(&batches, batch, digest.as_mut())?;
            self.note(|| batches.state());
            self.reporter.batch_finished(&batches);
            let is_due = noted.is_none_or(|noted| noted.elapsed() >= NOTE_INTERVAL);
            if self.arguments.report.is_some() && is_due {
                // A signal may end the run during a batch, on another thread.
                page::note_epoch(batches.report());
                noted = Some(Instant::now());
            }
        }
        let state = batches.state();
        self.note(|| state.clone());
        let is_whole = state.epoch() != epoch;
        self.epochs += u64::from(is_whole);
        let report = batches.report();
        self.restarts += report.restarts;
        self.reporter.epoch_ended(&report, digest.as_ref())?;
        page::note_epoch(report);
        match (is_whole, &self.saver) {
            (true, _) => Ok(state),
            (false, Some(_)) => {
                self.end()?;
                Err(Stop::EpochNotRead { epoch })
            }
            // No run can resume from this epoch, because its state is not saved. Its errors were reported.
            (false, None) => Ok(loader.state()),
        }
    }

    fn begin_epoch<B: Batch>(
        &mut self,
        loader: &DataLoader<B>,
        batches: &Iter<B>,
        state: &State,
    ) -> Result<(), Stop> {
        let Self { arguments, settings, reporter, workers, .. } = self;
        if !std::mem::replace(&mut self.has_begun, true) {
            let samples = arguments.samples.or_else(|| Some(share(loader.samples()?, &settings.loader)));
            reporter.event(&Event::start(samples, loader.len(), &batches.worker_pids(), settings))?;
            workers.begin_with(batches.worker_pids());
        }
        let epoch = batches.epoch();
        // An iterable dataset has no upper bound, and a merged state does not tell what is left for this rank.
        let left = batches.size_hint().1.or_else(|| {
            let len = loader.len().filter(|_| !state.is_merged());
            len.map(|len| len.saturating_sub(state.batches() as usize))
        });
        let interval = arguments.progress_interval();
        reporter.epoch_begins(epoch, arguments.epochs, left, interval);
        Ok(workers.report_changes(batches.worker_pids(), reporter)?)
    }

    /// Reports a batch, or the error in its place, that `batches` has returned last.
    fn batch_returned<B: Batch>(
        &mut self,
        batches: &Iter<B>,
        batch: Result<B, Error>,
        digest: Option<&mut BatchDigest>,
    ) -> Result<(), Stop> {
        let epoch = batches.epoch();
        match (batch, batches.last_batch()) {
            (Ok(batch), Some(info)) => {
                if let Some(digest) = digest {
                    digest.add(&info.indices, &batch);
                }
                if self.arguments.batches {
                    self.reporter.event(&Event::batch(epoch, info))?;
                }
            }
            (Ok(_), None) => unreachable!("`last_batch` describes every batch that `next` returns"),
            (Err(error), info) => {
                self.errors += 1;
                self.reporter.error(epoch, info, &error)?;
                page::note_error(epoch, &error);
                if info.is_none() {
                    // The error concerns the whole epoch: the workers are gone, or waiting again would
                    // fail again.
                    page::note_epoch(batches.report());
                    self.restarts += batches.report().restarts;
                    self.end()?;
                    return Err(Stop::Reported);
                }
            }
        }
        Ok(())
    }

    fn end(&self) -> Result<(), Stop> {
        let &Self { epochs, restarts, errors, .. } = self;
        Ok(self.reporter.event(&Event::End { epochs, restarts, errors })?)
    }

    /// True after the batches of `--stop-after`.
    fn is_enough(&self) -> bool {
        self.arguments.stop_after.is_some_and(|batches| self.batches >= batches)
    }

    /// Notes the state to be saved.
    fn note(&self, state: impl FnOnce() -> State) {
        if let Some(saver) = &self.saver {
            saver.note(state());
        }
    }

    /// Returns why the run ends if its first epoch cannot begin.
    fn refused(&self, error: Error) -> Stop {
        match (&self.files[..], error) {
            (
                [path, ..],
                error
                @ (Error::StateVersion { .. } | Error::StateMismatch { .. } | Error::StateShards { .. }),
            ) => Stop::StateNotUsable { path: path.clone(), problem: StateProblem::Refused(error) },
            (_, error) => error.into(),
        }
    }
}

/// Returns the number of samples that this process loads in an epoch over `samples` samples.
fn share(samples: usize, options: &LoaderOptions) -> usize {
    let Ok(Some((rank, world_size))) = options.group() else { return samples };
    let sampler = DistributedSampler::new(samples, world_size, rank);
    sampler.map_or(samples, |sampler| sampler.drop_last(options.drop_last.unwrap_or(false)).len())
}
