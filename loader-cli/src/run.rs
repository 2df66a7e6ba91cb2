//! `loader run`: loads epochs like a training loop, and drops the batches.

use loader_core::{
    BatchDigest, DataLoader, Dataset, Error, LoaderOptions, Sample,
    collate::Batch,
    sampler::{DistributedSampler, RandomSampler, Sampler},
};

use crate::{
    arguments::RunArguments, dataset::Opened, events::Event, interrupt::Interrupt, reporter::Reporter,
    settings::Settings, stop::Stop, workers::Workers,
};

/// Runs the command. Returns the number of batches that failed.
pub(crate) fn run(
    arguments: &RunArguments,
    reporter: &mut Reporter,
    interrupt: Interrupt,
) -> Result<u64, Stop> {
    let Settings { dataset, loader } = Settings::new(arguments)?;
    let opened = dataset.open()?;
    let settings = Settings { dataset, loader: loader.clone().resolved() };
    let workers = Workers::default();
    let run = Run { arguments, settings, reporter, interrupt, workers, restarts: 0 };
    // The stock worker program, which LOADER_WORKER may name, knows the datasets by these names.
    match opened {
        Opened::F32(images) => run.load(images, loader, "image-folder"),
        Opened::U8(images) => run.load(images, loader, "image-folder-u8"),
        #[cfg(feature = "formats")]
        Opened::Records(records) => match *records {
            loader_data::Records::Map(records) => run.load(records, loader, "records"),
            loader_data::Records::Stream(records) => run.load_stream(records, loader, "record-stream"),
        },
    }
}

struct Run<'a> {
    arguments: &'a RunArguments,
    settings: Settings,
    reporter: &'a mut Reporter,
    interrupt: Interrupt,
    workers: Workers,
    restarts: u64,
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
        let loader = builder.on_warning(self.workers.listener(self.reporter.screen())).build()?;
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
        let loader = builder.on_warning(self.workers.listener(self.reporter.screen())).build()?;
        self.load_epochs(&loader)
    }

    fn load_epochs<B: Batch>(mut self, loader: &DataLoader<B>) -> Result<u64, Stop> {
        let mut errors = 0;
        for epoch in 0..self.arguments.epochs {
            self.load_epoch(loader, epoch, &mut errors)?;
        }
        self.reporter.event(&Event::End {
            epochs: self.arguments.epochs,
            restarts: self.restarts,
            errors,
        })?;
        Ok(errors)
    }

    fn load_epoch<B: Batch>(
        &mut self,
        loader: &DataLoader<B>,
        epoch: u64,
        errors: &mut u64,
    ) -> Result<(), Stop> {
        let Self { arguments, settings, reporter, interrupt, workers, restarts } = self;
        let mut batches = loader.epoch(epoch)?;
        if epoch == 0 {
            let samples = arguments.samples.or_else(|| Some(share(loader.samples()?, &settings.loader)));
            reporter.event(&Event::start(samples, loader.len(), &batches.worker_pids(), settings))?;
            workers.begin_with(batches.worker_pids());
        }
        reporter.epoch_begins(epoch, arguments.epochs, loader.len(), arguments.progress_interval());
        workers.report_changes(batches.worker_pids(), reporter)?;
        let mut digest = settings.loader.digest.unwrap_or_default().then(BatchDigest::new);
        loop {
            interrupt.check()?;
            let batch = batches.next();
            workers.report_changes(batches.worker_pids(), reporter)?;
            let Some(batch) = batch else { break };
            let info = batches.last_batch();
            match (batch, info) {
                (Ok(batch), Some(info)) => {
                    if let Some(digest) = &mut digest {
                        digest.add(&info.indices, &batch);
                    }
                    if arguments.batches {
                        reporter.event(&Event::batch(epoch, info))?;
                    }
                }
                (Ok(_), None) => unreachable!("`last_batch` describes every batch that `next` returns"),
                (Err(error), info) => {
                    *errors += 1;
                    reporter.error(epoch, info, &error)?;
                    if info.is_none() {
                        // The error concerns the whole epoch: the workers are gone, or waiting again would
                        // fail again.
                        *restarts += batches.report().restarts;
                        reporter.event(&Event::End {
                            epochs: epoch,
                            restarts: *restarts,
                            errors: *errors,
                        })?;
                        return Err(Stop::Reported);
                    }
                }
            }
            reporter.batch_finished(|| batches.report());
        }
        *restarts += batches.report().restarts;
        reporter.epoch_ended(&batches.report(), digest.as_ref())?;
        Ok(())
    }
}

/// Returns the number of samples that this process loads in an epoch over `samples` samples.
fn share(samples: usize, options: &LoaderOptions) -> usize {
    let (Some(rank), Some(world_size)) = (options.rank, options.world_size) else { return samples };
    let sampler = DistributedSampler::new(samples, world_size, rank);
    sampler.map_or(samples, |sampler| sampler.drop_last(options.drop_last.unwrap_or(false)).len())
}
