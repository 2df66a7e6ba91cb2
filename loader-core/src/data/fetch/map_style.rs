//! Loads batches of a map-style dataset.

use std::{
    cell::Cell,
    error::Error,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::atomic::{AtomicBool, Ordering},
};

use loader_ipc::{
    arena::Arena,
    control::WorkerState,
    frame::{BadSampleRecord, Failure, MAX_BAD_SAMPLES, Stage},
};
use serde::{Deserialize, Serialize};

use super::{
    BatchRequest, DatasetKind, EncodeBatch, Fetch, FetchOptions, Hashed, NoBatch, ProgressSink, boxed,
    finish, push, set_up,
};
use crate::{
    data::{
        collate::Collate,
        context::{SampleContext, WorkerInfo},
        dataset::{Dataset, Outage, many},
        dataset_memory::DatasetMemory,
        foreign_error::concerns_process,
        panic::{error_to_failure, forget_backtrace, to_failure},
        random::{self, Purpose},
        sample_digest::{Hashes, NoHashes, SampleKey},
        worker_init::WorkerInit,
    },
    options::OnBadSample,
};

/// Maximum number of samples tried for one position in a batch, with [`OnBadSample::Replace`].
const MAX_TRIES: usize = 16;

/// A builder's map-style dataset with the options that workers need.
#[derive(Debug, Serialize, Deserialize)]
pub struct MapStyle<D> {
    pub(crate) dataset: D,
    pub(crate) options: FetchOptions,
    /// Number of bytes that the dataset may keep in each worker. Set by `build()`; 0 before.
    pub(crate) memory: u64,
    /// True if any sample of the dataset may replace a bad one; false if only samples of its batch may.
    pub(crate) draws_from_all: bool,
}

impl<D: Dataset> DatasetKind for MapStyle<D> {
    type Sample = D::Sample;

    fn samples(&self) -> Option<usize> {
        Some(self.dataset.len())
    }

    fn fingerprint(&self) -> String {
        self.dataset.fingerprint()
    }

    fn set_options(&mut self, options: FetchOptions, memory: u64) {
        (self.options, self.memory) = (options, memory);
    }

    fn open<C: Collate<D::Sample>>(
        self,
        collate: C,
        seed: u64,
        worker: WorkerInfo,
        hook: &impl WorkerInit,
    ) -> Result<Box<dyn Fetch>, Failure> {
        Ok(Box::new(Fetcher::open(self, collate, seed, Some(worker), hook)?))
    }
}

/// Why there is no sample.
enum NoSample {
    /// It is bad. The text says why; it is empty if main knows that the sample is bad, and why.
    Bad(String),
    /// The error concerns the process, so it takes the place of the batch.
    Failed(Failure),
}

/// A dataset and its collation, opened in this process.
#[derive(Debug)]
pub(crate) struct Fetcher<D, C> {
    dataset: D,
    options: FetchOptions,
    draws_from_all: bool,
    collate: C,
    seed: u64,
    worker: Option<WorkerInfo>,
    memory: DatasetMemory,
    /// False once the dataset has declined `get_many`.
    has_many: AtomicBool,
}

impl<D: Dataset, C: Collate<D::Sample>> Fetcher<D, C> {
    /// Sets the dataset up and, in a worker, runs `worker_init`.
    pub(crate) fn open(
        kind: MapStyle<D>,
        collate: C,
        seed: u64,
        worker: Option<WorkerInfo>,
        hook: &impl WorkerInit,
    ) -> Result<Self, Failure> {
        let MapStyle { mut dataset, options, memory, draws_from_all } = kind;
        let memory = DatasetMemory::new(memory);
        set_up(|cx| dataset.setup(cx), seed, worker.as_ref(), memory.clone(), hook)?;
        let has_many = AtomicBool::new(true);
        Ok(Self { dataset, options, draws_from_all, collate, seed, worker, memory, has_many })
    }

