//! The errors that the loader returns.

pub(crate) mod bad_sample;
pub(crate) mod exit;
pub(crate) mod start_error;

use std::{io, path::PathBuf, time::Duration};

use loader_ipc::{
    advice,
    control::WorkerState,
    cpu_set::CpuSet,
    frame::{Failure, Stage},
    slots::SlotError,
    violation::ProtocolViolation,
};

use crate::{data::panic, launch::affinity::AffinityError};
use bad_sample::BadSample;
use exit::{WorkerActivity, WorkerExit, ended};
use start_error::WorkerStartError;

/// An error of the loader. [`build`](crate::Builder::build) returns errors of options,
/// [`DataLoader::iter`](crate::DataLoader::iter) errors of starting workers, and [`Iter`](crate::Iter) errors
/// of batches.
///
/// An error of a batch loses this batch only: the next call of `next` returns the next batch.
/// [`ends_iteration`](Self::ends_iteration) tells whether an error ends the iterator instead.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// `build()`: the value of an option is invalid.
    #[error("{option}: {problem}")]
    InvalidOption {
        /// The option's name.
        option: &'static str,
        /// What is wrong and what to do.
        problem: String,
    },
    /// `build()`: two options exclude each other.
    #[error("{first} and {second} exclude each other: {reason}")]
    ConflictingOptions {
        /// Name of one option.
        first: &'static str,
        /// Name of the other option.
        second: &'static str,
        /// Why they exclude each other and what to do.
        reason: &'static str,
    },
    /// `build()`: the option `launcher` is on, and the launcher's variables do not tell the rank of this
    /// process.
    #[error(transparent)]
    RankUnknown(#[from] crate::launch::ranks::RankError),
    /// `build()`: the option `worker_affinity` names a CPU that does not exist, or that the control group of this
    /// process does not have.
    #[error(
        "worker_affinity: CPU {cpu} does not exist, or this process may not use it: it may use the CPUs {allowed}; \
         name only these, or use \"share\" or \"spread\""
    )]
    CpuNotAllowed {
        /// Number of the CPU.
        cpu: usize,
        /// The CPUs that the process may use.
        allowed: CpuSet,
    },
    /// `build()`: the dataset has no samples.
    #[error("the dataset is empty; check the path or the filter that it was made from")]
    EmptyDataset,
    /// `build()`: `num_workers` is not 0, and `loader::init()` was not called.
    #[error(
        "num_workers is {num_workers}, but loader::init() was not called: make it the first line of \
         main (in tests, `loader::init_before_main!()`), or set `worker_program`"
    )]
    InitNotCalled {
        /// The loader's `num_workers`.
        num_workers: usize,
    },
    /// `build()`: the loader is in a shared library, such as an extension of an interpreter, and `worker_program` is
    /// not set. If main started the program again, the new process would not become a worker, even if the library calls
    /// `loader::init()`.
    #[error(
        "num_workers is {num_workers}, but the loader is in the shared library {}, so the main program would not \
         become a worker if it was started again, whether or not the library calls loader::init(); set `worker_program` to a \
         program that becomes one (for an interpreter with arguments: \
         `WorkerProgram::new(\"python3\").args([\"-m\", \"package.worker\"])`)",
        library.display()
    )]
    InitOutsideProgram {
        /// The loader's `num_workers`.
        num_workers: usize,
        /// The shared library.
        library: PathBuf,
    },
    /// `build()`: workers cannot call a function of the loader. This is a function given to `map`, `filter`,
    /// `collate`, `convert` or `worker_init`, or the loader's own code.
    #[error("a function cannot be sent to workers: {problem}")]
    FunctionNotSendable {
        /// Why, and what to do.
        problem: String,
    },
    /// `build()`: this process is a worker.
    #[error(
        "a worker process tried to build a loader: make loader::init() the first line of main, so \
         that workers run nothing after it, and do not build loaders in datasets"
    )]
    LoaderInWorker,
    /// `build()`: the dataset, its collation or its worker hook cannot be encoded, or loses data in the
    /// encoding. This is checked without workers too, so that a dataset that loads without workers also loads
    /// with them.
    #[error(
        "the dataset cannot be sent to workers: {problem}; it is encoded with bincode, which does not \
         support `#[serde(untagged)]`, `#[serde(flatten)]`, `skip_serializing_if` and `serde_json::Value`; \
         keep its data in other types, or write `Serialize` and `Deserialize` for it by hand, and open files \
         and connections in `setup`"
    )]
    DatasetNotEncodable {
        /// The message of serde, or what the encoding loses.
        problem: String,
    },
    /// `build()`: the worker program does not exist.
    #[error("no worker program at {}: {source}; build it, or check the path in {origin}", path.display())]
    WorkerProgramMissing {
        /// Path at which it is expected.
        path: PathBuf,
        /// The option or the environment variable that names it.
        origin: &'static str,
        /// The error of the operating system.
        source: io::Error,
    },
    /// `iter()`: a worker could not be started, or main or the worker refused the handshake.
    #[error("worker {worker} did not start: {source}")]
    WorkerNotStarted {
        /// Number of the worker.
        worker: usize,
        /// What happened and what to do.
        source: WorkerStartError,
    },
    /// The operating system refused something that the loader needs. If the iterator returns it, the iterator
    /// ends with this error.
    #[error("{what} failed: {source}{}", advice(source))]
    System {
        /// What the loader tried to do.
        what: &'static str,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The dataset returned an error or panicked.
    #[error("{}", failed("the dataset", .index, .shard, .batch, .worker, .failure))]
    DatasetFailed {
        /// Index of the sample that failed, if it is known. For an iterable dataset, its position in the
        /// shard.
        index: Option<usize>,
        /// Number of the shard among the shards of this process; `None` for a map-style dataset.
        shard: Option<usize>,
        /// Number of the batch in its epoch.
        batch: u64,
        /// Number of the worker; `None` for the main process.
        worker: Option<usize>,
        /// The error or panic of the dataset.
        failure: Box<UserFailure>,
    },
    /// More samples were skipped or replaced in this epoch than `max_bad_samples` allows. The iterator ends
    /// with this error.
    #[error(
        "more than {max_bad_samples} bad samples in an epoch: {sample}; raise max_bad_samples if this is expected"
    )]
    TooManyBadSamples {
        /// The loader's `max_bad_samples`.
        max_bad_samples: u64,
        /// The bad sample that exceeded the limit.
        sample: Box<BadSample>,
    },
    /// The samples do not form a batch, or the collation function returned an error or panicked.
    #[error("{}", failed("collation", .index, .shard, .batch, .worker, .failure))]
    CollateFailed {
        /// Index of the sample that does not fit, if it is known. For an iterable dataset, its position in
        /// the shard.
        index: Option<usize>,
        /// Number of the shard among the shards of this process; `None` for a map-style dataset.
        shard: Option<usize>,
        /// Number of the batch in its epoch.
        batch: u64,
        /// Number of the worker; `None` for the main process.
        worker: Option<usize>,
        /// The error or panic of collation.
        failure: Box<UserFailure>,
    },
    /// A process could not open the dataset, because decoding, [`Dataset::setup`](crate::Dataset::setup) or
    /// `worker_init` failed; or it could not open a shard of an iterable dataset.
    ///
    /// If a process could not open a map-style dataset, each of its batches fails with this error. If it
    /// could not open an iterable dataset, it returns this error once, and all of its shards end. If a single
    /// shard could not be opened, the shard's next batch fails, and the shard ends.
    ///
    /// A worker program that was built from other source than the main program may be unable to decode the dataset.
    #[error("{}", failed("opening the dataset", &None, &None, .batch, .worker, .failure))]
    OpenFailed {
        /// Number of the batch in its epoch.
        batch: u64,
        /// Number of the worker; `None` for the main process.
        worker: Option<usize>,
        /// The error or panic.
        failure: Box<UserFailure>,
    },
    /// The worker program and the main program are built from different source: types of the dataset or of its batches
    /// have other fields. Without this error, values of one field could become those of another. The iterator ends with
    /// this error, and its state stays before the batch.
    #[error(
        "the worker program and the main program are built from different source (batch {batch}, worker {worker}): \
         {difference}; build both programs from the same source"
    )]
    ProgramsDiffer {
        /// Number of the batch in its epoch.
        batch: u64,
        /// Number of the worker.
        worker: usize,
        /// The types that differ.
        difference: String,
    },
    /// The function given to [`Iter::convert_ahead`](crate::Iter::convert_ahead) returned an error or panicked.
    #[error("{}", failed("the conversion", &None, &None, .batch, &None, .failure))]
    ConversionFailed {
        /// Number of the batch in its epoch.
        batch: u64,
        /// The error or panic of the function.
        failure: Box<UserFailure>,
    },
    /// A worker could not put the batch into shared memory: its `Serialize` implementation failed, or there
    /// was no room.
    #[error("{}", failed("sending the batch", &None, &None, .batch, .worker, .failure))]
    SendFailed {
        /// Number of the batch in its epoch.
        batch: u64,
        /// Number of the worker; `None` if no worker had begun the batch.
        worker: Option<usize>,
        /// The error or panic.
        failure: Box<UserFailure>,
    },
    /// The main process cannot decode a batch that a worker sent.
    #[error("batch {batch} from worker {worker} cannot be read: {problem}")]
    BatchNotReadable {
        /// Number of the batch in its epoch.
        batch: u64,
        /// Number of the worker.
        worker: usize,
        /// What is wrong with it.
        problem: String,
    },
    /// The sampler gave an index that the dataset does not have.
    #[error(
        "the sampler gave index {index} for batch {batch}, but the dataset has {len} samples; correct the \
         sampler"
    )]
    IndexOutOfRange {
        /// The index.
        index: usize,
        /// Number of the batch in its epoch.
        batch: u64,
        /// Number of samples of the dataset.
        len: usize,
    },
    /// The sampler panicked. The epoch ends after this error.
    #[error("the sampler panicked at batch {batch}: {message}")]
    SamplerPanicked {
        /// Number of the batch in its epoch.
        batch: u64,
        /// Message of the panic.
        message: String,
    },
    /// An epoch of an iterable dataset has fewer batches than `steps_per_epoch` says. The iterator ends with this
    /// error.
    #[error(
        "the stream ended after {given} batches, but steps_per_epoch is {steps}; lower it, or repeat the stream with a \
         `MixDataset` and `Exhausted::Repeat`"
    )]
    StreamTooShort {
        /// The loader's `steps_per_epoch`.
        steps: u64,
        /// Number of batches in the epoch.
        given: u64,
    },
    /// A rank has no batches of an iterable dataset in an epoch, so it takes no step, and other ranks may wait for it
    /// for ever. The error comes in place of the end of the epoch, before the rank's first step. The iterator ends with
    /// this error. A program whose ranks need not take equally many steps can ignore it. A loader in a worker of
    /// another loader never returns it.
    #[error(
        "rank {rank} of {world_size} has no batches in epoch {epoch}, because its shards have no samples, or too few for a \
         batch with drop_last; use at most as many ranks as the dataset has files, or divide it into more files, and set \
         steps_per_epoch so that all ranks take equally many steps"
    )]
    NoShare {
        /// The epoch.
        epoch: u64,
        /// Number of the rank, or of the group of ranks with `group_size`.
        rank: usize,
        /// Number of ranks, or of groups.
        world_size: usize,
    },
    /// `resume()`: another version of this library wrote the state, in another format.
    #[error(
        "this state is of version {version}, but this library reads version {supported}; resume it with the version of \
         this library that wrote it, or start again with `iter()`"
    )]
    StateVersion {
        /// Version of the state's format.
        version: u32,
        /// Version of the format that this library reads.
        supported: u32,
    },
    /// `resume()`: the state was taken from a loader that was built differently.
    #[error(
        "the state does not fit the loader: its {part} is {state}, the loader's is {loader}; {}",
        if matches!(*part, "world_size" | "rank") { OTHER_SHARE } else { OTHER_LOADER }
    )]
    StateMismatch {
        /// What differs, such as "seed", "sampler" or "dataset".
        part: &'static str,
        /// Its value in the state.
        state: String,
        /// Its value in the loader.
        loader: String,
    },
    /// `resume()` of a [merged](crate::State::merge) state: the ranks of an iterable dataset do not have the
    /// shards that the state has.
    #[error(
        "the state has {state} shards, but {world_size} ranks with {shards} shards each have {}; {}",
        .world_size * .shards, other_shards(*.state, *.world_size)
    )]
    StateShards {
        /// Number of shards in the state, of all ranks.
        state: usize,
        /// Number of shards that each rank of the loader has.
        shards: usize,
        /// Number of ranks of the loader.
        world_size: usize,
    },
    /// A worker died that still had work, or a persistent worker that the next epoch needs, and the loader may not
    /// replace it: `on_worker_death` is `Fail`, or the worker has died more than `max_worker_deaths` times in a row
    /// outside of batches. The iterator ends with this error.
    #[error("{}", exited(.exit, .doing, .batches, *.deaths))]
    WorkerExited {
        /// Number of the worker.
        worker: usize,
        /// Its process id.
        pid: u32,
        /// How the process ended, and why.
        exit: WorkerExit,
        /// Numbers of the batches that it had been given and had not finished.
        batches: Vec<u64>,
        /// What it was doing.
        doing: Box<WorkerActivity>,
        /// Number of deaths of this worker in a row outside of batches.
        deaths: u32,
    },
    /// A batch has repeatedly ended its workers and is given up. This batch is lost, and the iterator goes
    /// on; for an iterable dataset, the batch's shard ends for this epoch, and a run that resumes from the state begins
    /// the shard with this batch. If the cause is still there, that run returns the same error.
    #[error("{}", given_up(*.batch, .indices, *.deaths, .exit, .doing))]
    BatchGivenUp {
        /// Number of the batch in its epoch.
        batch: u64,
        /// Indices of its samples. Empty for an iterable dataset.
        indices: Vec<usize>,
        /// Number of workers that died on the batch.
        deaths: u32,
        /// Number of the last worker that died on it.
        worker: usize,
        /// That worker's process id.
        pid: u32,
        /// How that worker's process ended, and why.
        exit: WorkerExit,
        /// What that worker was doing.
        doing: Box<WorkerActivity>,
    },
    /// No batch came within `timeout`; or, at the start of an iterator, no answer of a worker within 30 seconds and
    /// `timeout`. No batch is lost: make the same call again to wait again. Ten such waits of `next` in a
    /// row end the iterator with [`WorkerStuck`](Self::WorkerStuck) if they took at least a minute together
    /// and the awaited worker made no progress.
    #[error("{}", timed_out(.after, .waiting_for, WAITS_AGAIN))]
    TimedOut {
        /// The loader's `timeout`.
        after: Duration,
        /// The awaited worker and what it is doing.
        waiting_for: WorkerActivity,
    },
    /// The function given to [`Iter::interrupt_when`](crate::Iter::interrupt_when) has ended the wait for a
    /// batch, or a host has ended the wait for workers at the start of an iterator. No batch is lost: make the same
    /// call again to continue the wait.
    #[error("the wait for a batch was interrupted; no batch is lost, and the next call continues the wait")]
    Interrupted,
    /// No batch came within `timeout`, and the awaited worker has made no progress in many such waits. The
    /// iterator ends with this error. [`Iter::state`](crate::Iter::state) still tells where to resume.
    #[error("{}", timed_out(.after, .waiting_for, NO_PROGRESS))]
    WorkerStuck {
        /// The loader's `timeout`, after which the last wait ended.
        after: Duration,
        /// The awaited worker and what it is doing.
        waiting_for: WorkerActivity,
    },
    /// There is no shared memory for a batch: the program or other iterators of the loader hold it, or a
    /// limit of the system is reached. No batch is lost: drop batches and call `next` again.
    #[error(
        "{source}{}; or drop batches that you no longer need, and copy tensors that you keep \
         (`to_owned_tensor`; what `to_burn`, `into_dlpack` or `view` has returned holds its batch too)",
        other_iterators(*.elsewhere)
    )]
    SharedMemoryExhausted {
        /// The limit that is reached, and the number of batches that the program holds.
        source: SlotError,
        /// Number of slots that belong to other iterators of the loader.
        elsewhere: usize,
    },
    /// A worker broke the protocol and is not replaced, because `on_worker_death` is `Fail` or the worker has
    /// died more than `max_worker_deaths` times in a row without finishing a batch. The iterator ends with
    /// this error.
    #[error("worker {worker} broke the protocol: {violation}")]
    WorkerMisbehaved {
        /// Number of the worker.
        worker: usize,
        /// What it did.
        violation: ProtocolViolation,
    },
}

