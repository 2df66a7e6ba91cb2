//! The command line: that of every side.

use std::path::PathBuf;

use clap::{Parser, ValueEnum};
use serde::Serialize;

/// Measures one workload on dataloader-rs and prints JSON, one object a line.
#[derive(Debug, Parser, Serialize)]
pub(crate) struct Options {
    pub(crate) workload: Workload,
    /// Threads, each of which makes whole batches; 0 makes them in the program's own thread.
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
    /// Batches for each worker to be ahead.
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
    /// A file of u16 for `tokens`.
    #[arg(long, required_if_eq("workload", "tokens"))]
    pub(crate) file: Option<PathBuf>,
    /// Class folders of JPEGs for `images`.
    #[arg(long, required_if_eq("workload", "images"))]
    pub(crate) folder: Option<PathBuf>,
    /// For PyTorch only.
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

    /// Batches of an epoch when the command line does not say.
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
