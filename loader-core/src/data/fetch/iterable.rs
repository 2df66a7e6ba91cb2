//! Loads batches of an iterable dataset, each from one shard.

use std::{
    cell::Cell,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use loader_ipc::{
    arena::Arena,
    control::WorkerState,
    frame::{AfterFailure, BadSampleRecord, Failure, MAX_BAD_SAMPLES, Stage, StreamPosition},
};
use serde::{Deserialize, Serialize};

use super::{
    BatchRequest, DatasetKind, EncodeBatch, Fetch, FetchOptions, Hashed, NoBatch, ProgressSink, boxed,
    cursor::{Cursor, Cursors, ShardPosition},
    finish,
    open_shard::OpenShard,
    push, set_up,
};
use crate::{
    data::{
        collate::Collate,
        context::{SampleContext, Shard, WorkerInfo},
        dataset::{EndsShard, IterableDataset},
        dataset_memory::DatasetMemory,
        foreign_error::concerns_process,
        panic::{error_to_failure, forget_backtrace, to_failure},
        sample_digest::{Hashes, NoHashes, SampleKey},
        worker_init::WorkerInit,
    },
    options::OnBadSample,
};

/// A builder's iterable dataset with the options that workers need: a `Plain<D>` or a `Snapshots<D>`.
#[derive(Debug, Serialize, Deserialize)]
pub struct Iterable<O> {
    pub(crate) dataset: O,
    /// Set by `build()`; the default before.
    pub(crate) layout: ShardLayout,
    /// Number of batches of a shard from one snapshot to the next.
    pub(crate) snapshot_every: u64,
    pub(crate) options: FetchOptions,
    /// Number of bytes that the dataset may keep in each shard. Set by `build()`; 0 before.
    pub(crate) memory: u64,
}

/// How an iterable dataset is cut into shards and batches.
///
/// The ranks take turns at the shards of all processes: shard `s` of rank `r` is number `s * world_size + r`. A dataset
/// deals its files to the shards in turn ([`Shard::of`]), so they go to the ranks first, and then to the shards of a
/// rank. Each rank has files if there are as many files as ranks.
///
/// Alternative considered: consecutive shards for each rank, as `rank * num_workers + worker` of many programs for
/// PyTorch. Rejected because with 8 files and 4 ranks of 4 shards, the first two ranks had all files.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ShardLayout {
    /// Number of shards that this process (a rank, not a worker) reads.
    pub(crate) shards: usize,
    /// Number of the first of these shards among the shards of all processes.
    pub(crate) first_shard: usize,
    /// Number of shards of all processes.
    pub(crate) all_shards: usize,
    pub(crate) batch_size: usize,
    pub(crate) drop_last: bool,
}

impl ShardLayout {
    /// Maximum number of items that a batch takes from its shard: its samples, and the bad ones that it may
    /// leave out.
    pub(crate) fn max_items(&self) -> usize {
        self.batch_size.saturating_add(MAX_BAD_SAMPLES)
    }

    /// Returns the number of a shard of this process among the shards of all processes.
    pub(crate) fn number(&self, shard: usize) -> usize {
        self.first_shard + shard * (self.all_shards / self.shards)
    }
}

/// A batch of a shard, preceded by the snapshot after its last sample, if one was written.
pub(crate) type ShardBatch<B> = (Option<Vec<u8>>, B);

/// An iterable dataset and its collation, opened in this process.
#[derive(Debug)]
pub(crate) struct ShardFetcher<O, C> {
    dataset: Arc<O>,
    layout: ShardLayout,
    snapshot_every: u64,
    options: FetchOptions,
    memory: u64,
    collate: C,
    seed: u64,
    worker: Option<WorkerInfo>,
}

impl<O: OpenShard, C: Collate<O::Sample>> ShardFetcher<O, C> {
    /// Sets the dataset up and, in a worker, runs `worker_init`.
    pub(crate) fn open(
        iterable: Iterable<O>,
        collate: C,
        seed: u64,
        worker: Option<WorkerInfo>,
        hook: &impl WorkerInit,
    ) -> Result<Self, Failure> {
        let Iterable { mut dataset, layout, snapshot_every, options, memory } = iterable;
        // What a dataset keeps in `setup` belongs to no shard, so it has no limit.
        set_up(|cx| dataset.dataset_mut().setup(cx), seed, worker.as_ref(), DatasetMemory::default(), hook)?;
        let dataset = Arc::new(dataset);
        Ok(Self { dataset, layout, snapshot_every, options, memory, collate, seed, worker })
    }

