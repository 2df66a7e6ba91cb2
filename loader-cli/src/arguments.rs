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

/// A data loader for training loops, on worker processes
#[derive(Debug, Parser)]
#[command(name = "loader", version)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Load epochs from a folder of images or as a config says, and show how fast
    Run(Box<RunArguments>),
    /// Print which sample goes into which batch, one JSON line a batch; needs no dataset
    Plan(PlanArguments),
}

#[derive(Debug, Args)]
pub(crate) struct RunArguments {
    /// A folder with one sub-folder of JPEG and PNG images a class, or a config (a .toml file)
    pub(crate) target: PathBuf,

    #[command(flatten)]
    order: OrderArguments,

    /// Worker processes, or `auto`; 0 loads in this process [default: 0]
    #[arg(long, value_name = "N|auto")]
    num_workers: Option<NumWorkers>,

    /// Batches on their way per worker, at least 1; needs workers [default: 2]
    #[arg(long, value_name = "N")]
    prefetch_factor: Option<usize>,

    /// Batches in order rather than as they arrive [default: true]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    in_order: Option<bool>,

    /// Wait for a batch in seconds after which a warning says for which worker, 0 for never; needs workers [default: 30]
    #[arg(long, value_name = "SECONDS")]
    warn_after: Option<f64>,

    /// Keep the workers from one epoch to the next; needs workers [default: false]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    persistent_workers: Option<bool>,

    /// Longest wait for a batch in seconds, 0 for ever; needs workers [default: 0]
    #[arg(long, value_name = "SECONDS")]
    timeout: Option<f64>,

    /// Load batches into page-locked memory, for a GPU; needs the feature `cuda` [default: false]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    pin_memory: Option<bool>,

    /// Most bytes of shared memory for batches [default: half of the machine's memory]
    #[arg(long, value_name = "BYTES")]
    shared_memory_limit: Option<u64>,

    /// What happens when a worker dies: another one takes its place, or the run fails [default: restart]
    #[arg(long, value_name = "restart|fail")]
    on_worker_death: Option<OnWorkerDeath>,

    /// How many times in a row a worker may die without finishing a batch before the run ends [default: 10]
    #[arg(long, value_name = "N")]
    max_worker_deaths: Option<u32>,

    /// What happens with a sample that cannot be loaded: its batch fails, or it is skipped or replaced [default: error]
    #[arg(long, value_name = "error|skip|replace")]
    on_bad_sample: Option<OnBadSample>,

    /// How many samples may be skipped or replaced in an epoch [default: 10]
    #[arg(long, value_name = "N")]
    max_bad_samples: Option<u64>,

    /// Longest time for a sample in seconds, 0 for ever; needs workers [default: 0]
    #[arg(long, value_name = "SECONDS")]
    sample_timeout: Option<f64>,

    /// Most bytes of its own that a worker may have in memory; needs workers [default: no limit]
    #[arg(long, value_name = "BYTES")]
    worker_memory_limit: Option<u64>,

    /// Give a batch that is late to a second worker too; needs workers [default: false]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    hedge: Option<bool>,

    /// How many times to go through the dataset
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) epochs: u64,

    /// Samples an epoch, drawn at random with replacement [default: each sample once]
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub(crate) samples: Option<usize>,

    /// What is done with each image [default: train]
    #[arg(long)]
    pub(crate) transform: Option<TransformName>,

    /// Width and height of the transformed images, in pixels [default: 224]
    #[arg(long, value_name = "PIXELS")]
    pub(crate) size: Option<u32>,

    /// Type of the pixels: f32 normalised, or u8 as they are [default: f32]
    #[arg(long)]
    pub(crate) pixels: Option<Pixels>,

    /// Max size of an image file in bytes [default: 268435456]
    #[arg(long, value_name = "BYTES")]
    pub(crate) max_file_bytes: Option<u64>,

    /// Hash the order and the content of each epoch
    #[arg(long)]
    pub(crate) digest: bool,

    /// Seconds from one line of progress to the next where standard error is not a terminal, 0 for none
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = seconds)]
    progress_every: Duration,

    /// Print events as JSON, one a line
    #[arg(long)]
    pub(crate) json: bool,

    /// Print an event for each batch; needs --json
    #[arg(long, requires = "json")]
    pub(crate) batches: bool,
}

#[derive(Debug, Args)]
pub(crate) struct PlanArguments {
    /// Samples in the dataset
    #[arg(long, value_name = "N")]
    pub(crate) length: usize,

    #[command(flatten)]
    order: OrderArguments,

    /// How many epochs to print
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) epochs: u64,
}

/// What says which sample goes into which batch.
#[derive(Debug, Args)]
struct OrderArguments {
    /// Samples per batch, at least 1 [default: 1]
    #[arg(long, value_name = "N")]
    batch_size: Option<usize>,

    /// A new random order in each epoch [default: false]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    shuffle: Option<bool>,

    /// Seed of order and augmentation [default: 0]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,

    /// Whose order: the loader's own, or that of PyTorch, number for number [default: native]
    #[arg(long, value_name = "native|torch")]
    order: Option<Order>,

    /// Which of the processes that train together this is, from 0: it loads its share; needs --world-size
    #[arg(long, value_name = "N")]
    rank: Option<usize>,

    /// How many processes train together; needs --rank
    #[arg(long, value_name = "N")]
    world_size: Option<usize>,

    /// Leave out a last batch that is not full, and samples that are no share for every process [default: false]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    drop_last: Option<bool>,
}

impl Arguments {
    /// The arguments; or, when they are wrong or ask for help only, the exit status.
    pub(crate) fn read() -> Result<Self, ExitCode> {
        Self::try_parse().map_err(|error| {
            if !error.use_stderr() || error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
                // That nobody reads the help is no error.
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

/// The command whose help the error names: `loader run` if that was called.
fn called() -> &'static str {
    match std::env::args_os().nth(1) {
        Some(command) if command == "run" => "loader run",
        Some(command) if command == "plan" => "loader plan",
        _ => "loader",
    }
}

/// What clap says in paragraphs, without the usage.
fn in_one_line(text: &str) -> String {
    let text = text.strip_prefix("error: ").unwrap_or(text);
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let said =
        lines.take_while(|line| !line.starts_with("Usage:") && !line.starts_with("For more information"));
    let parts: Vec<_> = said.map(|line| line.strip_prefix("tip: ").unwrap_or(line)).collect();
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
                // A number of seconds is written as 30, not as 30.0.
                number => number.as_f64().map_or(number.to_string(), |number| number.to_string()),
            };
            let help = argument.get_help().unwrap().to_string();
            assert!(help.ends_with(&format!("[default: {default}]")), "{}: {help}", argument.get_id());
            compared += 1;
        }
        assert_eq!(compared, 17);
    }
}
