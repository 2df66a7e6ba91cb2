//! The command line.

use std::{
    io::{self, Write},
    path::PathBuf,
    process::ExitCode,
    time::Duration,
};

use clap::{Args, Parser, Subcommand, error::ErrorKind};
use loader_core::{LoaderOptions, NumWorkers, OnBadSample, OnWorkerDeath, Order};

use crate::{
    dataset::{Pixels, TransformName},
    events::Event,
};

/// Data loader for training loops, with worker processes
#[derive(Debug, Parser)]
#[command(name = "loader", version)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Load epochs of a folder of images, or as a config describes, and measure the speed
    Run(Box<RunArguments>),
    /// Print the indices of each batch, one line of JSON per batch; needs no dataset
    Plan(PlanArguments),
}

#[derive(Debug, Args)]
pub(crate) struct RunArguments {
    /// Folder with one sub-folder of JPEG and PNG images per class, or a config (a .toml file)
    pub(crate) target: PathBuf,

    #[command(flatten)]
    order: OrderArguments,

    /// Number of worker processes, or `auto`; 0 loads in this process [default: 0]
    #[arg(long, value_name = "N|auto")]
    num_workers: Option<NumWorkers>,

    /// Number of batches to load ahead per worker, at least 1; needs workers [default: 2]
    #[arg(long, value_name = "N")]
    prefetch_factor: Option<usize>,

    /// Return batches in order, rather than as they arrive [default: true]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    in_order: Option<bool>,

    /// Seconds of a wait before a warning names the awaited worker, 0 for never; needs workers [default: 30]
    #[arg(long, value_name = "SECONDS")]
    warn_after: Option<f64>,

    /// Keep the workers from one epoch to the next; needs workers [default: false]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    persistent_workers: Option<bool>,

    /// Maximum wait for a batch in seconds, 0 for no limit; needs workers [default: 0]
    #[arg(long, value_name = "SECONDS")]
    timeout: Option<f64>,

    /// Load batches into page-locked memory, for a GPU; needs the feature `cuda` [default: false]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    pin_memory: Option<bool>,

    /// Maximum bytes of shared memory for batches [default: half of the memory that this process may use]
    #[arg(long, value_name = "BYTES")]
    shared_memory_limit: Option<u64>,

    /// What happens if a worker dies: another worker replaces it, or the run fails [default: restart]
    #[arg(long, value_name = "restart|fail")]
    on_worker_death: Option<OnWorkerDeath>,

    /// Maximum number of deaths in a row of a worker that finishes no batch; more end the run [default: 10]
    #[arg(long, value_name = "N")]
    max_worker_deaths: Option<u32>,

    /// If a sample cannot be loaded: fail its batch, skip the sample, or replace it [default: error]
    #[arg(long, value_name = "error|skip|replace")]
    on_bad_sample: Option<OnBadSample>,

    /// Maximum number of samples that may be skipped or replaced in an epoch [default: 10]
    #[arg(long, value_name = "N")]
    max_bad_samples: Option<u64>,

    /// Maximum time for a sample in seconds, 0 for no limit; needs workers [default: 0]
    #[arg(long, value_name = "SECONDS")]
    sample_timeout: Option<f64>,

    /// Maximum bytes of memory of a worker, without shared memory; needs workers [default: no limit]
    #[arg(long, value_name = "BYTES")]
    worker_memory_limit: Option<u64>,

    /// Give a late batch to a second worker too; needs workers [default: false]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    hedge: Option<bool>,

    /// Number of passes over the dataset
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) epochs: u64,

    /// Number of samples per epoch, drawn at random with replacement [default: each sample once]
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub(crate) samples: Option<usize>,

    /// Transform of the images [default: train]
    #[arg(long)]
    pub(crate) transform: Option<TransformName>,

    /// Width and height of the transformed images, in pixels [default: 224]
    #[arg(long, value_name = "PIXELS")]
    pub(crate) size: Option<u32>,

    /// Type of the pixels [default: f32]
    #[arg(long)]
    pub(crate) pixels: Option<Pixels>,

    /// Maximum size of an image file in bytes [default: 268435456]
    #[arg(long, value_name = "BYTES")]
    pub(crate) max_file_bytes: Option<u64>,

    /// Print hashes of the order and the content of each epoch
    #[arg(long)]
    pub(crate) digest: bool,

    /// Seconds between two lines of progress if standard error is not a terminal, 0 for no lines
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = seconds)]
    progress_every: Duration,

    /// Print events as JSON, one per line
    #[arg(long)]
    pub(crate) json: bool,

    /// Print an event for each batch; needs --json
    #[arg(long, requires = "json")]
    pub(crate) batches: bool,
}

#[derive(Debug, Args)]
pub(crate) struct PlanArguments {
    /// Number of samples in the dataset
    #[arg(long, value_name = "N")]
    pub(crate) length: usize,

    #[command(flatten)]
    order: OrderArguments,

    /// Number of epochs to print
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) epochs: u64,
}