    /// Loads the next batch of `shard`, and opens the shard at `open_at` if it is not open. A panic of user
    /// code ends the shard.
    pub(crate) fn batch(
        &self,
        cursors: &mut Cursors<O::Sample>,
        epoch: u64,
        shard: usize,
        open_at: &ShardPosition,
        arena: &mut Arena,
        sink: &(impl ProgressSink + ?Sized),
    ) -> Result<Hashed<ShardBatch<C::Batch>>, NoBatch> {
        let at = Cell::new((Stage::Open, None));
        forget_backtrace();
        let load = AssertUnwindSafe(|| {
            if self.options.digest {
                let mut hashes = Vec::new();
                let batch = self.load(cursors, epoch, shard, open_at, arena, sink, &at, &mut hashes)?;
                Ok((Some(hashes), batch))
            } else {
                let batch = self.load(cursors, epoch, shard, open_at, arena, sink, &at, &mut NoHashes)?;
                Ok((None, batch))
            }
        });
        catch_unwind(load).unwrap_or_else(|payload| {
            cursors.end_after_panic(shard);
            let (stage, index) = at.get();
            Err(NoBatch::Failed(to_failure(&*payload, stage, index)))
        })
    }

    #[allow(clippy::too_many_arguments)] // It has those of `batch`, and `at` and `hashes`.
    fn load(
        &self,
        cursors: &mut Cursors<O::Sample>,
        epoch: u64,
        shard: usize,
        open_at: &ShardPosition,
        arena: &mut Arena,
        sink: &(impl ProgressSink + ?Sized),
        at: &Cell<(Stage, Option<u64>)>,
        hashes: &mut impl Hashes,
    ) -> Result<ShardBatch<C::Batch>, NoBatch> {
        let failed = |error: &anyhow::Error| {
            let (stage, index) = at.get();
            NoBatch::Failed(error_to_failure(error, stage, index))
        };
        let not_opened = |error| NoBatch::Failed(error_to_failure(&error, Stage::Open, None));
        let cursor = cursors.at(shard, open_at, || self.cursor(epoch, shard, open_at));
        if !cursor.is_open() {
            // The control page shows where reading begins, which may be before the first sample of the batch.
            sink.progress(WorkerState::Fetching, cursor.items_taken());
            cursor.wait_until_open(shard).map_err(not_opened)?;
        }
        let (start, timer) = (cursor.reached(), sink.timer());
        let ShardLayout { batch_size, drop_last, .. } = self.layout;
        let mut stack = self.collate.stack(batch_size);
        let (mut count, mut bad, mut snapshot, mut misfit) = (0, 0, None, None);
        // A worker can report no more bad samples of a batch. The batch then ends, because reading on would lose
        // good samples.
        while count < batch_size && bad < MAX_BAD_SAMPLES {
            if !sink.progress(WorkerState::Fetching, cursor.items_taken()) {
                return Err(NoBatch::Cancelled);
            }
            cursor.ask_for_snapshot(count + 1 == batch_size, self.snapshot_every);
            let index = Some(cursor.items());
            at.set((Stage::Fetch, index));
            let Some((item, written)) = cursor.next_item(shard, timer).map_err(not_opened)? else { break };
            snapshot = written;
            if let Err(error) = &item
                && error.is::<EndsShard>()
            {
                cursor.end_at(start);
                return Err(failed(error));
            }
            if cursor.took(&item, shard).map_err(not_opened)? {
                continue;
            }
            let sample = self.sample_of(item, count, cursor.items() - 1, sink);
            let Some(sample) = sample.map_err(|error| failed(&error))? else {
                bad += 1;
                continue;
            };
            count += 1;
            if let Some(timer) = timer {
                timer.sample_returned(index);
            }
            // After a sample that does not fit, the batch is still read to its end, so that the next batch
            // begins at the same sample as without the error.
            if misfit.is_none() {
                at.set((Stage::Collate, index));
                let key = self.key(epoch, shard, cursor.items() - 1);
                let pushed = push(&self.collate, &mut stack, sample, arena, (key, hashes));
                misfit = pushed.err().map(|error| failed(&error));
            }
        }
        if count == 0 || (count < batch_size && drop_last) {
            // `AllSamplesBad` reports the bad samples. At the end of the shard, the next call returns `Exhausted`.
            return Err(if bad > 0 { NoBatch::AllSamplesBad } else { NoBatch::Exhausted });
        }
        misfit.map_or(Ok(()), Err)?;
        cursor.end_batch(snapshot.is_some());
        at.set((Stage::Collate, None));
        sink.progress(WorkerState::Collating, cursor.items_taken());
        let key = self.key(epoch, shard, cursor.items() - 1);
        let batch = finish::<_, C>(stack, arena, (key, hashes)).map_err(|error| failed(&error))?;
        Ok((snapshot, batch))
    }

