//! A data loader for training loops, with the semantics of PyTorch's `DataLoader`, on operating-system worker
//! processes.
//!
//! The main process sends batches of indices to worker processes. Each worker loads the samples from its copy
//! of the dataset, collates them into a batch, and writes the batch into shared memory. The main process
//! returns the batches to the training loop in order, without a copy.
//!
//! - Implement [`Dataset`] for data that has a length and an index (map-style), or [`IterableDataset`] for
//!   streams.
//! - [`DataLoader::builder`] and [`DataLoader::stream`] configure a loader; [`Builder`] lists all options.
//! - [`DataLoader::iter`] starts an epoch. [`Iter`] returns its batches.
//! - [`sampler`] determines the order of samples, [`collate`] makes batches of samples.
//! - [`Iter::state`] and [`DataLoader::resume`] save the position in an epoch and continue from it.
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
//!     fn get(&self, index: usize, _cx: &mut SampleContext) -> anyhow::Result<(u64, f32)> {
//!         Ok((index as u64, (index * index) as f32))
//!     }
//! }
//!
//! fn main() -> anyhow::Result<()> {
//!     // loader::init(); // The first line of main, with workers. In a worker it never returns.
//!     let loader = DataLoader::builder(Squares).batch_size(50).shuffle(true).num_workers(4).build()?;
//!     for batch in loader.iter()? {
//!         // Tensor<u64> and Tensor<f32> of shape [50], which are views of shared memory.
//!         let (numbers, squares) = batch?;
//!         assert_eq!(numbers.len(), squares.len());
//!     }
//!     Ok(())
//! }
//! ```
//!
//! Programs depend on the package `process-loader`. Its library, `loader`, exports this crate together with
//! `init`, which workers need. A library of datasets needs only this crate, and so does a program without
//! workers (`num_workers(0)`).
//!
//! # Features
//! - `config`: `Config` in the module `config` and `LoaderOptions::from_env` read the loader's options from
//!   TOML files and environment variables.
//! - `cuda`: [`pin_memory`](Builder::pin_memory) page-locks batches; without the feature it does nothing.
//!   Building needs no part of CUDA. The program loads NVIDIA's driver at run time, and runs without it too.
//! - `stream`: `Iter::into_stream` and `ConvertAhead::into_stream` return batches as a stream for async programs.
//! - `tracing`: events and spans for subscribers of the package tracing, with the target `loader`.

#![cfg_attr(docsrs, feature(doc_cfg))]

// The derive macros refer to this crate by the name that its users write.
extern crate self as loader_core;

mod builder;
#[cfg(feature = "config")]
pub mod config;
mod data;
mod engine;
mod error;
mod launch;
mod loader;
mod options;
mod report;
mod state;
mod text;

pub use builder::Builder;
pub use data::{collate, function, mix, pack, sampler};
pub use data::{
    context::{SampleContext, Shard, WorkerInfo},
    dataset::{
        CacheError, CachePart, Cached, ChainDataset, ComposeError, Concat, ConcatDataset, Dataset,
        DatasetStream, EndsShard, Filter, InterleaveDataset, IterableDataset, LengthBatch,
        LengthBatchesDataset, Map, MixDataset, Outage, PackedDataset, ShuffleBuffer, SnapshotDataset,
        SnapshotIterator, StackDataset, Subset, SubsetError, Take, TensorDataset, Tensors,
    },
    dataset_memory::{DatasetMemory, MemoryLimitReached, MemoryReservation},
    sample_digest::SampleDigest,
    shared_vec::{SharedVec, SharedVecError},
    tensor::{AnyTensor, Bool, BytesArray, DType, Element, Tensor, TensorError},
};
#[cfg(feature = "stream")]
pub use engine::ahead::BatchStream;
pub use engine::{ahead::ConvertAhead, iter::Iter, pool::WorkerProgram};
pub use error::{
    Error, UserFailure,
    bad_sample::BadSample,
    exit::{ExitCause, WorkerActivity, WorkerExit},
    start_error::WorkerStartError,
};
pub use launch::ranks::{LaunchedRank, Launcher, RankError};
pub use loader::DataLoader;
pub use loader_core_derive::{Convert, Sample};
#[doc(inline)]
pub use loader_ipc::{
    control::WorkerState,
    cpu_set::{CpuSet, ParseCpuSetError},
    frame::ExitStatus,
    profile::Phase,
    slots::SlotError,
    template::TemplateError,
    violation::ProtocolViolation,
};
#[doc(inline)]
pub use options::units;
pub use options::{
    AutoWorkers, LauncherMode, LoaderOptions, NumWorkers, OnBadSample, OnWorkerDeath, OptionInfo, OptionKind,
    Order, ParseOptionError, PrefetchFactor, WorkerAffinity,
};
pub use report::{
    advice::Advice,
    batch_info::BatchInfo,
    digest::BatchDigest,
    epoch_report::{EpochReport, Verdict, WorkerReport},
    figures::LoadFigures,
    load_times::{LoadTimes, Percentiles, PhaseTimes, SlowSample},
    ready_batches::ReadyBatches,
    stats::{LoaderStats, StatsReader, WorkerStats},
    tuning_decision::{TuningDecision, TuningReason},
    warning::Warning,
};
pub use state::{MergeError, State};