/// An error or a panic of user code, from the main process or a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct UserFailure {
    /// The error and its causes, outermost first, or the message of the panic. For a failure of `get_many`,
    /// the first element names the samples that it was asked for.
    pub chain: Vec<String>,
    /// True for a panic, false for an error.
    pub panicked: bool,
    /// Backtrace, if one was captured: always for a panic in a worker, with `RUST_BACKTRACE=1` for an error.
    pub backtrace: Option<String>,
}

impl From<Failure> for UserFailure {
    fn from(Failure { chain, panicked, backtrace, .. }: Failure) -> Self {
        Self { chain, panicked, backtrace }
    }
}

impl From<AffinityError> for Error {
    fn from(error: AffinityError) -> Self {
        match error {
            AffinityError::NoCpus => Self::invalid_option(
                "worker_affinity",
                "a set without CPUs; name at least one, as in [\"0-3\", \"4-7\"]",
            ),
            AffinityError::NotAllowed { cpu, allowed } => Self::CpuNotAllowed { cpu, allowed },
            AffinityError::System(source) => {
                Self::System { what: "finding the CPUs that workers may use (worker_affinity)", source }
            }
        }
    }
}

impl Error {
    /// The error for a batch that failed in user code.
    pub(crate) fn from_failure(failure: Failure, batch: u64, worker: Option<usize>) -> Self {
        let index = failure.index.and_then(|index| usize::try_from(index).ok());
        let stage = failure.stage;
        if let (Stage::Schema, Some(worker)) = (stage, worker) {
            return Self::ProgramsDiffer { batch, worker, difference: failure.chain.concat() };
        }
        let failure = Box::new(failure.into());
        match stage {
            Stage::Fetch => Self::DatasetFailed { index, shard: None, batch, worker, failure },
            Stage::Collate => Self::CollateFailed { index, shard: None, batch, worker, failure },
            Stage::Send => Self::SendFailed { batch, worker, failure },
            _ => Self::OpenFailed { batch, worker, failure },
        }
    }

