//! Loading one batch: the dataset is asked for each sample, and the samples are stacked. The same code runs in the main process
//! and in workers; only where the batch ends up differs.

mod hook;
mod iterable;
mod map_style;

use std::{
    cell::RefCell,
    panic::{AssertUnwindSafe, catch_unwind},
};

use loader_ipc::{
    arena::{Arena, EncodeError, Encoded},
    attach::{self, Attached},
    control::WorkerState,
    end_if_forked,
    entry::Owned,
    frame::{BadSample, Failure, MOST_BAD_SAMPLES, Stage},
    memory::SealedMemory,
};
use serde::{Serialize, de::DeserializeOwned};

use crate::{
    collate::{Batch, Collate, CollateError, CollateProblem, Stack},
    context::{Context, WorkerInfo},
    options::OnBadSample,
    panic::{error_to_failure, to_failure},
};

pub use hook::{NoWorkerInit, WorkerInit};
pub(crate) use iterable::{Cursors, Cut, ShardBatch, ShardFetcher};
pub use iterable::{Iterable, OpenShard, Plain, ShardPlace, Snapshot, Snapshots};
pub(crate) use map_style::Fetcher;
pub use map_style::MapStyle;

/// A dataset of either kind, with what its loader adds to it: what is sent to workers. PyTorch's `_DatasetKind`.
pub trait DatasetKind: Serialize + DeserializeOwned + Send + Sync + 'static {
    /// One sample.
    type Sample: Send + 'static;

    /// Number of samples, if it is known.
    fn samples(&self) -> Option<usize>;

    /// The dataset's fingerprint.
    fn fingerprint(&self) -> String;

    /// Says what happens with samples that cannot be loaded.
    fn set_on_bad_sample(&mut self, on_bad_sample: OnBadSample);

    /// Sets the dataset up in a worker and runs the worker's hook.
    ///
    /// # Errors
    /// What either of them said.
    fn open<C: Collate<Self::Sample>>(
        self,
        collate: C,
        seed: u64,
        worker: WorkerInfo,
        hook: &impl WorkerInit,
    ) -> Result<Box<dyn Fetch>, Failure>;
}

/// Who wants to know how far a batch is: in a worker, the control page.
pub trait Watch {
    /// The batch is now at sample `index`, in `state`. False when the batch is no longer wanted.
    fn progress(&self, state: WorkerState, index: usize) -> bool;

    /// A sample could not be loaded, and is left out or replaced.
    fn bad(&self, sample: BadSample);

    /// How many samples were bad so far.
    fn bad_samples(&self) -> usize;

    /// True when samples are not to be loaded many at once.
    fn is_one_by_one(&self) -> bool {
        false
    }

    /// True when sample `index` counts as bad without being tried.
    fn is_known_bad(&self, index: usize) -> bool {
        let _ = index;
        false
    }
}

/// Nobody watches how far a batch is; what is bad in it is noted.
#[derive(Debug, Default)]
pub(crate) struct Unwatched {
    pub(crate) bad: RefCell<Vec<BadSample>>,
}

impl Watch for Unwatched {
    fn progress(&self, _state: WorkerState, _index: usize) -> bool {
        true
    }

    fn bad(&self, sample: BadSample) {
        self.bad.borrow_mut().push(sample);
    }

    fn bad_samples(&self) -> usize {
        self.bad.borrow().len()
    }
}

impl Unwatched {
    /// What was bad in the batch, as far as a worker could have told.
    pub(crate) fn into_bad(self) -> Vec<BadSample> {
        let mut bad = self.bad.into_inner();
        bad.truncate(MOST_BAD_SAMPLES);
        bad
    }
}

/// Why there is no batch.
#[derive(Debug)]
pub enum NoBatch {
    /// User code failed.
    Failed(Failure),
    /// It was given up on the watcher's word.
    Unwanted,
    /// The shard has no more samples.
    Exhausted,
    /// Every sample of it is bad and was left out.
    LeftOut,
}

/// What to load.
#[derive(Debug)]
pub enum Work {
    /// The samples of these indices.
    Samples(Vec<usize>),
    /// The next ones of a shard.
    NextOf {
        /// Number of the shard.
        shard: usize,
        /// Where to begin if it is not open yet.
        place: ShardPlace,
    },
}

/// A dataset and its collation of any types, open, as the worker's loop sees them.
pub trait Fetch {
    /// Loads a batch.
    ///
    /// # Errors
    /// [`NoBatch`].
    fn fetch(
        &mut self,
        epoch: u64,
        work: &Work,
        arena: &mut Arena,
        watch: &dyn Watch,
    ) -> Result<Box<dyn Loaded>, NoBatch>;

    /// Items taken so far from `shard`; 0 for a map-style dataset.
    fn position(&self, shard: usize) -> u64 {
        let _ = shard;
        0
    }

    /// True when `shard` was ended by a panic.
    fn is_broken(&self, shard: usize) -> bool {
        let _ = shard;
        false
    }

    /// Another epoch begins: shards are read from their beginning again.
    fn rewind(&mut self) {}
}

/// A batch of any type, ready to be sent.
pub trait Loaded {
    /// Encodes it into the arena's slot.
    ///
    /// # Errors
    /// [`EncodeError`].
    fn encode(&self, arena: &mut Arena) -> Result<Encoded, EncodeError>;
}

