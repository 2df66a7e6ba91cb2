//! What can go wrong, named after who did what.

use std::{fmt, io, path::PathBuf, time::Duration};

use loader_ipc::{
    advice,
    control::{WorkerSnapshot, WorkerState},
    frame::{ExitStatus, Failure, Stage},
};

use crate::{panic, report::BadSample};

/// Everything that the loader reports. `build()` returns the errors of options, `iter()` those of starting workers, the
/// iterator those of batches; an error of a batch loses that batch only, and the iterator goes on unless the variant says
/// otherwise.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// `build()`: an option has a value that makes no sense.
    #[error("{option}: {problem}")]
    InvalidOption {
        /// The option's name.
        option: &'static str,
        /// What is wrong, and what to do.
        problem: String,
    },
    /// `build()`: two options exclude each other.
    #[error("{first} and {second} exclude each other: {reason}")]
    ConflictingOptions {
        /// One option's name.
        first: &'static str,
        /// The other's.
        second: &'static str,
        /// Why.
        reason: &'static str,
    },
    /// `build()`: the dataset has no samples.
    #[error("the dataset is empty: there is nothing to load; check the path or the filter it was made from")]
    EmptyDataset,
    /// `build()`: workers were asked for and `loader_worker::init()` was not called.
    #[error(
        "num_workers is {num_workers}, but loader_worker::init() was not called: make it the first line of main (in tests, \
         `loader_worker::init_before_main!()`), or name a worker program"
    )]
    InitNotCalled {
        /// Workers asked for.
        num_workers: usize,
    },
    /// `build()`: `loader_worker::init()` was called from a shared library, such as an extension of an interpreter. The main program,
    /// started again, would not become a worker.
    #[error(
        "num_workers is {num_workers}, but loader_worker::init() was called from {}, which is not the main program: started \
         again, the main program would not become a worker; name a program that does with `worker_program` (for an interpreter \
         with arguments: `WorkerProgram::new(\"python3\").args([\"-m\", \"package.worker\"])`)",
        library.display()
    )]
    InitOutsideProgram {
        /// Workers asked for.
        num_workers: usize,
        /// The shared library.
        library: PathBuf,
    },
    /// `build()`: a worker cannot call a function of the loader (one given to `map`, `filter`, `collate`,
    /// `convert` or `worker_init`, or the loader's own code).
    #[error("a function cannot be sent to workers: {problem}")]
    FunctionNotSendable {
        /// Why, and what to do.
        problem: String,
    },
    /// `build()`: this process is itself a worker.
    #[error(
        "a worker process tried to build a loader: loader_worker::init() must be the first line of main, so that a worker never \
         gets further, and datasets must not build loaders"
    )]
    LoaderInWorker,
    /// `build()`: the dataset, its collation or its worker hook does not survive encoding. Checked without
    /// workers too, so that the same dataset loads with any number of workers.
    #[error(
        "the dataset cannot be sent to workers: {problem}; it is encoded with bincode, which does not support \
         `#[serde(untagged)]`, `#[serde(flatten)]`, `skip_serializing_if` and `serde_json::Value`; keep its data in other types, \
         or write `Serialize` and `Deserialize` for it by hand, and open files and connections in `setup`"
    )]
    DatasetNotEncodable {
        /// What serde said.
        problem: String,
    },
    /// `build()`: the worker program is not there.
    #[error("no worker program at {}: {source}; build it, or check the path in {origin}", path.display())]
    WorkerProgramMissing {
        /// Where it was looked for.
        path: PathBuf,
        /// What named it.
        origin: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// `iter()`: a worker could not be started, or was refused in the handshake.
    #[error("worker {worker} did not start: {problem}")]
    WorkerNotStarted {
        /// Number of the worker.
        worker: usize,
        /// What happened, and what to do.
        problem: String,
    },
    /// The operating system refused something that the loader cannot do without.
    #[error("{what}: {source}{}", advice(source))]
    System {
        /// What was tried.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// The dataset returned an error or panicked.
    #[error("{}", failed("the dataset", .index, .batch, .worker, .failure))]
    DatasetFailed {
        /// Index of the sample, where one is to blame.
        index: Option<usize>,
        /// Number of the batch in its epoch.
        batch: u64,
        /// Number of the worker; `None` in the main process.
        worker: Option<usize>,
        /// Causes and backtrace.
        failure: Box<UserFailure>,
    },
    /// More samples were skipped or replaced in this epoch than `max_bad_samples` allows. The iterator ends with this error.
    #[error(
        "more than {most} bad samples in an epoch: {sample}; raise max_bad_samples if that is to be expected"
    )]
    TooManyBadSamples {
        /// The loader's `max_bad_samples`.
        most: u64,
        /// The one that was too many.
        sample: Box<BadSample>,
    },
    /// The samples did not form a batch, or the collation function failed.
    #[error("{}", failed("collation", .index, .batch, .worker, .failure))]
    CollateFailed {
        /// Index of the sample that does not fit, where one is to blame.
        index: Option<usize>,
        /// Number of the batch in its epoch.
        batch: u64,
        /// Number of the worker; `None` in the main process.
        worker: Option<usize>,
        /// Causes and backtrace.
        failure: Box<UserFailure>,
    },
    /// The dataset could not be opened in a process that loads: decoding it, `Dataset::setup` or the worker's init hook failed.
    /// Every batch of that process fails with this.
    #[error("{}", failed("opening the dataset", &None, .batch, .worker, .failure))]
    OpenFailed {
        /// Number of the batch in its epoch.
        batch: u64,
        /// Number of the worker; `None` in the main process.
        worker: Option<usize>,
        /// Causes and backtrace.
        failure: Box<UserFailure>,
    },
    /// The batch could not be put into shared memory: its `Serialize` failed, or there was no room.
    #[error("{}", failed("sending the batch", &None, .batch, .worker, .failure))]
    SendFailed {
        /// Number of the batch in its epoch.
        batch: u64,
        /// Number of the worker.
        worker: Option<usize>,
        /// Causes and backtrace.
        failure: Box<UserFailure>,
    },
    /// The batch that a worker sent is not what the main process expects.
    #[error("batch {batch} from worker {worker} cannot be read: {problem}")]
    BatchNotReadable {
        /// Number of the batch in its epoch.
        batch: u64,
        /// Number of the worker.
        worker: usize,
        /// What is wrong with it.
        problem: String,
    },
    /// A sampler gave an index that the dataset does not have.
    #[error("the sampler gave index {index} for batch {batch}, the dataset has {len} samples")]
    IndexOutOfRange {
        /// The index.
        index: usize,
        /// Number of the batch in its epoch.
        batch: u64,
        /// Number of samples.
        len: usize,
    },
    /// The sampler panicked. The epoch ends behind this batch.
    #[error("the sampler panicked at batch {batch}: {message}")]
    SamplerPanicked {
        /// Number of the batch in its epoch.
        batch: u64,
        /// What it said.
        message: String,
    },
    /// `resume()`: the state is of another loader, or of another version of this library.
    #[error("the state does not fit the loader: its {part} is {state}, the loader's is {loader}")]
    StateMismatch {
        /// What differs: "seed", "sampler", "dataset" and the like.
        part: &'static str,
        /// Its value in the state.
        state: String,
        /// Its value in the loader.
        loader: String,
    },
    /// A worker died while it had work. Without `given_up`, no other process takes its place, because
    /// `on_worker_death` is `Fail` or the worker has died more than `max_worker_deaths` times in a row
    /// outside of batches; the iterator ends with this error. With `given_up`, one batch has ended its
    /// workers again and again: that batch is lost, and the iterator goes on.
    #[error("{}", exited(.doing, .status, .reason.as_deref(), .batches, *.deaths, .given_up.as_deref()))]
    WorkerExited {
        /// Number of the worker.
        worker: usize,
        /// Its process id.
        pid: u32,
        /// How it ended.
        status: ExitStatus,
        /// Why, where the loader itself has ended it.
        reason: Option<String>,
        /// Batches that it had been given.
        batches: Vec<u64>,
        /// What it was doing.
        doing: Box<Doing>,
        /// How often this worker has died in a row outside of batches; with `given_up`, how many workers have died on that batch.
        deaths: u32,
        /// The batch that is to blame, if one is.
        given_up: Option<Box<GivenUp>>,
    },
    /// No batch came within `timeout`. No batch is lost: call `next` again, unless `is_final`. Ten such waits
    /// in a row end the iterator if they took at least a minute together and the awaited worker made no
    /// progress.
    #[error("{}", timed_out(.after, .waiting_for, *.is_final))]
    TimedOut {
        /// The loader's `timeout`.
        after: Duration,
        /// Which worker, in what.
        waiting_for: Doing,
        /// The iterator ends with this error. Its `state()` says where to go on.
        is_final: bool,
    },
    /// There is no shared memory for a batch: the program or other iterators of the loader hold it, or a
    /// limit of the system is reached. No batch is lost: drop batches and call `next` again.
    #[error("{problem}; or drop batches you are done with, and copy what you keep (`to_owned_tensor`)")]
    SharedMemoryExhausted {
        /// Sizes and counts.
        problem: String,
    },
    /// A worker broke the protocol and is not replaced: it has died more than `max_worker_deaths` times in a row without finishing a batch,
    /// or `on_worker_death` is `Fail`. The iterator ends with this error.
    #[error("worker {worker} broke the protocol: {problem}")]
    WorkerMisbehaved {
        /// Number of the worker.
        worker: usize,
        /// What it did.
        problem: String,
    },
}