    /// Returns the error with its shard, if it is one of the dataset or of collation.
    pub(crate) fn in_shard(mut self, of: Option<usize>) -> Self {
        if let Self::DatasetFailed { shard, .. } | Self::CollateFailed { shard, .. } = &mut self {
            *shard = of;
        }
        self
    }

    /// The error for an option with an invalid value.
    pub(crate) fn invalid_option(option: &'static str, problem: impl Into<String>) -> Self {
        Self::InvalidOption { option, problem: problem.into() }
    }

    /// The error for a worker that broke the protocol.
    pub(crate) fn misbehaved(worker: usize, violation: ProtocolViolation) -> Self {
        Self::WorkerMisbehaved { worker, violation }
    }

    /// True if the iterator ends with this error; false if [`Iter`](crate::Iter) may return more batches.
    ///
    /// False for [`SamplerPanicked`](Self::SamplerPanicked), because batches that the sampler gave before its
    /// panic may follow with [`in_order(false)`](crate::Builder::in_order).
    pub fn ends_iteration(&self) -> bool {
        matches!(
            self,
            Self::WorkerExited { .. }
                | Self::WorkerMisbehaved { .. }
                | Self::WorkerNotStarted { .. }
                | Self::WorkerStuck { .. }
                | Self::ProgramsDiffer { .. }
                | Self::TooManyBadSamples { .. }
                | Self::StreamTooShort { .. }
                | Self::NoShare { .. }
                | Self::System { .. }
        )
    }

