//! This loader's side of the benchmarks. Each workload has a file, which measures it and prints the result as
//! a line of JSON. The peers' programs in `peers/` have the same workloads and options, and print the same
//! lines. `benchmarks/run` compares them.
//!
//! To add a workload, add a file with `run(&Options)`, a variant of `Workload` and a line in [`run`]; then
//! the same in the peers' programs, and a case in `side_by_side/cases.py`.

mod bandwidth;
mod datasets;
#[cfg(feature = "formats")]
mod formats;
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
#[cfg(feature = "formats")]
mod tokens;

use clap::Parser;
use options::{Options, Workload};

/// Measures the workload that the command line names.
///
/// # Errors
/// Fails if loading fails, or if a batch has wrong content.
pub fn run() -> anyhow::Result<()> {
    let options = Options::parse();
    match options.workload {
        Workload::Overhead => overhead::run(&options),
        Workload::Bandwidth => bandwidth::run(&options),
        Workload::Memcpy => memcpy::run(&options),
        #[cfg(feature = "formats")]
        Workload::Tokens => tokens::run(&options),
        #[cfg(feature = "formats")]
        Workload::Parquet | Workload::Arrow | Workload::JsonLines | Workload::Csv | Workload::Tar => {
            formats::run(&options)
        }
        Workload::Images => images::run(&options),
        #[cfg(feature = "formats")]
        Workload::TarImages => images::tar::run(&options),
        Workload::CachedImages => images::cached::run(&options),
        Workload::Start => start::run(&options),
        Workload::Memory => memory::run(&options),
        Workload::Stragglers => stragglers::run(&options),
        Workload::Shutdown => shutdown::run(&options),
        Workload::Steady => steady::run(&options),
        Workload::Resume => resume::run(&options),
        Workload::Killed => killed::run(&options),
    }
}
