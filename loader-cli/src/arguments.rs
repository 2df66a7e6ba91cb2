//! The command line.

use std::{
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use clap::{Args, Parser, Subcommand, ValueEnum, error::ErrorKind};
use loader_core::units;
use loader_data::{DatasetConfig, PixelOption, StandardTransform, TransformOptions};
use serde_json::Value;

use crate::{options::LoaderArguments, stop::Stop};

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
    Plan(Box<PlanArguments>),
    /// Measure numbers of workers and prefetch factors with the dataset of a config, and write the best ones
    /// into the config
    Tune(Box<TuneArguments>),
    /// Read a dataset once and print its fields, types, shapes, lengths, classes and bad files
    Inspect(Box<InspectArguments>),
    /// Check what the loader needs of this machine: kernel, limits, CPUs, workers, memory, storage
    Doctor(Box<DoctorArguments>),
    /// Print the settings of a run and where each value comes from, or the JSON Schema of configs
    Config(Box<ConfigArguments>),
    /// Make the stored indexes of JSON lines, lines of text and tar archives, or check them
    Index(IndexArguments),
    /// Pack a folder of files into tar archives in WebDataset's layout or into Parquet files, or check such archives
    Pack(PackArguments),
}

#[derive(Debug, Args)]
pub(crate) struct RunArguments {
    /// Folder with one sub-folder of images per class, a config (a .toml file), or data files
    /// (.jsonl, .parquet, .tar; a pattern such as 'train-{000..099}.tar' too)
    pub(crate) target: PathBuf,

    #[command(flatten)]
    pub(crate) loader: LoaderArguments<false>,

    /// Number of passes over the dataset
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) epochs: u64,

    /// Number of samples per epoch, drawn at random with replacement [default: each sample once]
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub(crate) samples: Option<usize>,

    #[command(flatten)]
    pub(crate) images: DatasetArguments,

    /// Write the state of the run to this file when the run ends, also after a signal such as Ctrl-C; `{rank}` in the
    /// name stands for the rank
    #[arg(long, value_name = "FILE")]
    pub(crate) save_state: Option<PathBuf>,

    /// Continue the run whose state `--save-state` wrote to this file (`{rank}` stands for the rank), or the
    /// run whose ranks wrote these files, with any number of ranks
    #[arg(long, value_name = "FILE", num_args = 1..)]
    pub(crate) resume: Vec<PathBuf>,

    /// Write an HTML page about the run to this file when the run ends, also after a signal such as Ctrl-C
    #[arg(long, value_name = "FILE")]
    pub(crate) report: Option<PathBuf>,

    /// Stop after this number of batches [default: at the end of the last epoch]
    #[arg(long, value_name = "BATCHES", value_parser = at_least_one)]
    pub(crate) stop_after: Option<usize>,

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

/// Keys of a dataset on the command line: those of an image folder, and those of the fields of records.
#[derive(Debug, Args)]
pub(crate) struct DatasetArguments {
    /// Transform of the images [default: train]
    #[arg(long)]
    transform: Option<TransformName>,

    /// Width and height of the transformed images, in pixels [default: 224]
    #[arg(long, value_name = "PIXELS")]
    size: Option<u32>,

    /// Type of the pixels [default: f32]
    #[arg(long)]
    pixels: Option<Pixels>,

    /// Turn images upright, as the orientation in their EXIF data says [default: false]
    #[arg(
        long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true"
    )]
    exif_orientation: Option<bool>,

    /// Maximum size of an image file [default: 256 MiB]
    #[arg(long, value_name = "SIZE", value_parser = units::parse::<u64>)]
    max_file_bytes: Option<u64>,

    /// Fields of the records, in this order, separated by commas [default: all]
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    fields: Vec<String>,

    /// Dtypes to which the numbers of fields are converted, such as label=uint8
    #[arg(long, value_name = "FIELD=DTYPE", value_delimiter = ',', value_parser = dtype_of_field)]
    dtypes: Vec<(String, Value)>,

    /// Numbers that take the place of nulls, such as age=-1
    #[arg(long, value_name = "FIELD=NUMBER", value_delimiter = ',', value_parser = number_of_field)]
    fill: Vec<(String, Value)>,

    /// Fields, separated by commas: leaves out the records in which one of them is null, and reads the others in order. A
    /// config must have a kind that is read in order
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    drop_nulls: Vec<String>,

    /// Numbers with which sequences of different lengths are padded, such as tokens=0
    #[arg(long, value_name = "FIELD=NUMBER", value_delimiter = ',', value_parser = number_of_field)]
    pad: Vec<(String, Value)>,
}