/// The options that determine the indices of each batch.
#[derive(Debug, Args)]
struct OrderArguments {
    /// Samples per batch, at least 1 [default: 1]
    #[arg(long, value_name = "N")]
    batch_size: Option<usize>,

    /// Use a new random order in each epoch [default: false]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    shuffle: Option<bool>,

    /// Seed of the order and of the augmentation [default: 0]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,

    /// Random order: that of this loader, or exactly that of PyTorch [default: native]
    #[arg(long, value_name = "native|torch")]
    order: Option<Order>,

    /// Number of this process, from 0, among those that train together; needs --world-size
    #[arg(long, value_name = "N")]
    rank: Option<usize>,

    /// Number of processes that train together; needs --rank
    #[arg(long, value_name = "N")]
    world_size: Option<usize>,

    /// Leave out a last batch that is not full, and samples that cannot be shared equally [default: false]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    drop_last: Option<bool>,
}

impl Arguments {
    /// Reads the command line. If it is invalid, prints the error; if it asks for help or the version, prints
    /// that. In both cases returns the exit status.
    pub(crate) fn read() -> Result<Self, ExitCode> {
        Self::try_parse().map_err(|error| {
            if !error.use_stderr() || error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
                // It is not an error if standard output is closed.
                drop(error.print());
            } else {
                let message = in_one_line(&error.render().to_string());
                if std::env::args_os().any(|argument| argument == "--json") {
                    let event = Event::stopped("InvalidArguments", &message);
                    drop(writeln!(io::stdout(), "{}", event.to_line()));
                }
                drop(writeln!(io::stderr(), "loader: {message}"));
            }
            ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2))
        })
    }

    pub(crate) fn json(&self) -> bool {
        matches!(&self.command, Command::Run(arguments) if arguments.json)
    }
}

impl RunArguments {
    pub(crate) fn progress_interval(&self) -> Duration {
        self.progress_every
    }

    pub(crate) fn options(&self) -> LoaderOptions {
        let mut options = self.order.options();
        options.num_workers = self.num_workers;
        options.prefetch_factor = self.prefetch_factor;
        options.in_order = self.in_order;
        options.timeout = self.timeout;
        options.warn_after = self.warn_after;
        options.persistent_workers = self.persistent_workers;
        options.pin_memory = self.pin_memory;
        options.shared_memory_limit = self.shared_memory_limit;
        options.on_worker_death = self.on_worker_death;
        options.max_worker_deaths = self.max_worker_deaths;
        options.on_bad_sample = self.on_bad_sample;
        options.max_bad_samples = self.max_bad_samples;
        options.sample_timeout = self.sample_timeout;
        options.worker_memory_limit = self.worker_memory_limit;
        options.hedge = self.hedge;
        options
    }
}

impl PlanArguments {
    pub(crate) fn options(&self) -> LoaderOptions {
        self.order.options()
    }
}

impl OrderArguments {
    fn options(&self) -> LoaderOptions {
        let mut options = LoaderOptions::default();
        options.batch_size = self.batch_size;
        options.shuffle = self.shuffle;
        options.seed = self.seed;
        options.order = self.order;
        options.rank = self.rank;
        options.world_size = self.world_size;
        options.drop_last = self.drop_last;
        options
    }
}

fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("must be at least 1".to_owned()),
        Ok(number) => Ok(number),
        Err(error) => Err(error.to_string()),
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().map_err(|_| "must be a number of seconds".to_owned())?;
    Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())
}

/// Returns the command whose help explains an error of the command line.
fn called() -> &'static str {
    match std::env::args_os().nth(1) {
        Some(command) if command == "run" => "loader run",
        Some(command) if command == "plan" => "loader plan",
        _ => "loader",
    }
}

/// Turns the paragraphs of an error of clap into one line, without the usage.
fn in_one_line(text: &str) -> String {
    let text = text.strip_prefix("error: ").unwrap_or(text);
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let message =
        lines.take_while(|line| !line.starts_with("Usage:") && !line.starts_with("For more information"));
    let parts: Vec<_> = message.map(|line| line.strip_prefix("tip: ").unwrap_or(line)).collect();
    format!("{}; see `{} --help`", parts.join("; ").replace(":; ", ": "), called())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_help_names_the_defaults() {
        let mut options = LoaderOptions::default();
        options.num_workers = Some(NumWorkers::Fixed(1));
        let defaults = serde_json::to_value(options.resolved()).unwrap();
        let command = Arguments::command();
        let run = command.find_subcommand("run").unwrap();
        let mut compared = 0;
        for argument in run.get_arguments().filter(|argument| argument.get_id() != "num_workers") {
            let Some(default) = defaults.get(argument.get_id().as_str()) else { continue };
            let default = match default {
                serde_json::Value::Null => continue,
                serde_json::Value::String(text) => text.clone(),
                // The help writes a number of seconds as 30, not as 30.0.
                number => number.as_f64().map_or(number.to_string(), |number| number.to_string()),
            };
            let help = argument.get_help().unwrap().to_string();
            assert!(help.ends_with(&format!("[default: {default}]")), "{}: {help}", argument.get_id());
            compared += 1;
        }
        assert_eq!(compared, 17);
    }
}
