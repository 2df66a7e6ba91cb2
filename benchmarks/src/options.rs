//! The command line. The peers' programs take the same options.

use std::path::PathBuf;

use clap::{Parser, ValueEnum};
use loader_core::{LoaderOptions, PrefetchFactor};
use serde::Serialize;

/// Measures one workload of the loader and prints a line of JSON.
#[derive(Debug, Parser, Serialize)]
pub(crate) struct Options {
    /// The workload to measure.
    pub(crate) workload: Workload,
    /// Number of worker processes.
    #[arg(long, default_value_t = 1)]
    pub(crate) workers: usize,
    /// Number of samples per batch. Default: 16 for `tokens` and `stragglers`, 4 for `killed`, 256 for
    /// `parquet`, `arrow`, `json-lines`, `csv` and `tar`, otherwise 64.
    #[arg(long)]
    batch_size: Option<usize>,
    /// Number of batches per epoch. Each workload has its own default.
    #[arg(long)]
    pub(crate) batches: Option<usize>,
    /// Number of epochs, starts, drops or kills. Default: 1 for `stragglers`, 20 for `killed`, otherwise 5.
    #[arg(long)]
    epochs: Option<usize>,
    /// Load in random order instead of 0, 1, 2, ...
    #[arg(long)]
    pub(crate) shuffle: bool,
    /// Number of batches to load ahead per worker. Default: the default of the loader.
    #[arg(long)]
    prefetch_factor: Option<usize>,
    /// What the program reads of each batch in `bandwidth`.
    #[arg(long, value_enum, default_value_t = Read::Ends)]
    pub(crate) read: Read,
    /// Shape of a sample in `bandwidth`.
    #[arg(long, value_enum, default_value_t = Shape::Image)]
    pub(crate) sample: Shape,
    /// Type of the elements in `bandwidth`.
    #[arg(long, value_enum, default_value_t = Dtype::F32)]
    pub(crate) dtype: Dtype,
    /// The dataset of `start` and `memory`.
    #[arg(long, value_enum, default_value_t = DatasetKind::Trivial)]
    pub(crate) dataset: DatasetKind,
    /// What is wrong with one worker when the iterator of `shutdown` is dropped.
    #[arg(long, value_enum, default_value_t = Fault::None)]
    pub(crate) fault: Fault,
    /// The file for `tokens` (16-bit numbers, little-endian) and the file formats, and the archives for
    /// `tar-images`.
    #[arg(long)]
    pub(crate) file: Option<PathBuf>,
    /// Measure the library that decodes the file, in a loop that makes the same batches without the loader.
    #[arg(long)]
    pub(crate) decoder: bool,
    /// In `parquet`, `json-lines`, `csv` and `tar`, measure the memory in the middle of an epoch instead of the time.
    #[arg(long)]
    pub(crate) memory: bool,
    /// In `json-lines` and `csv`, read records, whose fields are known only when the program runs.
    #[arg(long)]
    pub(crate) records: bool,
    /// The image folder for `images` and `cached-images`.
    #[arg(long, required_if_eq_any([("workload", "images"), ("workload", "cached-images")]))]
    pub(crate) folder: Option<PathBuf>,
    /// The file for a trace of main and the workers. Default: no trace.
    #[arg(long)]
    trace: Option<PathBuf>,
    /// The library with which a peer decodes `images`. This loader ignores it.
    #[arg(long)]
    pipeline: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Workload {
    /// Time per batch of 64 integers: the cost of a batch with almost no content.
    Overhead,
    /// Time per batch of 64 x 3 x 224 x 224 floats (38.5 MB), or of smaller samples: the cost of the bytes.
    Bandwidth,
    /// Time to copy as many bytes as in `bandwidth`, without a loader.
    Memcpy,
    /// Time per batch of samples of 2048 tokens from a file of 16-bit numbers.
    #[cfg(feature = "formats")]
    Tokens,
    /// Time per batch of rows of a Parquet file.
    #[cfg(feature = "formats")]
    Parquet,
    /// Time per batch of rows of a file of JSON lines.
    #[cfg(feature = "formats")]
    JsonLines,
    /// Time per batch of samples of a tar archive in WebDataset's layout.
    #[cfg(feature = "formats")]
    Tar,
    /// Time per batch of rows of an Arrow IPC file.
    #[cfg(feature = "formats")]
    Arrow,
    /// Time per batch of rows of a CSV file.
    #[cfg(feature = "formats")]
    Csv,
    /// Number of JPEG files that are decoded, cropped, resized, flipped and normalised per second.
    Images,
    /// The same for JPEG files in tar archives in WebDataset's layout.
    #[cfg(feature = "formats")]
    TarImages,
    /// Number of images that are read from a cache of decoded images, cropped, flipped and normalised per
    /// second.
    CachedImages,
    /// Time from `iter()` to the first batch.
    Start,
    /// Memory of main and of each worker in the middle of an epoch.
    Memory,
    /// Time of an epoch in which one sample in a hundred takes fifty times as long.
    Stragglers,
    /// Time from the drop of an iterator in the middle of an epoch until its workers are gone.
    Shutdown,
    /// Page faults, allocations and shared memory in the middle of an epoch of `bandwidth`.
    Steady,
    /// Time to stop a run in the middle of an epoch and to resume it with one more worker.
    Resume,
    /// Time to recover from the kill of a worker in the middle of an epoch.
    Killed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Read {
    /// The first and the last element.
    Ends,
    /// One element of every page of memory.
    Pages,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Shape {
    /// 3 x 224 x 224.
    Image,
    /// 4096.
    Row,
    /// 256.
    ShortRow,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Dtype {
    /// Four bytes per element.
    F32,
    /// One byte per element.
    U8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum DatasetKind {
    /// Each sample is its index.
    Trivial,
    /// A million file names; a sample is the length of one.
    Names,
    /// One array of 1 GB; a sample is a row of it.
    Memory,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Fault {
    /// Nothing is wrong.
    None,
    /// The worker is in a sample that takes 30 seconds.
    Stuck,
    /// The worker was stopped by SIGSTOP.
    Stopped,
    /// The worker was killed, and another one is being started in its place.
    Killed,
    /// The worker has blocked all signals and is in a sample that takes 30 seconds.
    Blocked,
}

impl Shape {
    /// Returns the dimensions.
    pub(crate) fn dimensions(self) -> &'static [usize] {
        match self {
            Self::Image => &[3, 224, 224],
            Self::Row => &[4096],
            Self::ShortRow => &[256],
        }
    }
}

impl Options {
    /// Returns the number of samples per batch.
    pub(crate) fn batch_size(&self) -> usize {
        let default = match self.workload {
            #[cfg(feature = "formats")]
            Workload::Tokens => 16,
            #[cfg(feature = "formats")]
            Workload::Parquet | Workload::Arrow | Workload::JsonLines | Workload::Csv | Workload::Tar => 256,
            Workload::Stragglers => 16,
            Workload::Killed => 4,
            _ => 64,
        };
        self.batch_size.unwrap_or(default)
    }

    /// Returns the number of epochs, starts, drops or kills to measure.
    pub(crate) fn epochs(&self) -> usize {
        let default = match self.workload {
            Workload::Stragglers => 1,
            Workload::Killed => 20,
            _ => 5,
        };
        self.epochs.unwrap_or(default)
    }

    /// Returns the options of the loader that are the same for all workloads.
    pub(crate) fn loader(&self) -> LoaderOptions {
        let mut options = LoaderOptions::default()
            .batch_size(self.batch_size())
            .shuffle(self.shuffle)
            .num_workers(self.workers);
        options.prefetch_factor = self.prefetch_factor.map(PrefetchFactor::Fixed);
        options.trace.clone_from(&self.trace);
        options
    }
}