#[doc(hidden)]
pub use data::tensor::BatchRows;

// Each of these traits shares its name with a derive macro, so that one `use` imports both.
pub use data::collate::{Convert, Sample, TensorRow};

/// What a [`Builder`] is generic over. Name these types and traits in a function that takes or returns a
/// builder.
///
/// `Builder<K, C, W>` holds the dataset as a `K`: [`MapStyle<D>`](kind::MapStyle) from
/// [`DataLoader::builder`], [`Iterable<Plain<D>>`](kind::Iterable) from [`DataLoader::stream`], and
/// `Iterable<Snapshots<D>>` after [`snapshots`](Builder::snapshots). `C` is the collation (see [`collate`]).
/// `W` is the worker hook, [`NoWorkerInit`](kind::NoWorkerInit) by default.
///
/// # Examples
/// ```
/// use loader_core::{Builder, kind::{DatasetKind, MapStyle}, prelude::*};
///
/// /// The options that all loaders of a program share.
/// fn with_our_options<K: DatasetKind>(builder: Builder<K>) -> Builder<K> {
///     builder.batch_size(8).seed(3)
/// }
///
/// fn shuffled<D: Dataset>(dataset: D) -> Builder<MapStyle<D>> {
///     with_our_options(DataLoader::builder(dataset)).shuffle(true)
/// }
///
/// let numbers = TensorDataset::new(Tensor::<i64>::from_vec((0..80).collect(), [80])?)?;
/// assert_eq!(shuffled(numbers).build()?.len(), Some(10));
/// # anyhow::Ok(())
/// ```
pub mod kind {
    #[doc(inline)]
    pub use crate::data::{
        fetch::{DatasetKind, Iterable, MapStyle, Plain, Snapshots},
        worker_init::{NoWorkerInit, WorkerInit},
    };
}

/// The types and traits that most programs need.
pub mod prelude {
    pub use crate::{
        AutoWorkers, BatchDigest, ConcatDataset, DataLoader, Dataset, IterableDataset, LoaderOptions,
        NumWorkers, OnBadSample, OnWorkerDeath, Order, PrefetchFactor, Sample, SampleContext, Shard,
        SharedVec, SnapshotDataset, SnapshotIterator, StackDataset, State, Subset, Tensor, TensorDataset,
        WorkerInfo,
        sampler::{
            BatchSampler, DistributedSampler, RandomSampler, Sampler, SequentialSampler, SubsetRandomSampler,
            WeightedRandomSampler,
        },
    };
}

// The generator of `SampleContext::rng` implements the traits of this version of rand. The program may depend
// on another version.
pub use rand;

/// What `loader-worker`, `loader-data`, `loader-cli` and `loader-python` use of this crate. It may change in any release.
#[doc(hidden)]
pub mod internal {
    pub use loader_ipc::{
        build_id::BuildId, memory::SealedMemory, open_closed_streams, own_files, sent_file::SentFile,
        slots::note_all, socket_folder::SocketFolder, template::Fork, whole_file,
    };

    pub use crate::{
        data::{
            dataset::{get_one_by_one, out_of_place::OutOfPlace},
            dataset_memory::Reclaimable,
            fetch::{
                BatchRequest, EncodeBatch, Fetch, NoBatch, OpenFn, OpenRequest, OpenSignature, ProgressSink,
                ShardPosition, Snapshot, open,
            },
            foreign_error::ForeignError,
            panic::{record_backtraces, to_failure},
            random::{below, shuffle},
        },
        engine::pool::{ForkedTemplate, launchers_variables},
        launch::{
            affinity::Topology,
            control_group::{left_in_control_group, of_control_group},
            init::{note_init, types},
            memory::{available, default_limit, of_machine},
        },
        report::observers::SharedObservers,
        text::{
            config_line::config_line,
            printable::{is_printable, printable},
        },
    };
}

/// What the derive macros use.
#[doc(hidden)]
pub mod __private {
    pub use serde;
}
