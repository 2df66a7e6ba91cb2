//! The command line, which is the same for every side.

use std::path::PathBuf;

use clap::{Parser, ValueEnum};
use serde::Serialize;

/// Measures one workload on dataloader-rs and prints JSON, one object per line.
#[derive(Debug, Parser, Serialize)]
pub(crate) struct Options {
    pub(crate) workload: Workload,
    /// Number of threads, each of which makes whole batches. With 0, the program's own thread makes them.
    #[arg(long, default_value_t = 1)]
    pub(crate) workers: usize,
    #[arg(long)]
    batch_size: Option<usize>,
    #[arg(long)]
    pub(crate) batches: Option<usize>,
    #[arg(long)]
    epochs: Option<usize>,
    #[arg(long)]
    pub(crate) shuffle: bool,
    /// Number of batches per worker that are loaded ahead.
    #[arg(long)]
    pub(crate) prefetch_factor: Option<usize>,
    #[arg(long, value_enum, default_value_t = Read::Ends)]
    pub(crate) read: Read,
    #[arg(long, value_enum, default_value_t = SampleShape::Image)]
    pub(crate) sample: SampleShape,
    #[arg(long, value_enum, default_value_t = DType::F32)]
    pub(crate) dtype: DType,
    #[arg(long, value_enum, default_value_t = Kind::Trivial)]
    pub(crate) dataset: Kind,
    /// File of `u16` for the workload `tokens`.
    #[arg(long, required_if_eq("workload", "tokens"))]
    pub(crate) file: Option<PathBuf>,
    /// Folder with one sub-folder of JPEGs per class, for the workload `images`.
    #[arg(long, required_if_eq("workload", "images"))]
    pub(crate) folder: Option<PathBuf>,
    /// Ignored: only PyTorch has pipelines to choose from.
    #[arg(long)]
    pipeline: Option<String>,
}

impl Options {
    pub(crate) fn batch_size(&self) -> usize {
        let default = if matches!(self.workload, Workload::Tokens | Workload::Stragglers) { 16 } else { 64 };
        self.batch_size.unwrap_or(default)
    }

    pub(crate) fn epochs(&self) -> usize {
        self.epochs.unwrap_or(if self.workload == Workload::Stragglers { 1 } else { 3 })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Workload {
    Overhead,
    Bandwidth,
    Tokens,
    Images,
    Start,
    Memory,
    Stragglers,
    Shutdown,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Read {
    Ends,
    Pages,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum SampleShape {
    Image,
    Row,
    ShortRow,
}

impl SampleShape {
    pub(crate) fn shape(self) -> Vec<usize> {
        match self {
            Self::Image => crate::images::SHAPE.to_vec(),
            Self::Row => vec![4096],
            Self::ShortRow => vec![256],
        }
    }

    /// Default number of batches in an epoch.
    pub(crate) fn batches(self) -> usize {
        match self {
            Self::Image => 200,
            Self::Row => 5_000,
            Self::ShortRow => 20_000,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum DType {
    F32,
    U8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Kind {
    Trivial,
    Names,
    Memory,
}
