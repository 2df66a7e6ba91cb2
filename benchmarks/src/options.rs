//! The command line. The peers take the same one.

use clap::{Parser, ValueEnum};
use serde::Serialize;

/// Measures one workload of the loader and prints JSON, one object a line.
#[derive(Debug, Parser, Serialize)]
pub(crate) struct Options {
    /// What to measure.
    pub(crate) workload: Workload,
    /// Worker processes.
    #[arg(long, default_value_t = 1)]
    pub(crate) workers: usize,
    /// Batches per epoch; each workload has its own default.
    #[arg(long)]
    pub(crate) batches: Option<usize>,
    /// Epochs, or starts, to measure.
    #[arg(long, default_value_t = 5)]
    pub(crate) epochs: usize,
    /// A random order instead of 0, 1, 2...
    #[arg(long)]
    pub(crate) shuffle: bool,
    /// What the program reads of each batch of `bandwidth`.
    #[arg(long, value_enum, default_value_t = Read::Ends)]
    pub(crate) read: Read,
    /// The dataset of `start` and `memory`.
    #[arg(long, value_enum, default_value_t = Kind::Trivial)]
    pub(crate) dataset: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Workload {
    /// 64 integers a batch: what a batch costs when there is nothing in it.
    Overhead,
    /// 64 x 3 x 224 x 224 floats a batch (38.5 MB): what its bytes cost.
    Bandwidth,
    /// From `iter()` to the first batch.
    Start,
    /// Private memory of each worker in the middle of an epoch.
    Memory,
    /// Page faults, allocations and shared memory in the middle of an epoch of `bandwidth`.
    Steady,
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
#[serde(rename_all = "lowercase")]
pub(crate) enum Kind {
    /// Each sample is its index.
    Trivial,
    /// A million file names, of which a sample is one's length.
    Names,
}

/// Samples per batch, in every workload.
pub(crate) const BATCH: usize = 64;
