//! The command line.

use std::path::PathBuf;

use clap::{Parser, ValueEnum};
use serde::Serialize;

/// Measures one workload and prints a line of JSON.
#[derive(Debug, Parser, Serialize)]
pub(crate) struct Options {
    /// The workload to measure.
    pub(crate) workload: Workload,
    /// The loader to measure.
    #[arg(long, value_enum)]
    pub(crate) loader: Side,
    /// Take what a user of the loader would take, in place of the same dataset and `Batcher` on both sides.
    #[arg(long)]
    pub(crate) as_it_comes: bool,
    /// Load the same dataset on both sides, each in its usual way: the workers of this loader make the tensors, and
    /// burn's threads call a `Batcher`.
    #[arg(long, conflicts_with = "as_it_comes")]
    pub(crate) same_decoder: bool,
    /// Number of worker processes, or of threads.
    #[arg(long, default_value_t = 1)]
    pub(crate) workers: usize,
    /// Number of samples per batch. Default: 64 for `rows`, otherwise 32.
    #[arg(long)]
    batch_size: Option<usize>,
    /// Number of epochs to measure, after one that is not measured.
    #[arg(long, default_value_t = 3)]
    pub(crate) epochs: usize,
    /// The image folder for `images` and `memory`.
    #[arg(long, required_if_eq_any([("workload", "images"), ("workload", "memory")]))]
    pub(crate) folder: Option<PathBuf>,
    /// In `memory`, the time that the program takes for each batch.
    #[arg(long, default_value_t = 0)]
    pub(crate) step_ms: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Workload {
    /// JPEG files, decoded, cropped at random to 224 x 224, flipped at random and normalised.
    Images,
    /// Rows of 64 floats with labels, in memory.
    Rows,
    /// The most memory that all processes have in an epoch of `images`.
    Memory,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Side {
    Ours,
    Burn,
}

impl Options {
    /// True if this loader makes the tensors in its workers, and not with burn's `Batcher` in main.
    pub(crate) fn stacks_in_workers(&self) -> bool {
        self.loader == Side::Ours && (self.as_it_comes || self.same_decoder)
    }

    /// Returns the number of samples per batch.
    pub(crate) fn batch_size(&self) -> usize {
        self.batch_size.unwrap_or(if self.workload == Workload::Rows { 64 } else { 32 })
    }
}
