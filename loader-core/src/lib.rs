//! A data loader for training loops: PyTorch's `DataLoader` on operating-system worker processes.
//!
//! The main process hands worker processes batches of indices, takes finished batches from them through shared memory, and gives
//! them to the training loop in order. The way of the data through this crate: [`sampler`] -> plan -> schedule -> worker
//! ([`Dataset`], [`collate`]) -> slot -> [`Iter`].
//!
//! ```no_run
//! use loader_core::prelude::*;
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Serialize, Deserialize)]
//! struct Squares;
//!
//! impl Dataset for Squares {
//!     type Sample = (u64, f32);
//!     fn len(&self) -> usize {
//!         1000
//!     }
//!     fn get(&self, index: usize, _cx: &mut Context) -> anyhow::Result<(u64, f32)> {
//!         Ok((index as u64, (index * index) as f32))
//!     }
//! }
//!
//! fn main() -> anyhow::Result<()> {
//!     // loader_worker::init();   // first line of main: a worker never returns from it
//!     let loader = DataLoader::builder(Squares).batch_size(64).shuffle(true).seed(7).num_workers(4).build()?;
//!     for batch in loader.iter()? {
//!         let (numbers, squares) = batch?; // Tensor<u64> [64], Tensor<f32> [64]: views into shared memory
//!         assert_eq!(numbers.len(), squares.len());
//!     }
//!     Ok(())
//! }
//! ```
//!
//! Workers need the crate `loader-worker` and one line in `main`; without workers (`num_workers(0)`) this crate is enough.
//!
//! # Features
//! - `config`: [`Config`](config::Config), the loader's options from TOML and the environment.
//! - `cuda`: [`pin_memory`](Builder::pin_memory) has an effect. Nothing of CUDA is needed to build: NVIDIA's driver is looked for when
//!   the program runs, and programs without it run as they are.

// The derive macro names this crate as its users do.
extern crate self as loader_core;

mod builder;
pub mod collate;
#[cfg(feature = "config")]
pub mod config;
mod context;
mod dataset;
mod digest;
mod error;
#[doc(hidden)]
pub mod fetch;
mod function;
mod iter;
#[doc(hidden)]
pub mod launch;
mod loader;
mod options;
#[doc(hidden)]
pub mod panic;
mod pinning;
mod plan;
mod pool;
mod random;
mod report;
pub mod sampler;
mod schedule;
mod shared_vec;
mod state;
mod tensor;
mod torch;
mod tuples;
mod warning;

pub use builder::{Builder, WorkerProgram};
pub use context::{Context, WorkerInfo};
pub use dataset::{
    ChainDataset, ComposeError, Concat, ConcatDataset, Dataset, Filter, InterleaveDataset, IterableDataset,
    Map, Parts, Shard, ShuffleBuffer, SnapshotDataset, SnapshotIterator, StackDataset, Subset, SubsetError,
    Take, TensorDataset, TensorRow, Tensors,
};
pub use digest::Digest;
pub use error::{Doing, Error, GivenUp, UserFailure};
pub use fetch::{Iterable, MapStyle, Plain, Snapshots};
pub use function::{
    BatchFunction, CollateFn, CollateFnWith, ConvertFn, ConvertFnWith, FilterFn, FilterFnWith,
    FilterFunction, MapFn, MapFnWith, MapFunction, Params, WithParams, WorkerInitFn, WorkerInitFnWith,
};
pub use iter::{BatchInfo, Iter};
pub use loader::DataLoader;
pub use loader_core_derive::{Convert, Sample};
pub use loader_ipc::{control::WorkerState, frame::ExitStatus};
pub use options::{LoaderOptions, NumWorkers, OnBadSample, OnWorkerDeath, Order};
pub use report::{BadSample, EpochReport, Verdict, WorkerReport};
pub use shared_vec::{SharedVec, SharedVecError};
pub use state::State;
pub use tensor::{DType, Element, Tensor, TensorError};
pub use warning::Warning;

// A trait and a derive macro may share a name; users import both with one `use`.
pub use collate::{Convert, Sample};

/// What a program needs, with one `use`.
pub mod prelude {
    pub use crate::{
        ConcatDataset, Context, DataLoader, Dataset, Digest, Error, IterableDataset, NumWorkers, OnBadSample,
        OnWorkerDeath, Order, Sample, Shard, SharedVec, SnapshotDataset, SnapshotIterator, StackDataset,
        State, Subset, Tensor, TensorDataset, WorkerInfo,
        sampler::{
            BatchSampler, DistributedSampler, RandomSampler, Sampler, SequentialSampler, SubsetRandomSampler,
            WeightedRandomSampler,
        },
    };
}

// The generator of `Context::rng` implements the traits of this version; the program may depend on another
// one.
pub use rand;

#[doc(hidden)]
pub mod __private {
    pub use serde;
}