/// [`StandardTransform`] on the command line.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum TransformName {
    /// Random resized crop, random flip, normalisation
    Train,
    /// Resize, central crop, normalisation
    Eval,
    /// No transform; all images of a batch must have the same size
    None,
}

/// [`PixelOption`] on the command line.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Pixels {
    /// 32-bit floats, normalised by the transforms train and eval
    F32,
    /// Bytes, never normalised
    U8,
}

#[derive(Debug, Args)]
pub(crate) struct ConfigArguments {
    /// Print every setting that `loader run` would have with this config (or folder, or data files) and with
    /// the options below, as a config, and where each value comes from
    #[arg(long, value_name = "CONFIG", required_unless_present = "schema", conflicts_with = "schema")]
    pub(crate) print: Option<PathBuf>,

    /// Print the JSON Schema of configs, for editors
    #[arg(long)]
    pub(crate) schema: bool,

    #[command(flatten)]
    pub(crate) loader: LoaderArguments<false>,

    #[command(flatten)]
    pub(crate) images: DatasetArguments,
}

#[derive(Debug, Args)]
pub(crate) struct TuneArguments {
    /// The config (a .toml file). Only its keys num_workers and prefetch_factor change
    pub(crate) config: PathBuf,

    #[command(flatten)]
    pub(crate) loader: LoaderArguments<false>,

    /// Maximum time of the measurement
    #[arg(long, value_name = "TIME", default_value = "2 min", value_parser = units::parse::<Duration>)]
    pub(crate) time: Duration,

    /// Time that the program takes for a batch, which is simulated by waiting
    #[arg(long, value_name = "TIME", default_value = "0", value_parser = units::parse::<Duration>)]
    pub(crate) step: Duration,

    /// Print the result and write nothing
    #[arg(long)]
    pub(crate) dry_run: bool,

    /// Print events as JSON, one per line
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct PlanArguments {
    /// Number of samples in the dataset
    #[arg(long, value_name = "N")]
    pub(crate) length: usize,

    #[command(flatten)]
    pub(crate) loader: LoaderArguments<true>,

    /// Number of epochs to print
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) epochs: u64,
}

#[derive(Debug, Args)]
pub(crate) struct InspectArguments {
    /// Folder of images, folder of data files, data files, or a config (a .toml file), as for `loader run`
    pub(crate) target: PathBuf,

    #[command(flatten)]
    pub(crate) loader: LoaderArguments<false>,

    /// Read only this number of samples, rounded up to whole batches [default: all]
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub(crate) limit: Option<usize>,

    /// Write the images of the first batch, side by side, to this PNG file
    #[arg(long, value_name = "FILE")]
    pub(crate) contact_sheet: Option<PathBuf>,

    /// Exit with status 1 if a file or a sample cannot be read
    #[arg(long)]
    pub(crate) strict: bool,

    /// Print one JSON object instead of text
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct DoctorArguments {
    /// Config (a .toml file), folder or data files, as for `loader run`, to check the dataset and its storage too
    pub(crate) target: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) loader: LoaderArguments<false>,

    /// Print one JSON object instead of text
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[cfg_attr(not(feature = "formats"), allow(dead_code, reason = "read only by `loader index`"))]
pub(crate) struct IndexArguments {
    /// Data files (.jsonl, .ndjson, .txt or .tar; a pattern too), a folder of them, or a config (a .toml
    /// file)
    pub(crate) target: PathBuf,

    /// Make nothing; exit with status 1 if an index is missing, stale or damaged
    #[arg(long)]
    pub(crate) check: bool,

    /// Where the indexes are stored: `cache`, `beside` (FILE.index) or a folder [default: as configured, or
    /// cache]
    #[cfg(feature = "formats")]
    #[arg(long = "index", value_name = "PLACE", value_parser = place)]
    pub(crate) place: Option<loader_data::IndexPlace>,

    /// Print one JSON object per file instead of text
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[cfg_attr(not(feature = "formats"), allow(dead_code, reason = "read only by `loader pack`"))]
pub(crate) struct PackArguments {
    /// Folder of images with one sub-folder per class, or of files of which those with one name are a sample;
    /// with --check, the folder of the archives
    pub(crate) source: PathBuf,