    /// Loads the batch of the samples `indices`. Catches panics of user code.
    pub(crate) fn batch(
        &self,
        epoch: u64,
        indices: &[usize],
        arena: &mut Arena,
        sink: &(impl ProgressSink + ?Sized),
    ) -> Result<Hashed<C::Batch>, NoBatch> {
        let at = Cell::new((Stage::Fetch, None));
        forget_backtrace();
        let load = AssertUnwindSafe(|| {
            if self.options.digest {
                let mut hashes = Vec::with_capacity(indices.len());
                let batch = self.load(epoch, indices, arena, sink, &at, &mut hashes)?;
                Ok((Some(hashes), batch))
            } else {
                Ok((None, self.load(epoch, indices, arena, sink, &at, &mut NoHashes)?))
            }
        });
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
        sink: &(impl ProgressSink + ?Sized),
        at: &Cell<(Stage, Option<u64>)>,
        hashes: &mut impl Hashes,
    ) -> Result<C::Batch, NoBatch> {
        let mut cx = self.context(epoch);
        let failed = |error: &anyhow::Error| {
            let (stage, index) = at.get();
            let index = index.or_else(|| many::failed_index(error).map(|index| index as u64));
            NoBatch::Failed(name_samples(error_to_failure(error, stage, index), indices))
        };
        let mut stack = self.collate.stack(indices.len());
        // Relaxed: the flag only saves a call of `get_many`; no other memory depends on it.
        if self.has_many.load(Ordering::Relaxed)
            && !sink.progress(WorkerState::FetchingMany, indices.first().copied().unwrap_or(0))
        {
            return Err(NoBatch::Cancelled);
        }
        let many = self.fetch_many(indices, &mut cx, (arena, sink), at);
        let many = many.map_err(|stop| stop.map_or(NoBatch::Cancelled, |error| failed(&error)))?;
        let mut many = many.map(Vec::into_iter);
        let timer = sink.timer();
        let (mut left_out, mut loaded) = (0, 0);
        for (position, &index) in indices.iter().enumerate() {
            at.set((Stage::Fetch, Some(index as u64)));
            if !sink.progress(WorkerState::Fetching, index) {
                return Err(NoBatch::Cancelled);
            }
            if let Some(timer) = timer {
                timer.start_sample();
            }
            loaded = index;
            let sample = match (&mut many, self.options.on_bad_sample) {
                (Some(samples), _) => samples.next().expect("`many::try_get_many` checks the number"),
                (None, OnBadSample::Error) => {
                    cx.set_index(index);
                    self.dataset.get(index, &mut cx).map_err(|error| failed(&error))?
                }
                (None, _) => match self.get_good(position, indices, &mut cx, sink)? {
                    Some((index, sample)) => {
                        loaded = index;
                        sample
                    }
                    None => {
                        left_out += 1;
                        continue;
                    }
                },
            };
            if let Some(timer) = timer {
                timer.sample_returned(many.is_none().then_some(loaded as u64));
            }
            at.set((Stage::Collate, Some(index as u64)));
            push(&self.collate, &mut stack, sample, arena, (key(epoch, loaded), hashes))
                .map_err(|error| failed(&error))?;
        }
        if (left_out > 0 && left_out == indices.len()) || sink.bad_samples() > MAX_BAD_SAMPLES {
            return Err(NoBatch::AllSamplesBad);
        }
        at.set((Stage::Collate, None));
        sink.progress(WorkerState::Collating, indices.last().copied().unwrap_or(0));
        finish::<_, C>(stack, arena, (key(epoch, loaded), hashes)).map_err(|error| failed(&error))
    }

    /// Loads the samples at once if the dataset does that; otherwise returns `None`.
    ///
    /// # Errors
    /// Returns the error of the dataset, or `None` if main does not want the batch any more.
    fn fetch_many(
        &self,
        indices: &[usize],
        cx: &mut SampleContext,
        (arena, sink): (&mut Arena, &(impl ProgressSink + ?Sized)),
        at: &Cell<(Stage, Option<u64>)>,
    ) -> Result<Option<Vec<D::Sample>>, Option<anyhow::Error>> {
        match self.options.on_bad_sample {
            OnBadSample::Error => match arena.within_load(|| self.get_many(indices, cx)) {
                Err(error) if is_of_unknown_sample(&error) => {
                    self.check_each(indices, cx, sink, at)?;
                    at.set((Stage::Fetch, None));
                    Err(Some(error))
                }
                many => many.map_err(Some),
            },
            // After a bad sample, the samples are loaded one by one, and their batch needs the whole slot.
            _ => self.get_many_good(indices, cx, sink).map_err(Some),
        }
    }

    /// Loads the samples one by one after `get_many` has failed, so that the error names the sample.
    ///
    /// # Errors
    /// Returns the error of the first sample that fails alone, or `None` if main does not want the batch any more.
    fn check_each(
        &self,
        indices: &[usize],
        cx: &mut SampleContext,
        sink: &(impl ProgressSink + ?Sized),
        at: &Cell<(Stage, Option<u64>)>,
    ) -> Result<(), Option<anyhow::Error>> {
        for &index in indices {
            at.set((Stage::Fetch, Some(index as u64)));
            if !sink.progress(WorkerState::Fetching, index) {
                return Err(None);
            }
            self.get_alone(index, cx).map_err(Some)?;
        }
        Ok(())
    }