    /// Returns the variant's name, for logs and machine-readable output.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::InvalidOption { .. } => "InvalidOption",
            Self::ConflictingOptions { .. } => "ConflictingOptions",
            Self::RankUnknown(_) => "RankUnknown",
            Self::CpuNotAllowed { .. } => "CpuNotAllowed",
            Self::EmptyDataset => "EmptyDataset",
            Self::InitNotCalled { .. } => "InitNotCalled",
            Self::InitOutsideProgram { .. } => "InitOutsideProgram",
            Self::FunctionNotSendable { .. } => "FunctionNotSendable",
            Self::LoaderInWorker => "LoaderInWorker",
            Self::DatasetNotEncodable { .. } => "DatasetNotEncodable",
            Self::WorkerProgramMissing { .. } => "WorkerProgramMissing",
            Self::WorkerNotStarted { .. } => "WorkerNotStarted",
            Self::System { .. } => "System",
            Self::DatasetFailed { .. } => "DatasetFailed",
            Self::TooManyBadSamples { .. } => "TooManyBadSamples",
            Self::CollateFailed { .. } => "CollateFailed",
            Self::OpenFailed { .. } => "OpenFailed",
            Self::ProgramsDiffer { .. } => "ProgramsDiffer",
            Self::ConversionFailed { .. } => "ConversionFailed",
            Self::SendFailed { .. } => "SendFailed",
            Self::BatchNotReadable { .. } => "BatchNotReadable",
            Self::IndexOutOfRange { .. } => "IndexOutOfRange",
            Self::SamplerPanicked { .. } => "SamplerPanicked",
            Self::StreamTooShort { .. } => "StreamTooShort",
            Self::NoShare { .. } => "NoShare",
            Self::StateVersion { .. } => "StateVersion",
            Self::StateMismatch { .. } => "StateMismatch",
            Self::StateShards { .. } => "StateShards",
            Self::WorkerExited { .. } => "WorkerExited",
            Self::BatchGivenUp { .. } => "BatchGivenUp",
            Self::TimedOut { .. } => "TimedOut",
            Self::Interrupted => "Interrupted",
            Self::WorkerStuck { .. } => "WorkerStuck",
            Self::SharedMemoryExhausted { .. } => "SharedMemoryExhausted",
            Self::WorkerMisbehaved { .. } => "WorkerMisbehaved",
        }
    }
}

