//! Loading one batch: the dataset is asked for each sample, and the samples are stacked. The same code runs in the main process
//! and in workers; only where the batch ends up differs.

use std::{
    cell::Cell,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    sync::atomic::{AtomicBool, Ordering},
};

use loader_ipc::{
    ZeroSized,
    arena::{Arena, EncodeError, Encoded},
    attach,
    control::WorkerState,
    frame::{Failure, Stage},
    memory::SealedMemory,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{
    collate::{Batch, Collate, CollateError, CollateProblem, Stack},
    context::{Context, WorkerInfo},
    dataset::{Dataset, many},
    panic::{error_to_failure, forget_backtrace, to_failure},
};

/// Who wants to know how far a batch is: in a worker, the control page.
pub trait Watch {
    /// The batch is now at sample `index`, in `state`. False when the batch is no longer wanted.
    fn progress(&self, state: WorkerState, index: usize) -> bool;
}

/// Nobody watches.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Unwatched;

impl Watch for Unwatched {
    fn progress(&self, _state: WorkerState, _index: usize) -> bool {
        true
    }
}

/// Why there is no batch.
#[derive(Debug)]
pub enum NoBatch {
    /// User code failed.
    Failed(Failure),
    /// It was given up on the watcher's word.
    Unwanted,
}

/// A dataset and its collation, open in one process.
#[derive(Debug)]
pub(crate) struct Fetcher<D, C> {
    dataset: D,
    collate: C,
    seed: u64,
    worker: Option<WorkerInfo>,
    /// False once the dataset has turned out to have no `get_many`.
    has_many: AtomicBool,
}

impl<D: Dataset, C: Collate<D::Sample>> Fetcher<D, C> {
    /// Sets the dataset up and runs the worker's hook.
    pub(crate) fn open(
        mut dataset: D,
        collate: C,
        seed: u64,
        worker: Option<WorkerInfo>,
        hook: &impl WorkerInit,
    ) -> Result<Self, Failure> {
        let mut cx = Context::for_epoch(worker.clone(), seed, 0);
        guarded(Stage::Setup, || dataset.setup(&mut cx))?;
        if let Some(worker) = &worker {
            guarded(Stage::WorkerInit, || hook.call(worker))?;
        }
        Ok(Self { dataset, collate, seed, worker, has_many: AtomicBool::new(true) })
    }

    /// Loads the batch of the samples `indices`.
    pub(crate) fn batch(
        &self,
        epoch: u64,
        indices: &[usize],
        arena: &mut Arena,
        watch: &(impl Watch + ?Sized),
    ) -> Result<C::Batch, NoBatch> {
        let at = Cell::new((Stage::Fetch, None));
        forget_backtrace();
        let load = AssertUnwindSafe(|| self.load(epoch, indices, arena, watch, &at));
        catch_unwind(load).unwrap_or_else(|payload| {
            let (stage, index) = at.get();
            Err(NoBatch::Failed(name_samples(to_failure(&*payload, stage, index), indices)))
        })
    }

    fn load(
        &self,
        epoch: u64,
        indices: &[usize],
        arena: &mut Arena,
        watch: &(impl Watch + ?Sized),
        at: &Cell<(Stage, Option<u64>)>,
    ) -> Result<C::Batch, NoBatch> {
        let mut cx = Context::for_epoch(self.worker.clone(), self.seed, epoch);
        let failed = |error: &anyhow::Error| {
            let (stage, index) = at.get();
            let index = index.or_else(|| many::blamed(error).map(|index| index as u64));
            NoBatch::Failed(name_samples(error_to_failure(error, stage, index), indices))
        };
        let mut stack = self.collate.stack(indices.len());
        // Relaxed: a hint that saves a call; nothing else depends on it.
        if self.has_many.load(Ordering::Relaxed)
            && !watch.progress(WorkerState::Fetching, indices.first().copied().unwrap_or(0))
        {
            return Err(NoBatch::Unwanted);
        }
        let mut many = self.get_many(indices, &mut cx).map_err(|error| failed(&error))?.map(Vec::into_iter);
        for &index in indices {
            at.set((Stage::Fetch, Some(index as u64)));
            if !watch.progress(WorkerState::Fetching, index) {
                return Err(NoBatch::Unwanted);
            }
            let sample = match &mut many {
                Some(samples) => samples.next().expect("as many as indices, checked"),
                None => {
                    cx.set_index(index);
                    self.dataset.get(index, &mut cx).map_err(|error| failed(&error))?
                }
            };
            at.set((Stage::Collate, Some(index as u64)));
            let pushed = match stack.makes_tensors() {
                true => arena.within(|| stack.push(sample)),
                false => stack.push(sample),
            };
            pushed.map_err(|error| failed(&collate_error(error)))?;
        }
        at.set((Stage::Collate, None));
        watch.progress(WorkerState::Collating, indices.last().copied().unwrap_or(0));
        arena.within(|| stack.finish()).map_err(|error| failed(&collate_error(error)))
    }

    /// All samples at once, if the dataset can.
    fn get_many(&self, indices: &[usize], cx: &mut Context) -> anyhow::Result<Option<Vec<D::Sample>>> {
        if !self.has_many.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let samples = many::ask(&self.dataset, indices, cx)?;
        if samples.is_none() {
            self.has_many.store(false, Ordering::Relaxed);
        }
        Ok(samples)
    }
}

/// A dataset that fails in `get_many` cannot be held to one sample: the error names them all.
fn name_samples(mut failure: Failure, indices: &[usize]) -> Failure {
    const SHOWN: usize = 16;
    if failure.stage == Stage::Fetch && failure.index.is_none() {
        let text = match indices.len() {
            0..=SHOWN => format!("get_many of samples {indices:?}"),
            len => format!("get_many of {len} samples, the first of them {:?}", &indices[..SHOWN]),
        };
        failure.chain.insert(0, text);
    }
    failure
}

/// A custom function's own error keeps its chain.
fn collate_error(error: CollateError) -> anyhow::Error {
    match error {
        CollateError { problem: CollateProblem::Custom(error), .. } => error,
        other => anyhow::Error::msg(other.to_string()),
    }
}

fn guarded(stage: Stage, call: impl FnOnce() -> anyhow::Result<()>) -> Result<(), Failure> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => Err(error_to_failure(&error, stage, None)),
        Err(payload) => Err(to_failure(&*payload, stage, None)),
    }
}