/// An error of user code: what it said, wherever it ran.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct UserFailure {
    /// The error and its causes, outermost first; a panic's message. Before a failure of `get_many` stand the samples it was asked
    /// for.
    pub chain: Vec<String>,
    /// True for a panic.
    pub panicked: bool,
    /// Where it happened, if a backtrace was captured (for a panic in a worker always, for an error with `RUST_BACKTRACE=1`).
    pub backtrace: Option<String>,
}

/// A batch that is not tried any more, for it has ended its worker again and again.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct GivenUp {
    /// Number of the batch.
    pub batch: u64,
    /// Its samples; empty for an iterable dataset, whose shard ends with this batch.
    pub indices: Vec<usize>,
    /// How many workers it has ended.
    pub deaths: u32,
}

/// What a worker was doing, from the control page.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Doing {
    /// Number of the worker.
    pub worker: usize,
    /// Its process id.
    pub pid: u32,
    /// Its state.
    pub state: WorkerState,
    /// Number of the batch it was on.
    pub batch: u64,
    /// Index of the sample it was on.
    pub index: usize,
    /// For how long.
    pub age: Duration,
}

impl Doing {
    pub(crate) fn new(worker: usize, pid: u32, snapshot: &WorkerSnapshot) -> Self {
        Self {
            worker,
            pid,
            state: snapshot.state,
            batch: snapshot.task,
            index: usize::try_from(snapshot.sample).unwrap_or(usize::MAX),
            age: snapshot.age,
        }
    }
}