const OTHER_LOADER: &str = "build the loader with the dataset and the options of the run that wrote the state, or start \
                            again with `iter()`";

const OTHER_SHARE: &str = "give the state that this rank saved, or merge the states of all ranks with `State::merge` to \
                           resume with another number of ranks";

/// Says which shards `world_size` ranks need to resume a state with `shards` shards, or how many ranks can.
fn other_shards(shards: usize, world_size: usize) -> String {
    if shards.is_multiple_of(world_size) {
        return format!("set shards to {}", shards / world_size);
    }
    const MAX_RANKS: usize = 1 << 16;
    let divides = |ranks: &usize| shards.is_multiple_of(*ranks);
    let ranks = (1..=shards.min(MAX_RANKS)).filter(divides).map(|ranks| ranks.to_string());
    let ranks = ranks.collect::<Vec<_>>();
    format!(
        "{shards} shards cannot be divided equally among {world_size} ranks; use a number of ranks out of {}, and set shards \
         to {shards} divided by it",
        ranks.join(", ")
    )
}

fn failed(
    who: &str,
    index: &Option<usize>,
    shard: &Option<usize>,
    batch: &u64,
    worker: &Option<usize>,
    failure: &UserFailure,
) -> String {
    let mut text = format!("{who} {} on batch {batch}", if failure.panicked { "panicked" } else { "failed" });
    if let Some(index) = index {
        text.push_str(&format!(", sample {index}"));
    }
    if let Some(shard) = shard {
        let of = if index.is_some() { " of" } else { "," };
        text.push_str(&format!("{of} shard {shard}"));
    }
    if let Some(worker) = worker {
        text.push_str(&format!(", in worker {worker}"));
    }
    for cause in &failure.chain {
        text.push_str(": ");
        text.push_str(cause);
    }
    let backtrace = failure.backtrace.as_deref().filter(|_| failure.panicked);
    if let Some(location) = backtrace.and_then(panic::location) {
        text.push_str(&format!(" (at {location})"));
    }
    text
}

