//! What programs with candle usually do, beside this loader with `loader-candle`: samples a second, time to the first
//! batch, and memory.
//!
//!     cargo run --release -- digits --loader thread
//!     cargo run --release -- photographs --loader ours --workers 2 --folder ../../.data/images
//!
//! Measures one side once and prints a line of JSON. All sides load the same samples with the same decoder, and make
//! candle's tensors of them.

mod sides;

use std::path::PathBuf;

use clap::{Parser, ValueEnum};

#[derive(Debug, Parser)]
struct Options {
    workload: Workload,
    #[arg(long, value_enum)]
    loader: Side,
    /// Number of workers of this loader, and of threads of `threads`. The other loops have none.
    #[arg(long, default_value_t = 0)]
    workers: usize,
    /// Folder with one sub-folder of photographs per class.
    #[arg(long, required_if_eq("workload", "photographs"))]
    folder: Option<PathBuf>,
    #[arg(long, default_value_t = 64)]
    batch_size: usize,
    /// Number of batches. Default: 2,000 of digits, 20 of photographs.
    #[arg(long)]
    batches: Option<usize>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Workload {
    Digits,
    Photographs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Side {
    /// This loader.
    Ours,
    /// The loop loads each batch itself.
    Loop,
    /// A thread loads batches, and sends them over a channel with room for two.
    Thread,
    /// As many threads as workers load batches in turn. Each sends its batches over a channel with room for two, and the
    /// loop takes them in turn, so they arrive in order.
    Threads,
}

fn main() -> anyhow::Result<()> {
    loader::init(); // first line of main: a worker never returns from it

    println!("{}", sides::measure(&Options::parse())?);
    Ok(())
}