impl fmt::Display for Doing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { worker, pid, state, batch, index, .. } = self;
        // The clock behind it ticks every few milliseconds.
        let age = format_args!("{:.2} s", self.age.as_secs_f64()).to_string();
        match state {
            WorkerState::Fetching => {
                write!(f, "worker {worker} (pid {pid}), {state} sample {index} of batch {batch} for {age}")
            }
            WorkerState::FetchingMany => {
                write!(
                    f,
                    "worker {worker} (pid {pid}), fetching all samples of batch {batch} at once for {age}"
                )
            }
            WorkerState::Collating | WorkerState::Sending => {
                write!(f, "worker {worker} (pid {pid}), {state} batch {batch} for {age}")
            }
            _ => write!(f, "worker {worker} (pid {pid}), {state} for {age}"),
        }
    }
}

impl Error {
    /// The error for a batch that failed in user code.
    pub(crate) fn from_failure(failure: Failure, batch: u64, worker: Option<usize>) -> Self {
        let index = failure.index.and_then(|index| usize::try_from(index).ok());
        let stage = failure.stage;
        let Failure { chain, panicked, backtrace, .. } = failure;
        let failure = Box::new(UserFailure { chain, panicked, backtrace });
        match stage {
            Stage::Fetch => Self::DatasetFailed { index, batch, worker, failure },
            Stage::Collate => Self::CollateFailed { index, batch, worker, failure },
            Stage::Send => Self::SendFailed { batch, worker, failure },
            _ => Self::OpenFailed { batch, worker, failure },
        }
    }

    /// The error for an option whose value makes no sense.
    pub(crate) fn invalid_option(option: &'static str, problem: impl Into<String>) -> Self {
        Self::InvalidOption { option, problem: problem.into() }
    }

    /// The error for a worker that broke the protocol.
    pub(crate) fn misbehaved(worker: usize, problem: impl Into<String>) -> Self {
        Self::WorkerMisbehaved { worker, problem: problem.into() }
    }

