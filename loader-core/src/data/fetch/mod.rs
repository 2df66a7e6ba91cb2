//! Loads one batch: asks the dataset for each sample, and stacks the samples. The same code runs in the main
//! process and in workers. In a worker, the batch is written into a slot; in the main process, onto the heap.

mod cursor;
mod iterable;
mod map_style;
mod open_shard;

use std::{
    cell::RefCell,
    panic::{AssertUnwindSafe, catch_unwind},
};

use loader_ipc::{
    arena::{Arena, EncodeError, Encoded},
    attach::{self, Attached},
    codec::CodecError,
    control::WorkerState,
    end_if_forked,
    entry::Owned,
    frame::{AfterFailure, BadSampleRecord, Failure, MAX_BAD_SAMPLES, Stage, StreamPosition},
    memory::SealedMemory,
    profile::BatchTimer,
    schema::Schema,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{
    data::{
        collate::{Batch, Collate, CollateError, CollateProblem, Stack},
        context::{SampleContext, WorkerInfo},
        dataset_memory::DatasetMemory,
        panic::{error_to_failure, to_failure},
        sample_digest::{Hashes, SampleKey},
        worker_init::WorkerInit,
    },
    options::OnBadSample,
};

pub(crate) use cursor::Cursors;
pub use cursor::{ShardPosition, Snapshot};
pub use iterable::Iterable;
pub(crate) use iterable::{ShardBatch, ShardFetcher, ShardLayout};
pub(crate) use map_style::Fetcher;
pub use map_style::MapStyle;
pub(crate) use open_shard::OpenShard;
pub use open_shard::{Plain, Snapshots};

/// A dataset of either kind, with the options of its loader that workers need: what a
/// [`Builder`](crate::Builder) holds, and what main sends to workers. Like PyTorch's `_DatasetKind`.
///
/// [`MapStyle`] and [`Iterable`] implement it. Programs name it as a bound and do not implement it.
pub trait DatasetKind: Serialize + DeserializeOwned + Send + Sync + 'static {
    /// One sample.
    type Sample: Send + 'static;

    /// Returns the number of samples, if it is known.
    #[doc(hidden)]
    fn samples(&self) -> Option<usize>;

    /// Returns the dataset's fingerprint.
    #[doc(hidden)]
    fn fingerprint(&self) -> String;

    /// Sets the loader's options that workers need, and the number of bytes that the dataset may keep: in
    /// each worker if it is map-style, in each shard if it is iterable.
    #[doc(hidden)]
    fn set_options(&mut self, options: FetchOptions, memory: u64);

    /// Sets the dataset up in a worker and runs `worker_init`.
    ///
    /// # Errors
    /// The failure of either of them.
    #[doc(hidden)]
    fn open<C: Collate<Self::Sample>>(
        self,
        collate: C,
        seed: u64,
        worker: WorkerInfo,
        hook: &impl WorkerInit,
    ) -> Result<Box<dyn Fetch>, Failure>;
}

/// The loader's options that decide how a batch is loaded.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub struct FetchOptions {
    /// What happens with samples that cannot be loaded.
    pub(crate) on_bad_sample: OnBadSample,
    /// True if each sample is hashed.
    pub(crate) digest: bool,
}

/// A batch, and the hashes of its samples; `None` without the option `digest`.
pub(crate) type Hashed<B> = (Option<Vec<u128>>, B);

/// Receives the progress of a batch. In a worker, this is the control page.
pub trait ProgressSink {
    /// Notes that the batch is at sample `index` now, in `state`. Returns false if the batch is no longer
    /// wanted.
    fn progress(&self, state: WorkerState, index: usize) -> bool;

    /// Notes that a sample could not be loaded, and is left out or replaced.
    fn bad(&self, sample: BadSampleRecord);

    /// Returns the number of bad samples in the batch so far.
    fn bad_samples(&self) -> usize;

    /// Returns the timer of the batch if the batch is profiled.
    fn timer(&self) -> Option<&BatchTimer<'_>>;

    /// True if samples must be loaded one by one, not with `get_many`, to find the one that ends its worker.
    fn is_one_by_one(&self) -> bool {
        false
    }

    /// True if sample `index` is known to be bad and must not be tried again.
    fn is_known_bad(&self, index: usize) -> bool {
        let _ = index;
        false
    }
}

/// The [`ProgressSink`] of a loader without workers. It collects the bad samples, and has
/// the timer of the batch.
#[derive(Debug)]
pub(crate) struct LocalSink<'a> {
    bad: RefCell<Vec<BadSampleRecord>>,
    timer: &'a BatchTimer<'a>,
}