    fn context(&self, epoch: u64) -> SampleContext {
        SampleContext::for_epoch(self.worker.clone(), self.seed, epoch)
            .with_memory(self.memory.clone())
            .collated::<D>(C::BY_TYPE)
    }

    /// Loads all samples with `get_many`. Returns `None` if the dataset does not have it, if a sample is
    /// known to be bad, or if it fails.
    ///
    /// # Errors
    /// If the error is not that of a sample.
    fn get_many_good(
        &self,
        indices: &[usize],
        cx: &mut SampleContext,
        sink: &(impl ProgressSink + ?Sized),
    ) -> anyhow::Result<Option<Vec<D::Sample>>> {
        if sink.is_one_by_one() || indices.iter().any(|&index| sink.is_known_bad(index)) {
            return Ok(None);
        }
        match self.caught(cx, |cx| self.get_many(indices, cx)) {
            Ok(Ok(samples)) => Ok(samples),
            Ok(Err(error)) if concerns_process(&error) => Err(error),
            // The caller loads the samples one by one to find the bad one.
            _ => Ok(None),
        }
    }

    /// Runs user code. If it panics, returns the panic and resets the context.
    fn caught<R>(
        &self,
        cx: &mut SampleContext,
        call: impl FnOnce(&mut SampleContext) -> R,
    ) -> Result<R, Box<dyn std::any::Any + Send>> {
        let result = catch_unwind(AssertUnwindSafe(|| call(cx)));
        if result.is_err() {
            *cx = self.context(cx.epoch());
        }
        result
    }

    /// Loads the sample for `position` in the batch, or one that replaces it if it is bad. Returns the index
    /// of the loaded sample and the sample, or `None` if the batch leaves the position out.
    fn get_good(
        &self,
        position: usize,
        indices: &[usize],
        cx: &mut SampleContext,
        sink: &(impl ProgressSink + ?Sized),
    ) -> Result<Option<(usize, D::Sample)>, NoBatch> {
        let index = indices[position];
        let mut draws = None;
        let mut asked = index;
        for tries_left in (0..MAX_TRIES).rev() {
            let reason = match self.try_one(asked, cx, sink) {
                Ok(sample) => return Ok(Some((asked, sample))),
                Err(NoSample::Bad(reason)) => reason,
                Err(NoSample::Failed(failure)) => return Err(NoBatch::Failed(failure)),
            };
            let other = match self.options.on_bad_sample {
                OnBadSample::Replace if tries_left > 0 => {
                    let key = random::key(Purpose::Replacement, self.seed, cx.epoch());
                    let draws = draws.get_or_insert_with(|| random::generator(key, index as u64));
                    let choices = if self.draws_from_all { self.dataset.len() } else { indices.len() };
                    let choice = random::below(draws, choices as u64) as usize;
                    // Only samples of this batch if a sampler may have left others out on purpose.
                    Some(if self.draws_from_all { choice } else { indices[choice] })
                }
                _ => None,
            };
            let (bad, replaced_by) = (asked as u64, other.map(|other| other as u64));
            sink.bad(BadSampleRecord { position: position as u32, index: bad, replaced_by, reason });
            let Some(other) = other else { return Ok(None) };
            asked = other;
            if !sink.progress(WorkerState::Fetching, asked) {
                return Err(NoBatch::Cancelled);
            }
        }
        Ok(None)
    }

    /// Loads one sample.
    fn try_one(
        &self,
        index: usize,
        cx: &mut SampleContext,
        sink: &(impl ProgressSink + ?Sized),
    ) -> Result<D::Sample, NoSample> {
        if sink.is_known_bad(index) {
            return Err(NoSample::Bad(String::new()));
        }
        let failure = match self.caught(cx, |cx| self.get_alone(index, cx)) {
            Ok(Ok(sample)) => return Ok(sample),
            Ok(Err(error)) if concerns_process(&error) => {
                let failure = error_to_failure(&error, Stage::Fetch, Some(index as u64));
                return Err(NoSample::Failed(failure));
            }
            Ok(Err(error)) => error_to_failure(&error, Stage::Fetch, Some(index as u64)),
            Err(payload) => to_failure(&*payload, Stage::Fetch, Some(index as u64)),
        };
        Err(NoSample::Bad(failure.chain.join(": ")))
    }