fn other_iterators(slots: usize) -> String {
    match slots {
        0 => String::new(),
        _ => format!(
            "; {slots} slots belong to other iterators of this loader: take their batches, or drop them"
        ),
    }
}

const WAITS_AGAIN: &str = "no batch is lost, and the next call waits again";
const NO_PROGRESS: &str =
    "it made no progress in many such waits, so the iterator ends; resume from its state()";

fn timed_out(after: &Duration, waiting_for: &WorkerActivity, outcome: &str) -> String {
    let text = format!("no batch within {after:?}: waiting for {waiting_for}; {outcome}");
    match waiting_for.state {
        WorkerState::Starting => text,
        _ => text + "; set sample_timeout to give up samples that take too long",
    }
}

fn exited(exit: &WorkerExit, doing: &WorkerActivity, batches: &[u64], deaths: u32) -> String {
    let mut text = ended(exit, doing);
    if !batches.is_empty() {
        text.push_str(&format!("; it had been given batches {batches:?}"));
    }
    if deaths > 1 {
        text.push_str(&format!("; it has died {deaths} times in a row without finishing a batch"));
    }
    text + exit.advice()
}

fn given_up(batch: u64, indices: &[usize], deaths: u32, exit: &WorkerExit, doing: &WorkerActivity) -> String {
    let mut text = ended(exit, doing);
    text.push_str(&format!("; batch {batch} has ended {deaths} workers and is given up"));
    if indices.is_empty() {
        text.push_str(", with the rest of its shard for this epoch")
    } else {
        text.push_str(&format!(": samples {}", listed(indices)))
    }
    text + exit.advice()
}