    /// Returns the key of the item `index` of a shard.
    fn key(&self, epoch: u64, shard: usize, index: u64) -> SampleKey {
        SampleKey { epoch, shard: Some(self.layout.number(shard)), index }
    }

    /// Returns the sample at `position` in the batch. `None` if it is bad and may be left out; it is then
    /// reported to `sink`, with its position `index` in the shard.
    fn sample_of(
        &self,
        item: anyhow::Result<O::Sample>,
        position: usize,
        index: u64,
        sink: &(impl ProgressSink + ?Sized),
    ) -> anyhow::Result<Option<O::Sample>> {
        match (item, self.options.on_bad_sample) {
            (Ok(sample), _) => Ok(Some(sample)),
            (Err(error), OnBadSample::Error) => Err(error),
            (Err(error), _) if concerns_process(&error) => Err(error),
            (Err(error), _) => {
                let (position, reason) = (position as u32, format!("{error:#}"));
                sink.bad(BadSampleRecord { position, index, replaced_by: None, reason });
                Ok(None)
            }
        }
    }

    /// Opens a shard at a position.
    fn cursor(&self, epoch: u64, shard: usize, open_at: &ShardPosition) -> Cursor<O::Sample> {
        let whole = Shard::new(self.layout.number(shard), self.layout.all_shards);
        let cx = SampleContext::for_shard(self.worker.clone(), self.seed, epoch, whole)
            .with_memory(DatasetMemory::new(self.memory))
            .collated::<O::Dataset>(C::BY_TYPE);
        Cursor::new(&self.dataset, whole, cx, open_at)
    }
}

/// The fetcher of a worker, with its cursors.
struct WorkerShards<O: OpenShard, C> {
    fetcher: ShardFetcher<O, C>,
    cursors: Cursors<O::Sample>,
}

impl<O: OpenShard> DatasetKind for Iterable<O> {
    type Sample = O::Sample;

    fn samples(&self) -> Option<usize> {
        self.dataset.dataset().len()
    }

    fn fingerprint(&self) -> String {
        self.dataset.dataset().fingerprint()
    }

    fn set_options(&mut self, options: FetchOptions, memory: u64) {
        (self.options, self.memory) = (options, memory);
    }

    fn open<C: Collate<O::Sample>>(
        self,
        collate: C,
        seed: u64,
        worker: WorkerInfo,
        hook: &impl WorkerInit,
    ) -> Result<Box<dyn Fetch>, Failure> {
        let fetcher = ShardFetcher::open(self, collate, seed, Some(worker), hook)?;
        Ok(Box::new(WorkerShards { fetcher, cursors: Cursors::default() }))
    }
}

impl<O: OpenShard, C: Collate<O::Sample>> Fetch for WorkerShards<O, C> {
    fn fetch(
        &mut self,
        epoch: u64,
        request: &BatchRequest,
        arena: &mut Arena,
        sink: &dyn ProgressSink,
    ) -> Result<Box<dyn EncodeBatch>, NoBatch> {
        let BatchRequest::NextOf { shard, open_at } = request else {
            unreachable!("an iterable dataset has no indices")
        };
        Ok(boxed(self.fetcher.batch(&mut self.cursors, epoch, *shard, open_at, arena, sink)?))
    }

    fn position(&self, shard: usize) -> StreamPosition {
        self.cursors.position(shard)
    }

    fn after_failure(&self, shard: usize) -> AfterFailure {
        self.cursors.after_failure(shard)
    }

    fn rewind(&mut self) {
        self.cursors = Cursors::default();
    }
}