impl<B: Batch> Loaded for B {
    fn encode(&self, arena: &mut Arena) -> Result<Encoded, EncodeError> {
        arena.encode(self)
    }
}

/// What a worker opens its dataset from.
#[derive(Debug)]
pub struct Opening {
    /// The dataset, its collation and its hook, encoded.
    pub dataset: SealedMemory,
    /// What the encoding refers to.
    pub attached: Attached,
    /// The loader's seed.
    pub seed: u64,
    /// The worker.
    pub worker: WorkerInfo,
}

/// A function that opens a dataset in a worker: [`open`] for some types.
pub type OpenFn = fn(Opening) -> Result<Box<dyn Fetch>, Failure>;

/// The type of [`OpenFn`] as it is sent to a worker.
pub type OpenSignature = Owned<Opening, Result<Box<dyn Fetch>, Failure>>;

/// Opens a dataset in a worker. Its address is what main sends to workers of the same program.
///
/// # Errors
/// When the dataset cannot be decoded, or its `setup` or the worker's hook fails.
pub fn open<K, C, W>(opening: Opening) -> Result<Box<dyn Fetch>, Failure>
where
    K: DatasetKind,
    C: Collate<K::Sample>,
    W: WorkerInit,
{
    let Opening { dataset, attached, seed, worker } = opening;
    let (kind, collate, hook): (K, C, W) = attach::decode(dataset.bytes(), attached)
        .map_err(|error| error_to_failure(&anyhow::Error::msg(error.to_string()), Stage::Open, None))?;
    kind.open(collate, seed, worker, &hook)
}

/// A dataset, its collation and its hook after a round trip through their encoding, and that encoding.
pub(crate) struct RoundTrip<K, C, W> {
    /// What [`open`] decodes.
    pub(crate) bytes: Vec<u8>,
    /// What `bytes` refers to.
    pub(crate) attached: Attached,
    /// The encoding, from which every process that loads starts.
    pub(crate) decoded: (K, C, W),
}

/// Encodes what [`open`] decodes, and decodes it: data that encoding loses is then missing in the main
/// process too, so that a loader without workers gives the samples that workers would give. Tensors are moved
/// into sealed memory, and the originals are dropped before anything is decoded.
///
/// Alternative considered: comparing samples before and after. Rejected because `get` may be expensive or random.
pub(crate) fn encode<K, C, W>(kind: K, collate: C, hook: W) -> Result<RoundTrip<K, C, W>, crate::Error>
where
    K: DatasetKind,
    C: Collate<K::Sample>,
    W: WorkerInit,
{
    let not_encodable = |problem| crate::Error::DatasetNotEncodable { problem };
    let before = kind.samples();
    let original = (kind, collate, hook);
    let encoded = attach::encode(&original);
    drop(original);
    let (bytes, attached) = encoded.map_err(|error| not_encodable(error.to_string()))?;
    let decoded = attach::decode(&bytes, attached.clone());
    let decoded: (K, C, W) = decoded.map_err(|error| not_encodable(error.to_string()))?;
    let after = decoded.0.samples();
    if after != before {
        let said =
            |samples: Option<usize>| samples.map_or("no length".to_owned(), |len| format!("{len} samples"));
        let problem = format!("it had {} before encoding and {} after", said(before), said(after));
        return Err(not_encodable(problem));
    }
    Ok(RoundTrip { bytes, attached, decoded })
}

/// A custom function's own error keeps its chain.
fn collate_error(error: CollateError) -> anyhow::Error {
    match error {
        CollateError { problem: CollateProblem::Custom(error), .. } => error,
        other => anyhow::Error::msg(other.to_string()),
    }
}

/// Sets a dataset up, and runs the hook if this is a worker: what comes before the first sample.
fn set_up(
    setup: impl FnOnce(&mut Context) -> anyhow::Result<()>,
    seed: u64,
    worker: Option<&WorkerInfo>,
    hook: &impl WorkerInit,
) -> Result<(), Failure> {
    let mut cx = Context::for_epoch(worker.cloned(), seed, 0);
    guarded(Stage::Setup, || setup(&mut cx))?;
    worker.map_or(Ok(()), |worker| guarded(Stage::WorkerInit, || hook.call(worker)))
}

/// Adds a sample to a batch, whose tensors then lie where the batch does.
#[inline]
fn push<S: Stack>(stack: &mut S, sample: S::Sample, arena: &mut Arena) -> anyhow::Result<()> {
    // The dataset made the sample, and the stack writes it into the slot.
    end_if_forked();
    let pushed = match stack.makes_tensors() {
        true => push_within(stack, sample, arena),
        false => stack.push(sample),
    };
    pushed.map_err(collate_error)
}

/// Adds a sample whose tensors are to lie in the arena: mostly the first one of a batch.
#[inline(never)]
fn push_within<S: Stack>(stack: &mut S, sample: S::Sample, arena: &mut Arena) -> Result<(), CollateError> {
    arena.within(|| stack.push(sample))
}

/// Runs user code that comes before the first sample.
fn guarded(stage: Stage, call: impl FnOnce() -> anyhow::Result<()>) -> Result<(), Failure> {
    let result = catch_unwind(AssertUnwindSafe(call));
    end_if_forked();
    match result {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => Err(error_to_failure(&error, stage, None)),
        Err(payload) => Err(to_failure(&*payload, stage, None)),
    }
}