impl ProgressSink for LocalSink<'_> {
    fn progress(&self, state: WorkerState, _index: usize) -> bool {
        if state == WorkerState::Collating
            && let Some(timer) = self.timer()
        {
            timer.start_collating();
        }
        true
    }

    fn bad(&self, sample: BadSampleRecord) {
        self.bad.borrow_mut().push(sample);
    }

    fn bad_samples(&self) -> usize {
        self.bad.borrow().len()
    }

    fn timer(&self) -> Option<&BatchTimer<'_>> {
        self.timer.if_profiled()
    }
}

impl<'a> LocalSink<'a> {
    pub(crate) fn new(timer: &'a BatchTimer<'a>) -> Self {
        Self { bad: RefCell::default(), timer }
    }

    /// Returns the bad samples of the batch, but at most as many as a worker could report.
    pub(crate) fn into_bad(self) -> Vec<BadSampleRecord> {
        let mut bad = self.bad.into_inner();
        bad.truncate(MAX_BAD_SAMPLES);
        bad
    }
}

/// Why there is no batch.
#[derive(Debug)]
pub enum NoBatch {
    /// User code failed.
    Failed(Failure),
    /// [`ProgressSink::progress`] said that it is no longer wanted.
    Cancelled,
    /// The shard has no more samples.
    Exhausted,
    /// The task gives no batch. All its samples are bad and were left out, or it had more bad samples than a worker can
    /// report. With `drop_last`, also: the shard had too few samples left for a whole batch, or the batch had as many
    /// bad samples as a worker can report.
    AllSamplesBad,
}

/// What to load.
#[derive(Debug)]
pub enum BatchRequest {
    /// The samples of these indices.
    Samples(Vec<usize>),
    /// The next samples of a shard.
    NextOf {
        /// Number of the shard.
        shard: usize,
        /// Where to open the shard if it is not open yet; the default if this worker has opened it.
        open_at: ShardPosition,
    },
}

/// An open dataset with its collation, of any types, as the worker's loop uses it.
pub trait Fetch {
    /// Loads a batch.
    ///
    /// # Errors
    /// [`NoBatch`] says why there is none.
    fn fetch(
        &mut self,
        epoch: u64,
        request: &BatchRequest,
        arena: &mut Arena,
        sink: &dyn ProgressSink,
    ) -> Result<Box<dyn EncodeBatch>, NoBatch>;

    /// Returns the position in `shard`; the beginning for a map-style dataset.
    fn position(&self, shard: usize) -> StreamPosition {
        let _ = shard;
        StreamPosition::default()
    }

    /// Returns what a failure, if [`fetch`](Self::fetch) has just returned one, means for `shard`.
    fn after_failure(&self, shard: usize) -> AfterFailure {
        let _ = shard;
        AfterFailure::Continues
    }

    /// Begins another epoch: closes all shards, so that they are opened again.
    fn rewind(&mut self) {}
}

/// A batch of any type, ready to be sent.
pub trait EncodeBatch {
    /// Encodes the batch into the arena's slot.
    ///
    /// # Errors
    /// [`EncodeError`]: the batch does not fit, or its `Serialize` implementation failed.
    fn encode(&self, arena: &mut Arena) -> Result<Encoded, EncodeError>;

    /// Returns the schema of the batch.
    fn schema(&self) -> Schema;
}

/// Boxes a batch for the worker's loop. The hashes of its samples, if there are any, precede it in the
/// encoding.
fn boxed<B: Batch>((hashes, batch): Hashed<B>) -> Box<dyn EncodeBatch> {
    match hashes {
        Some(hashes) => Box::new((hashes, batch)),
        None => Box::new(batch),
    }
}

impl<B: Batch> EncodeBatch for B {
    fn encode(&self, arena: &mut Arena) -> Result<Encoded, EncodeError> {
        arena.encode(self)
    }

    fn schema(&self) -> Schema {
        Schema::of(self)
    }
}

/// Everything from which a worker opens its dataset.
#[derive(Debug)]
pub struct OpenRequest {
    /// The encoded dataset, collation and `worker_init`.
    pub dataset: SealedMemory,
    /// The memories and functions to which the encoding refers.
    pub attached: Attached,
    /// Main's schema of the dataset, collation and `worker_init`, if main is another program.
    pub schema: Option<Schema>,
    /// The loader's seed.
    pub seed: u64,
    /// Number and seed of the worker.
    pub worker: WorkerInfo,
}

/// A function that opens a dataset in a worker: [`open`] for certain types.
pub type OpenFn = fn(OpenRequest) -> Result<Box<dyn Fetch>, Failure>;

/// The type of [`OpenFn`] when main sends it to a worker.
pub type OpenSignature = Owned<OpenRequest, Result<Box<dyn Fetch>, Failure>>;