    /// Loads one sample, with `get_many` if the dataset has it.
    fn get_alone(&self, index: usize, cx: &mut SampleContext) -> anyhow::Result<D::Sample> {
        match self.get_many(&[index], cx)?.and_then(|mut samples| samples.pop()) {
            Some(sample) => Ok(sample),
            None => {
                cx.set_index(index);
                self.dataset.get(index, cx)
            }
        }
    }

    /// Loads all samples with `get_many`; `None` if the dataset does not have it.
    fn get_many(&self, indices: &[usize], cx: &mut SampleContext) -> anyhow::Result<Option<Vec<D::Sample>>> {
        if !self.has_many.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let samples = many::try_get_many(&self.dataset, indices, cx)?;
        if samples.is_none() {
            self.has_many.store(false, Ordering::Relaxed);
        }
        Ok(samples)
    }
}

impl<D: Dataset, C: Collate<D::Sample>> Fetch for Fetcher<D, C> {
    fn fetch(
        &mut self,
        epoch: u64,
        request: &BatchRequest,
        arena: &mut Arena,
        sink: &dyn ProgressSink,
    ) -> Result<Box<dyn EncodeBatch>, NoBatch> {
        let BatchRequest::Samples(indices) = request else {
            unreachable!("a map-style dataset has no shards")
        };
        Ok(boxed(self.batch(epoch, indices, arena, sink)?))
    }
}

/// True if `error` is that of one of the samples that `get_many` was asked for, and does not tell of which.
fn is_of_unknown_sample(error: &anyhow::Error) -> bool {
    let is_outage = error.is::<Outage>() || error.chain().any(<dyn Error>::is::<Outage>);
    many::failed_index(error).is_none() && !concerns_process(error) && !is_outage
}

fn key(epoch: u64, index: usize) -> SampleKey {
    SampleKey { epoch, shard: None, index: index as u64 }
}

/// If `get_many` failed and no sample fails alone, the failure names all of them.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DataLoader, data::tensor::Tensor, error::Error as LoaderError};

    /// The numbers below 600, of which these fail.
    #[derive(Debug, Clone, Serialize, Deserialize)]
    struct Failing(std::ops::Range<usize>);

    impl Dataset for Failing {
        type Sample = u64;

        fn len(&self) -> usize {
            600
        }

        fn get(&self, index: usize, _cx: &mut SampleContext) -> anyhow::Result<u64> {
            anyhow::ensure!(!self.0.contains(&index), "sample {index} fails");
            Ok(index as u64)
        }
    }

    /// Returns the batches of an epoch in the order of `indices`.
    fn load(
        bad: std::ops::Range<usize>,
        indices: Vec<usize>,
        on_bad_sample: OnBadSample,
    ) -> Vec<Result<Tensor<u64>, LoaderError>> {
        let builder = DataLoader::builder(Failing(bad)).sampler(indices).batch_size(300);
        let builder = builder.on_bad_sample(on_bad_sample).max_bad_samples(1_000).on_warning(|_| {});
        builder.build().unwrap().iter().unwrap().collect()
    }

    #[test]
    fn the_error_of_get_names_the_sample() {
        let batches = load(7..8, (0..600).collect(), OnBadSample::Error);
        let [Err(error), Ok(_)] = &batches[..] else { panic!("{batches:?}") };
        let LoaderError::DatasetFailed { batch: 0, index: Some(7), .. } = error else { panic!("{error:?}") };
        assert!(error.to_string().contains("sample 7 fails"), "{error}");
    }

    #[test]
    fn only_samples_of_the_batch_replace_those_that_a_sampler_has_chosen() {
        let even: Vec<usize> = (0..600).step_by(2).collect();
        let batches = load(100..120, even, OnBadSample::Replace);
        let [Ok(batch)] = &batches[..] else { panic!("{batches:?}") };
        assert_eq!(batch.as_slice().len(), 300);
        assert!(batch.as_slice().iter().all(|sample| sample % 2 == 0), "{batch:?}");
    }

    #[test]
    fn a_batch_with_as_many_bad_samples_as_a_report_holds_keeps_the_others() {
        for (bad, kept) in [(MAX_BAD_SAMPLES, 300 - MAX_BAD_SAMPLES), (MAX_BAD_SAMPLES + 1, 0)] {
            let batches = load(0..bad, (0..600).collect(), OnBadSample::Skip);
            let samples: Vec<u64> =
                batches.iter().flat_map(|batch| batch.as_ref().unwrap().as_slice().to_vec()).collect();
            assert_eq!(samples.len(), kept + 300, "{bad} bad samples");
        }
    }
}
