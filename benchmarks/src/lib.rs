//! The loader's side of the comparison: one file a workload, each of which prints what it measured as JSON lines. The peers'
//! sides are in `peers/`, with the same workloads, options and lines; `run` puts them side by side.
//!
//! A new workload: a file with `run(&Options)`, a variant of `Workload`, a line in `run`. Then the peers' sides, and a case
//! in `side_by_side/cases.py`.

mod bandwidth;
mod datasets;
mod images;
mod killed;
mod memcpy;
mod memory;
mod options;
mod overhead;
mod resume;
mod shutdown;
mod start;
mod steady;
mod stragglers;
mod system;
mod throughput;
mod tokens;

use clap::Parser;
use options::{Options, Workload};

/// Measures the workload that the command line names.
///
/// # Errors
/// When loading fails, or a batch is not what it must be.
pub fn run() -> anyhow::Result<()> {
    let options = Options::parse();
    match options.workload {
        Workload::Overhead => overhead::run(&options),
        Workload::Bandwidth => bandwidth::run(&options),
        Workload::Memcpy => memcpy::run(&options),
        Workload::Tokens => tokens::run(&options),
        Workload::Images => images::run(&options),
        Workload::Start => start::run(&options),
        Workload::Memory => memory::run(&options),
        Workload::Stragglers => stragglers::run(&options),
        Workload::Shutdown => shutdown::run(&options),
        Workload::Steady => steady::run(&options),
        Workload::Resume => resume::run(&options),
        Workload::Killed => killed::run(&options),
    }
}