/// The hook that runs once in each worker before its first sample.
pub trait WorkerInit: Serialize + DeserializeOwned + Send + Sync + 'static {
    /// Runs it.
    ///
    /// # Errors
    /// Any error fails every batch of the worker.
    fn call(&self, worker: &WorkerInfo) -> anyhow::Result<()>;
}

/// No hook.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct NoWorkerInit;

impl WorkerInit for NoWorkerInit {
    fn call(&self, _worker: &WorkerInfo) -> anyhow::Result<()> {
        Ok(())
    }
}

/// A function that captures nothing.
#[derive(Debug, Serialize, Deserialize)]
#[serde(bound = "")]
pub struct WorkerInitWith<F>(pub(crate) ZeroSized<F>);

impl<F> WorkerInit for WorkerInitWith<F>
where
    F: Fn(&WorkerInfo) -> anyhow::Result<()> + Copy + Send + Sync + 'static,
{
    fn call(&self, worker: &WorkerInfo) -> anyhow::Result<()> {
        self.0.get()(worker)
    }
}

/// A dataset and its collation of any types, open, as the worker's loop sees them.
pub trait Fetch {
    /// Loads a batch.
    ///
    /// # Errors
    /// [`NoBatch`].
    fn fetch(
        &self,
        epoch: u64,
        indices: &[usize],
        arena: &mut Arena,
        watch: &dyn Watch,
    ) -> Result<Box<dyn Loaded>, NoBatch>;
}

/// A batch of any type, ready to be sent.
pub trait Loaded {
    /// Encodes it into the arena's slot.
    ///
    /// # Errors
    /// [`EncodeError`].
    fn encode(&self, arena: &mut Arena) -> Result<Encoded, EncodeError>;
}

impl<D: Dataset, C: Collate<D::Sample>> Fetch for Fetcher<D, C> {
    fn fetch(
        &self,
        epoch: u64,
        indices: &[usize],
        arena: &mut Arena,
        watch: &dyn Watch,
    ) -> Result<Box<dyn Loaded>, NoBatch> {
        Ok(Box::new(self.batch(epoch, indices, arena, watch)?))
    }
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
    pub attached: Vec<Arc<SealedMemory>>,
    /// The loader's seed.
    pub seed: u64,
    /// The worker.
    pub worker: WorkerInfo,
}

/// A function that opens a dataset in a worker: [`open`] for some types.
pub type OpenFn = fn(Opening) -> Result<Box<dyn Fetch>, Failure>;

/// Opens a dataset in a worker. Its address is what main sends to workers of the same program.
///
/// # Errors
/// When the dataset cannot be decoded, or its `setup` or the worker's hook fails.
pub fn open<D, C, W>(opening: Opening) -> Result<Box<dyn Fetch>, Failure>
where
    D: Dataset,
    C: Collate<D::Sample>,
    W: WorkerInit,
{
    let Opening { dataset, attached, seed, worker } = opening;
    let (dataset, collate, hook): (D, C, W) = attach::decode(dataset.bytes(), attached)
        .map_err(|error| error_to_failure(&anyhow::Error::msg(error.to_string()), Stage::Open, None))?;
    Ok(Box::new(Fetcher::open(dataset, collate, seed, Some(worker), &hook)?))
}

/// What [`open`] reads: the bytes, and the memories they refer to.
pub(crate) type Encoding = (SealedMemory, Vec<Arc<SealedMemory>>);

/// Encodes what [`open`] reads, and checks that it can be read.
pub(crate) fn encode<D, C, W>(dataset: &D, collate: &C, hook: &W) -> Result<Encoding, crate::Error>
where
    D: Dataset,
    C: Collate<D::Sample>,
    W: WorkerInit,
{
    let not_encodable = |problem| crate::Error::DatasetNotEncodable { problem };
    let encoded = attach::encode(&(dataset, collate, hook));
    let (bytes, attached) = encoded.map_err(|error| not_encodable(error.to_string()))?;
    let back = attach::decode(&bytes, attached.clone());
    let (back, ..): (D, C, W) = back.map_err(|error| not_encodable(error.to_string()))?;
    if back.len() != dataset.len() {
        let (before, after) = (dataset.len(), back.len());
        let problem = format!("it had {before} samples before encoding and {after} after");
        return Err(crate::Error::DatasetNotEncodable { problem });
    }
    let memory = SealedMemory::new(&bytes)
        .map_err(|source| crate::Error::System { what: "shared memory for the dataset", source })?;
    Ok((memory, attached))
}