    /// True when the iterator ends with this error.
    pub fn ends_iteration(&self) -> bool {
        match self {
            Self::WorkerExited { given_up, .. } => given_up.is_none(),
            Self::WorkerMisbehaved { .. }
            | Self::WorkerNotStarted { .. }
            | Self::TooManyBadSamples { .. }
            | Self::System { .. } => true,
            Self::TimedOut { is_final, .. } => *is_final,
            _ => false,
        }
    }

    /// The variant's name, for logs and machine-readable output.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::InvalidOption { .. } => "InvalidOption",
            Self::ConflictingOptions { .. } => "ConflictingOptions",
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
            Self::SendFailed { .. } => "SendFailed",
            Self::BatchNotReadable { .. } => "BatchNotReadable",
            Self::IndexOutOfRange { .. } => "IndexOutOfRange",
            Self::SamplerPanicked { .. } => "SamplerPanicked",
            Self::StateMismatch { .. } => "StateMismatch",
            Self::WorkerExited { .. } => "WorkerExited",
            Self::TimedOut { .. } => "TimedOut",
            Self::SharedMemoryExhausted { .. } => "SharedMemoryExhausted",
            Self::WorkerMisbehaved { .. } => "WorkerMisbehaved",
        }
    }
}

fn failed(
    who: &str,
    index: &Option<usize>,
    batch: &u64,
    worker: &Option<usize>,
    failure: &UserFailure,
) -> String {
    let mut text = format!("{who} {} on batch {batch}", if failure.panicked { "panicked" } else { "failed" });
    if let Some(index) = index {
        text.push_str(&format!(", sample {index}"));
    }
    if let Some(worker) = worker {
        text.push_str(&format!(", in worker {worker}"));
    }
    for cause in &failure.chain {
        text.push_str(": ");
        text.push_str(cause);
    }
    if let Some(place) = failure.backtrace.as_deref().filter(|_| failure.panicked).and_then(panic::place) {
        text.push_str(&format!(" (at {place})"));
    }
    text
}

fn timed_out(after: &Duration, waiting_for: &Doing, is_final: bool) -> String {
    let rest = match is_final {
        false => "nothing is lost, and the next call waits again",
        true => "it has not moved in many such waits, so the iterator ends; its state() says where to go on",
    };
    format!(
        "no batch within {after:?}: waiting for {waiting_for}; {rest}; sample_timeout gives up a sample that takes too long"
    )
}

fn exited(
    doing: &Doing,
    status: &ExitStatus,
    reason: Option<&str>,
    batches: &[u64],
    deaths: u32,
    given_up: Option<&GivenUp>,
) -> String {
    let Doing { worker, pid, .. } = doing;
    let ended = reason.map_or_else(|| status.to_string(), str::to_owned);
    let mut text = format!("worker {worker} (pid {pid}) {ended}{}", while_doing(doing));
    match given_up {
        Some(GivenUp { batch, indices, deaths }) => {
            text.push_str(&format!("; batch {batch} has ended {deaths} workers and is given up"));
            if !indices.is_empty() {
                text.push_str(&format!(": samples {}", listed(indices)));
            }
        }
        None => {
            if !batches.is_empty() {
                text.push_str(&format!("; it had batches {batches:?}"));
            }
            if deaths > 1 {
                text.push_str(&format!("; it has died {deaths} times in a row without finishing a batch"));
            }
        }
    }
    if matches!(status, ExitStatus::Signal { signal: 9, .. }) {
        let is_known = reason.is_some_and(|reason| reason.contains("out of memory"));
        match is_known {
            true => text.push_str("; use fewer workers or smaller batches"),
            false if reason.is_none() => text.push_str(
                "; a SIGKILL that no process sent comes from the kernel, for want of memory: use fewer workers or smaller batches",
            ),
            false => {}
        }
    }
    text
}

/// What a worker was doing when it ended.
pub(crate) fn while_doing(doing: &Doing) -> String {
    match doing.state {
        WorkerState::Starting => " before it was ready".to_owned(),
        WorkerState::Idle => String::new(),
        WorkerState::FetchingMany => format!(" while fetching all samples of batch {} at once", doing.batch),
        WorkerState::Collating | WorkerState::Sending => {
            format!(" while {} batch {}", doing.state, doing.batch)
        }
        _ => format!(" while {} sample {} of batch {}", doing.state, doing.index, doing.batch),
    }
}

/// The first few samples.
fn listed(indices: &[usize]) -> String {
    const SHOWN: usize = 64;
    match indices.len() {
        0..=SHOWN => format!("{indices:?}"),
        len => format!("{:?} and {} more", &indices[..SHOWN], len - SHOWN),
    }
}