    /// Folder of the archives, which is created. If it has archives of an earlier run, only what is missing
    /// or has changed is packed
    #[arg(required_unless_present = "check")]
    pub(crate) output: Option<PathBuf>,

    /// Maximum size of an archive, at least 1 byte, unless one sample needs more
    #[arg(long, value_name = "SIZE", default_value = "256 MiB", value_parser = shard_size)]
    pub(crate) shard_size: u64,

    /// Format of the packed files
    #[arg(long, value_enum, default_value_t)]
    pub(crate) format: PackedFormat,

    /// Put the samples in a random order that depends only on this seed [default: sorted by name]
    #[arg(long, value_name = "SEED")]
    pub(crate) shuffle: Option<u64>,

    /// Write nothing; exit with status 1 if an archive is missing or does not have the checksum of the
    /// manifest
    #[arg(long)]
    pub(crate) check: bool,
}

/// `PackFormat` on the command line.
#[derive(Debug, Clone, Copy, Default, ValueEnum)]
pub(crate) enum PackedFormat {
    /// tar archives in WebDataset's layout
    #[default]
    Tar,
    /// Parquet files with a row for each sample
    Parquet,
}

impl Arguments {
    /// Reads the command line. If it asks for help or the version, prints that and returns
    /// [`Stop::HelpPrinted`].
    pub(crate) fn read() -> Result<Self, Stop> {
        Self::try_parse().map_err(|error| {
            if !error.use_stderr() || error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
                match error.print() {
                    // It is not an error if the reader has read enough.
                    Err(problem) if problem.kind() != io::ErrorKind::BrokenPipe => Stop::Output(problem),
                    _ => Stop::HelpPrinted(u8::try_from(error.exit_code()).unwrap_or(2)),
                }
            } else {
                Stop::InvalidArguments(in_one_line(&error.render().to_string()))
            }
        })
    }

    pub(crate) fn json(&self) -> bool {
        match &self.command {
            Command::Run(arguments) => arguments.json,
            Command::Plan(_) | Command::Config(_) | Command::Pack(_) => false,
            Command::Doctor(arguments) => arguments.json,
            Command::Tune(arguments) => arguments.json,
            Command::Inspect(arguments) => arguments.json,
            Command::Index(arguments) => arguments.json,
        }
    }
}

impl RunArguments {
    pub(crate) fn progress_interval(&self) -> Duration {
        self.progress_every
    }
}

impl DatasetArguments {
    /// Returns the names of the keys that are set.
    pub(crate) fn names(&self) -> Vec<&'static str> {
        [self.image_names(), self.field_names()].concat()
    }

    fn image_names(&self) -> Vec<&'static str> {
        let &Self { transform, size, pixels, exif_orientation, max_file_bytes, .. } = self;
        set_keys([
            ("transform", transform.is_some()),
            ("size", size.is_some()),
            ("pixels", pixels.is_some()),
            ("exif_orientation", exif_orientation.is_some()),
            ("max_file_bytes", max_file_bytes.is_some()),
        ])
    }

    fn field_names(&self) -> Vec<&'static str> {
        let Self { fields, dtypes, fill, drop_nulls, pad, .. } = self;
        set_keys([
            ("fields", !fields.is_empty()),
            ("dtypes", !dtypes.is_empty()),
            ("fill", !fill.is_empty()),
            ("drop_nulls", !drop_nulls.is_empty()),
            ("pad", !pad.is_empty()),
        ])
    }

    /// True if the records in which a field is null are left out.
    #[cfg(feature = "formats")]
    pub(crate) fn drops_nulls(&self) -> bool {
        !self.drop_nulls.is_empty()
    }

    /// Puts the options into `dataset`.
    pub(crate) fn apply_to(&self, dataset: &mut DatasetConfig) -> Result<(), Stop> {
        let &Self { transform, size, pixels, exif_orientation, max_file_bytes, .. } = self;
        match dataset {
            DatasetConfig::ImageFolder(_) if !self.field_names().is_empty() => {
                let message = "--fields, --dtypes, --fill, --drop-nulls and --pad are for records, and the dataset is an \
                               image folder; leave them out";
                return Err(Stop::InvalidArguments(message.to_owned()));
            }
            DatasetConfig::ImageFolder(images) => {
                if let Some(name) = transform {
                    images.transform = Some(TransformOptions::Standard(name.into()));
                }
                images.size = size.or(images.size);
                images.pixels = pixels.map(Into::into).or(images.pixels);
                images.exif_orientation = exif_orientation.or(images.exif_orientation);
                images.max_file_bytes = max_file_bytes.or(images.max_file_bytes);
            }
            dataset => {
                if !self.image_names().is_empty() {
                    let message = format!(
                        "--transform, --size, --pixels, --exif-orientation and --max-file-bytes are for image \
                         folders, and the dataset is of kind `{}`; leave them out",
                        dataset.kind()
                    );
                    return Err(Stop::InvalidArguments(message));
                }
                #[cfg(feature = "formats")]
                if let DatasetConfig::Records(config) = dataset
                    && !self.field_names().is_empty()
                {
                    **config = self.with_fields(config).map_err(|error| {
                        Stop::InvalidArguments(format!(
                            "--fields, --dtypes, --fill, --drop-nulls or --pad: {error}"
                        ))
                    })?;
                }
            }
        }
        Ok(())
    }

    /// Returns `config` with the keys of fields that are set. Its tables keep the fields that are not.
    #[cfg(feature = "formats")]
    fn with_fields(
        &self,
        config: &loader_data::RecordConfig,
    ) -> serde_json::Result<loader_data::RecordConfig> {
        let mut keys = serde_json::to_value(config)?;
        if !self.fields.is_empty() {
            keys["fields"] = self.fields.clone().into();
        }
        if !self.drop_nulls.is_empty() {
            keys["drop_nulls"] = self.drop_nulls.clone().into();
        }
        for (key, pairs) in [("dtypes", &self.dtypes), ("fill", &self.fill), ("pad", &self.pad)] {
            for (field, value) in pairs {
                keys[key][field] = value.clone();
            }
        }
        serde_json::from_value(keys)
    }
}