/// Lists the first samples only, if there are many.
fn listed(indices: &[usize]) -> String {
    const SHOWN: usize = 64;
    match indices.len() {
        0..=SHOWN => format!("{indices:?}"),
        len => format!("{:?} and {} more", &indices[..SHOWN], len - SHOWN),
    }
}

#[cfg(test)]
mod tests {
    use loader_ipc::frame::ExitStatus;

    use super::*;
    use crate::error::exit::ExitCause;

    fn exited(cause: Option<ExitCause>, deaths: u32) -> String {
        let state = WorkerState::Fetching;
        let doing = WorkerActivity { worker: 1, pid: 7, state, batch: 5, index: 21, age: Duration::ZERO };
        let exit = WorkerExit { status: ExitStatus::Signal { signal: 9, core_dumped: false }, cause };
        let (batches, doing) = (vec![5, 6], Box::new(doing));
        Error::WorkerExited { worker: 1, pid: 7, exit, batches, doing, deaths }.to_string()
    }

    #[test]
    fn a_killed_worker_is_explained_as_far_as_main_knows() {
        let (worker, rest) =
            ("worker 1 (pid 7)", "while fetching sample 21 of batch 5; it had been given batches [5, 6]");
        let advice = "; if no other process sent this SIGKILL, the kernel sent it for lack of memory: use fewer workers or smaller batches";
        assert_eq!(exited(None, 1), format!("{worker} killed by SIGKILL (9) {rest}{advice}"));
        assert_eq!(
            exited(Some(ExitCause::SampleTimedOut), 3),
            format!(
                "{worker} was killed, since a sample took longer than sample_timeout {rest}; it has died 3 times in a row without finishing a batch"
            )
        );
        assert_eq!(
            exited(Some(ExitCause::OutOfMemory), 1),
            format!(
                "{worker} killed by SIGKILL (9), out of memory (the kernel's OOM killer ended a process) {rest}; use fewer workers or smaller batches"
            )
        );
    }
}
