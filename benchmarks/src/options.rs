//! The command line. The peers take the same one.

use std::path::PathBuf;

use clap::{Parser, ValueEnum};
use loader_core::{LoaderOptions, NumWorkers};
use serde::Serialize;

/// Measures one workload of the loader and prints JSON, one object a line.
#[derive(Debug, Parser, Serialize)]
pub(crate) struct Options {
    /// What to measure.
    pub(crate) workload: Workload,
    /// Worker processes.
    #[arg(long, default_value_t = 1)]
    pub(crate) workers: usize,
    /// Samples per batch; 16 in `tokens` and `stragglers`, 4 in `killed`, else 64.
    #[arg(long)]
    batch_size: Option<usize>,
    /// Batches per epoch; each workload has its own default.
    #[arg(long)]
    pub(crate) batches: Option<usize>,
    /// Epochs, starts, drops or kills to measure; 1 in `stragglers`, 20 in `killed`, else 5.
    #[arg(long)]
    epochs: Option<usize>,
    /// A random order instead of 0, 1, 2...
    #[arg(long)]
    pub(crate) shuffle: bool,
    /// Batches on their way per worker; the loader's own default where it is not given.
    #[arg(long)]
    prefetch_factor: Option<usize>,
    /// What the program reads of each batch of `bandwidth`.
    #[arg(long, value_enum, default_value_t = Read::Ends)]
    pub(crate) read: Read,
    /// Shape of a sample of `bandwidth`.
    #[arg(long, value_enum, default_value_t = Shape::Image)]
    pub(crate) sample: Shape,
    /// Type of its elements.
    #[arg(long, value_enum, default_value_t = Number::F32)]
    pub(crate) dtype: Number,
    /// The dataset of `start` and `memory`.
    #[arg(long, value_enum, default_value_t = Kind::Trivial)]
    pub(crate) dataset: Kind,
    /// What is wrong with one worker when the iterator of `shutdown` is dropped.
    #[arg(long, value_enum, default_value_t = Fault::None)]
    pub(crate) fault: Fault,
    /// The file of `tokens`: 16-bit numbers, little-endian.
    #[arg(long, required_if_eq("workload", "tokens"))]
    pub(crate) file: Option<PathBuf>,
    /// The class folders of `images`.
    #[arg(long, required_if_eq("workload", "images"))]
    pub(crate) folder: Option<PathBuf>,
    /// How a peer decodes `images`; this side has one way.
    #[arg(long)]
    pipeline: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Workload {
    /// 64 integers a batch: what a batch costs when there is nothing in it.
    Overhead,
    /// 64 x 3 x 224 x 224 floats a batch (38.5 MB), or smaller: what its bytes cost.
    Bandwidth,
    /// As `bandwidth`, without a loader: what the copy alone costs.
    Memcpy,
    /// 2048 tokens a sample from a file of 16-bit numbers.
    Tokens,
    /// JPEG files, decoded, cropped, resized, flipped and normalised.
    Images,
    /// From `iter()` to the first batch.
    Start,
    /// Private memory of each worker in the middle of an epoch.
    Memory,
    /// One sample in a hundred takes fifty times as long.
    Stragglers,
    /// From the drop of an iterator in the middle of an epoch until its workers are gone.
    Shutdown,
    /// Page faults, allocations and shared memory in the middle of an epoch of `bandwidth`.
    Steady,
    /// A run that ends in mid-epoch and is taken up again, with one worker more.
    Resume,
    /// A worker is killed in the middle of an epoch.
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
pub(crate) enum Number {
    /// Four bytes an element.
    F32,
    /// One byte an element.
    U8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Kind {
    /// Each sample is its index.
    Trivial,
    /// A million file names, of which a sample is one's length.
    Names,
    /// One array of 1 GB, of which a sample is a row.
    Memory,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Fault {
    /// Nothing.
    None,
    /// It is in a sample that takes 30 seconds.
    Stuck,
    /// It was stopped, by SIGSTOP.
    Stopped,
    /// It was killed, and another one is being started in its place.
    Killed,
    /// It has blocked all signals, and is in a sample that takes 30 seconds.
    Blocked,
}

impl Shape {
    /// As numbers.
    pub(crate) fn dimensions(self) -> &'static [usize] {
        match self {
            Self::Image => &[3, 224, 224],
            Self::Row => &[4096],
            Self::ShortRow => &[256],
        }
    }
}

impl Options {
    /// Samples per batch.
    pub(crate) fn batch_size(&self) -> usize {
        let default = match self.workload {
            Workload::Tokens | Workload::Stragglers => 16,
            Workload::Killed => 4,
            _ => 64,
        };
        self.batch_size.unwrap_or(default)
    }

    /// Epochs, starts, drops or kills to measure.
    pub(crate) fn epochs(&self) -> usize {
        let default = match self.workload {
            Workload::Stragglers => 1,
            Workload::Killed => 20,
            _ => 5,
        };
        self.epochs.unwrap_or(default)
    }

    /// What all workloads tell the loader.
    pub(crate) fn loader(&self) -> LoaderOptions {
        let mut options = LoaderOptions::default();
        options.batch_size = Some(self.batch_size());
        options.shuffle = Some(self.shuffle);
        options.num_workers = Some(NumWorkers::Fixed(self.workers));
        options.prefetch_factor = self.prefetch_factor;
        options
    }
}