fn set_keys<const COUNT: usize>(keys: [(&'static str, bool); COUNT]) -> Vec<&'static str> {
    keys.into_iter().filter(|(_, is_set)| *is_set).map(|(name, _)| name).collect()
}

fn dtype_of_field(text: &str) -> Result<(String, Value), String> {
    let (field, dtype) = text.rsplit_once('=').ok_or("must be a field, `=` and a dtype")?;
    Ok((field.to_owned(), dtype.into()))
}

fn number_of_field(text: &str) -> Result<(String, Value), String> {
    let number = text.rsplit_once('=').and_then(|(field, number)| Some((field, number.parse::<f64>().ok()?)));
    match number {
        Some((field, number)) if number.is_finite() => Ok((field.to_owned(), number.into())),
        _ => Err("must be a field, `=` and a number".to_owned()),
    }
}

impl From<TransformName> for StandardTransform {
    fn from(name: TransformName) -> Self {
        match name {
            TransformName::Train => Self::Train,
            TransformName::Eval => Self::Eval,
            TransformName::None => Self::None,
        }
    }
}

impl From<Pixels> for PixelOption {
    fn from(pixels: Pixels) -> Self {
        match pixels {
            Pixels::F32 => Self::F32,
            Pixels::U8 => Self::U8,
        }
    }
}

/// Reads the place of indexes: `cache`, `beside`, or a folder.
#[cfg(feature = "formats")]
fn place(text: &str) -> Result<loader_data::IndexPlace, String> {
    match text {
        "" => Err("must be `cache`, `beside` or a folder".to_owned()),
        "cache" => Ok(loader_data::IndexPlace::Cache),
        "beside" => Ok(loader_data::IndexPlace::Beside),
        folder => Ok(loader_data::IndexPlace::Folder(PathBuf::from(folder))),
    }
}

fn shard_size(text: &str) -> Result<u64, String> {
    match units::parse(text) {
        Ok(0) => Err("must be at least 1".to_owned()),
        parsed => parsed.map_err(|error| error.to_string()),
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

/// True if `target` is a URL.
pub(crate) fn is_url(target: &Path) -> bool {
    target.to_str().is_some_and(|target| target.contains("://"))
}

/// Returns the command whose help explains an error of the command line.
fn called() -> &'static str {
    match std::env::args_os().nth(1) {
        Some(command) if command == "run" => "loader run",
        Some(command) if command == "plan" => "loader plan",
        Some(command) if command == "tune" => "loader tune",
        Some(command) if command == "inspect" => "loader inspect",
        Some(command) if command == "config" => "loader config",
        Some(command) if command == "doctor" => "loader doctor",
        Some(command) if command == "index" => "loader index",
        Some(command) if command == "pack" => "loader pack",
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