/// Opens a dataset in a worker. Main sends the address of this function to workers of the same program.
///
/// # Errors
/// The dataset cannot be decoded, main has another schema of it, or its `setup` or `worker_init` fails.
pub fn open<K, C, W>(opening: OpenRequest) -> Result<Box<dyn Fetch>, Failure>
where
    K: DatasetKind,
    C: Collate<K::Sample>,
    W: WorkerInit,
{
    let OpenRequest { dataset, attached, schema, seed, worker } = opening;
    let decoded: (K, C, W) =
        attach::decode(dataset.bytes(), attached).map_err(|error| not_decoded(&error, schema.is_some()))?;
    if let Some(difference) = schema.and_then(|main| main.difference(&Schema::of(&decoded))) {
        return Err(Failure::other_schema(format!(
            "in the dataset, its collation or `worker_init`, {difference}"
        )));
    }
    let (kind, collate, hook) = decoded;
    kind.open(collate, seed, worker, &hook)
}

/// Returns the failure to decode a dataset. The codec's error does not tell whether the bytes do not fit the type or
/// its `Deserialize` implementation failed for a reason of its own.
fn not_decoded(error: &CodecError, is_other_program: bool) -> Failure {
    let mut problem = error.to_string();
    if is_other_program {
        problem += "; the worker program may be built from other source than the main program";
    }
    error_to_failure(&anyhow::Error::msg(problem), Stage::Open, None)
}

/// Turns a collation error into an `anyhow::Error`. The error of a custom function keeps its chain of causes, after the
/// name of the field.
fn collate_error(error: CollateError) -> anyhow::Error {
    match error {
        CollateError { field, problem: CollateProblem::Custom(error) } if field.is_empty() => error,
        CollateError { field, problem: CollateProblem::Custom(error) } => {
            error.context(format!("field `{}`", field.join(".")))
        }
        other => anyhow::Error::msg(other.to_string()),
    }
}

/// Runs the user code that comes before the first sample: the dataset's `setup` and, in a worker,
/// `worker_init`.
fn set_up(
    setup: impl FnOnce(&mut SampleContext) -> anyhow::Result<()>,
    seed: u64,
    worker: Option<&WorkerInfo>,
    memory: DatasetMemory,
    hook: &impl WorkerInit,
) -> Result<(), Failure> {
    let mut cx = SampleContext::for_epoch(worker.cloned(), seed, 0).with_memory(memory);
    guarded(Stage::Setup, || setup(&mut cx))?;
    worker.map_or(Ok(()), |worker| guarded(Stage::WorkerInit, || hook.call(worker)))
}

/// Adds a sample to a batch, and its hash to `hashes`. Tensors that the stack makes are allocated in `arena`.
///
/// Always inlined: as a call it takes 24 instructions more, for each sample.
#[inline(always)]
fn push<S, C: Collate<S>>(
    collate: &C,
    stack: &mut C::Stack,
    sample: S,
    arena: &mut Arena,
    (key, hashes): (SampleKey, &mut impl Hashes),
) -> anyhow::Result<()> {
    if C::HASHES_SAMPLES {
        hashes.add(key, |hash| collate.hash_content(&sample, hash))?;
    }
    // User code has just made the sample, and may have forked. A forked child must not write into the slot.
    end_if_forked();
    let pushed = if stack.makes_tensors() { push_within(stack, sample, arena) } else { stack.push(sample) };
    pushed.map_err(collate_error)
}

/// Finishes a batch. If [`push`] has not hashed the sample, which is so with `unbatched` and without
/// `digest_with`, adds the hash of the converted item to `hashes`.
fn finish<S, C: Collate<S>>(
    stack: C::Stack,
    arena: &mut Arena,
    (key, hashes): (SampleKey, &mut impl Hashes),
) -> anyhow::Result<C::Batch> {
    let batch = arena.within(|| stack.finish()).map_err(collate_error)?;
    if C::UNBATCHED && !C::HASHES_SAMPLES {
        hashes.add(key, |hash| hash.value(&batch))?;
    }
    Ok(batch)
}

/// Pushes a sample whose tensors must be allocated in `arena`: in most batches only the first one. Not
/// inlined, to keep [`push`] small.
#[inline(never)]
fn push_within<S: Stack>(stack: &mut S, sample: S::Sample, arena: &mut Arena) -> Result<(), CollateError> {
    arena.within(|| stack.push(sample))
}

/// Runs user code, and turns an error or a panic into a failure at `stage`.
fn guarded(stage: Stage, call: impl FnOnce() -> anyhow::Result<()>) -> Result<(), Failure> {
    let result = catch_unwind(AssertUnwindSafe(call));
    end_if_forked();
    match result {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => Err(error_to_failure(&error, stage, None)),
        Err(payload) => Err(to_failure(&*payload, stage, None)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_of_a_custom_function_keeps_the_name_of_the_field_and_its_causes() {
        let custom = || CollateError::from(CollateProblem::Custom(anyhow::anyhow!("inner").context("outer")));
        assert_eq!(format!("{:#}", collate_error(custom())), "outer: inner");
        let in_field = collate_error(custom().in_field("b").in_field("a"));
        assert_eq!(format!("{in_field:#}"), "field `a.b`: outer: inner");
    }
}
