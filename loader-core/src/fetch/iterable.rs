//! Loads batches of an iterable dataset, each from one shard.

use std::{
    cell::Cell,
    collections::BTreeMap,
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use anyhow::{Context, bail};
use loader_ipc::{
    arena::Arena,
    codec,
    control::WorkerState,
    frame::{AfterFailure, BadSampleRecord, Failure, MAX_BAD_SAMPLES, Stage, StreamPosition},
    profile::BatchTimer,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::{
    BatchRequest, DatasetKind, EncodeBatch, Fetch, FetchOptions, Hashed, NoBatch, ProgressSink, boxed,
    finish, push, set_up,
};
use crate::{
    collate::Collate,
    context::{SampleContext, Shard, WorkerInfo},
    dataset::{
        EndsShard, IterableDataset, SnapshotDataset, SnapshotIterator, generator::Generator,
        out_of_place::OutOfPlace,
    },
    dataset_memory::DatasetMemory,
    foreign_error::concerns_process,
    options::OnBadSample,
    panic::{error_to_failure, forget_backtrace, to_failure},
    sample_digest::{Hashes, NoHashes, SampleKey},
    worker_init::WorkerInit,
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
}

/// An iterable dataset whose shards are opened with or without snapshots.
pub trait OpenShard: Serialize + DeserializeOwned + Send + Sync + 'static {
    /// The dataset.
    type Dataset: 'static;
    /// One sample.
    type Sample: Send + 'static;

    /// True if it writes snapshots and opens shards at them.
    const SNAPSHOTS: bool;

    /// Returns the number of samples, if it is known.
    fn samples(&self) -> Option<usize>;

    /// Returns the dataset's fingerprint.
    fn fingerprint(&self) -> String;

    /// Sets the dataset up.
    ///
    /// # Errors
    /// The error of the dataset's `setup`.
    fn setup(&mut self, cx: &mut SampleContext) -> anyhow::Result<()>;

    /// Opens a shard at a snapshot. If the dataset can skip the next `skip` items without reading them, skips
    /// them. While `wants_snapshot` is set, each item comes with a snapshot.
    #[doc(hidden)]
    fn open(
        self: Arc<Self>,
        shard: Shard,
        cx: SampleContext,
        snapshot: Option<Vec<u8>>,
        skip: u64,
        wants_snapshot: Arc<AtomicBool>,
    ) -> Items<Self::Sample>;
}

/// An iterable dataset in a builder, without snapshots. A shard is resumed at a position, by
/// [`IterableDataset::iter_at`] or by reading from its beginning.
#[derive(Debug, Serialize, Deserialize)]
pub struct Plain<D>(pub(crate) D);

/// An iterable dataset in a builder, with snapshots. A shard is resumed at its last snapshot.
#[derive(Debug, Serialize, Deserialize)]
pub struct Snapshots<D>(pub(crate) D);

/// An open shard.
#[doc(hidden)]
pub struct Items<S>(Generator<'static, Given<S>>);

/// What the iterator of a shard gives: first `Opened` or `NotOpen`, then only `Item`.
enum Given<S> {
    /// The shard is open, and `skipped` items after the snapshot were skipped. Later errors are errors of
    /// samples.
    Opened { skipped: u64 },
    /// A sample, and the encoded snapshot after it if one was wanted and the dataset writes snapshots.
    Item(anyhow::Result<S>, Option<Vec<u8>>),
    /// The shard cannot be opened.
    NotOpen(anyhow::Error),
}

impl<D: IterableDataset> OpenShard for Plain<D> {
    type Dataset = D;
    type Sample = D::Sample;

    const SNAPSHOTS: bool = false;

    fn samples(&self) -> Option<usize> {
        self.0.len()
    }

    fn fingerprint(&self) -> String {
        self.0.fingerprint()
    }

    fn setup(&mut self, cx: &mut SampleContext) -> anyhow::Result<()> {
        self.0.setup(cx)
    }

    fn open(
        self: Arc<Self>,
        shard: Shard,
        mut cx: SampleContext,
        _snapshot: Option<Vec<u8>>,
        skip: u64,
        _wants_snapshot: Arc<AtomicBool>,
    ) -> Items<D::Sample> {
        Items(Generator::new(move |giver| async move {
            if skip > 0 {
                // If this returns `None`, `iter` must draw its numbers from the beginning.
                let mut ahead = cx.for_layer(0);
                match self.0.iter_at(shard, skip, &mut ahead) {
                    Ok(Some(items)) => {
                        giver.give(Given::Opened { skipped: skip }).await;
                        for item in items {
                            giver.give(Given::Item(item, None)).await;
                        }
                        return;
                    }
                    Ok(None) => {}
                    Err(error) => return giver.give(Given::NotOpen(error)).await,
                }
            }
            match self.0.iter(shard, &mut cx) {
                Ok(items) => {
                    giver.give(Given::Opened { skipped: 0 }).await;
                    for item in items {
                        giver.give(Given::Item(item, None)).await;
                    }
                }
                Err(error) => giver.give(Given::NotOpen(error)).await,
            }
        }))
    }
}

impl<D: SnapshotDataset> OpenShard for Snapshots<D> {
    type Dataset = D;
    type Sample = D::Sample;

    const SNAPSHOTS: bool = true;

    fn samples(&self) -> Option<usize> {
        self.0.len()
    }

    fn fingerprint(&self) -> String {
        self.0.fingerprint()
    }

    fn setup(&mut self, cx: &mut SampleContext) -> anyhow::Result<()> {
        self.0.setup(cx)
    }

    fn open(
        self: Arc<Self>,
        shard: Shard,
        mut cx: SampleContext,
        snapshot: Option<Vec<u8>>,
        _skip: u64,
        wants_snapshot: Arc<AtomicBool>,
    ) -> Items<D::Sample> {
        Items(Generator::new(move |giver| async move {
            let decode = |bytes: Vec<u8>| codec::decode(&bytes).context("reading the snapshot");
            let opened = match snapshot.map(decode).transpose() {
                Ok(snapshot) => self.0.iter_from(shard, &mut cx, snapshot),
                Err(error) => Err(error),
            };
            let mut items = match opened {
                Ok(items) => items,
                Err(error) => return giver.give(Given::NotOpen(error)).await,
            };
            giver.give(Given::Opened { skipped: 0 }).await;
            while let Some(item) = items.next() {
                // Relaxed: the same thread writes the flag.
                let snapshot = match wants_snapshot.load(Ordering::Relaxed) && item.is_ok() {
                    true => encode_snapshot(&items).map(Some),
                    false => Ok(None),
                };
                let given = match snapshot {
                    Ok(snapshot) => Given::Item(item, snapshot),
                    Err(error) => Given::Item(Err(error), None),
                };
                giver.give(given).await;
            }
        }))
    }
}

fn encode_snapshot<S: Serialize>(items: &impl SnapshotIterator<Snapshot = S>) -> anyhow::Result<Vec<u8>> {
    let snapshot = items.snapshot().context("writing a snapshot")?;
    codec::encode(&snapshot).context("encoding a snapshot")
}

/// A position in a shard, at which it can be opened.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ShardPosition {
    /// The position.
    pub position: StreamPosition,
    /// The last snapshot up to this position.
    pub snapshot: Option<Snapshot>,
    /// True if the shard has no more items.
    pub ended: bool,
}

/// A snapshot that the iterator of a shard wrote.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// The position in the shard when it was written.
    pub position: StreamPosition,
    /// The encoded snapshot. States share it.
    pub bytes: Arc<[u8]>,
}

impl ShardPosition {
    /// Returns the position of the snapshot; the beginning of the shard if there is none.
    pub(crate) fn start(&self) -> StreamPosition {
        self.snapshot.as_ref().map_or_else(StreamPosition::default, |snapshot| snapshot.position)
    }
}

/// A batch of a shard, preceded by the snapshot after its last sample, if one was written.
pub(crate) type ShardBatch<B> = (Option<Vec<u8>>, B);

/// An item, and the snapshot after it if one was written.
type ItemWithSnapshot<S> = (anyhow::Result<S>, Option<Vec<u8>>);

/// The cursors of the shards from which this process has read, by number of the shard.
pub(crate) struct Cursors<S>(BTreeMap<usize, Cursor<S>>);

struct Cursor<S> {
    /// `None` once the shard has ended.
    items: Option<Items<S>>,
    /// Set to ask for a snapshot with the next item.
    wants_snapshot: Arc<AtomicBool>,
    is_open: bool,
    /// The position after the last item that was taken.
    position: StreamPosition,
    /// Number of items still to skip before the first batch.
    skip: u64,
    /// The position before the first batch, according to the process that has read the shard before.
    target: StreamPosition,
    /// What the last failure means for the shard.
    after_failure: AfterFailure,
    /// Number of batches since the last snapshot.
    batches: u64,
}

impl<S> Cursor<S> {
    /// Waits until the dataset has opened the shard. Does nothing if a previous attempt failed.
    ///
    /// # Errors
    /// The dataset's error. The shard then has no more items.
    fn wait_until_open(&mut self, shard: usize) -> anyhow::Result<()> {
        let Some(items) = &mut self.items else { return Ok(()) };
        match items.0.next() {
            Some(Given::NotOpen(error)) => {
                (self.items, self.after_failure) = (None, AfterFailure::EndsForEpoch);
                return Err(error.context(format!("opening shard {shard}")));
            }
            Some(Given::Opened { skipped }) if skipped > 0 => {
                // No error of such a dataset changes which items follow, and the dataset has skipped all of them.
                (self.position, self.skip) = (self.target, 0);
            }
            _ => {}
        }
        self.is_open = true;
        Ok(())
    }

    /// Asks for a snapshot with the next item if the item ends a batch and the snapshot is due.
    fn ask_for_snapshot(&self, ends_batch: bool, every: u64) {
        let is_due = ends_batch && self.skip == 0 && self.batches + 1 >= every;
        // Relaxed: the same thread reads the flag.
        self.wants_snapshot.store(is_due, Ordering::Relaxed);
    }

    /// Ends the shard because it cannot be read further. Its position stays at `start`, the beginning of this
    /// batch, so that a resumed run reads the rest.
    fn end_at(&mut self, start: StreamPosition) {
        (self.items, self.position, self.skip) = (None, start, 0);
        self.after_failure = AfterFailure::EndsForEpoch;
    }

    /// Number of items taken, for the control page.
    fn items_taken(&self) -> usize {
        usize::try_from(self.position.items).unwrap_or(usize::MAX)
    }

    /// Returns the position, including items still to skip.
    fn reached(&self) -> StreamPosition {
        if self.skip > 0 { self.target } else { self.position }
    }

    /// Notes that `item` was taken. Returns true if it was to be skipped.
    ///
    /// # Errors
    /// Returns an error if all items were skipped, but others of them were errors than before.
    fn took(&mut self, item: &anyhow::Result<S>, shard: usize) -> anyhow::Result<bool> {
        let StreamPosition { items, errors } = &mut self.position;
        if let Err(error) = item
            && let Some(OutOfPlace(inner)) = error.downcast_ref()
        {
            let bytes = [items.to_le_bytes(), inner.to_le_bytes()].concat();
            // Every format in which a state may be written can hold 53 bits.
            *errors = xxh3_64_with_seed(&bytes, *errors) >> 11;
        }
        *items = items.saturating_add(1);
        // If a skipped item is an error, the loader has reported it when it read the item for the first time.
        let is_skipped = self.skip > 0;
        self.skip = self.skip.saturating_sub(1);
        if is_skipped && self.skip == 0 {
            self.check_errors(shard)?;
        }
        Ok(is_skipped)
    }

    /// Checks that the same items were errors as when they were read for the first time. Otherwise the items that
    /// follow are not the remaining ones: a shuffle buffer, for example, has other samples.
    ///
    /// # Errors
    /// Returns an error if others were. The shard then has no more items, and keeps its position.
    fn check_errors(&mut self, shard: usize) -> anyhow::Result<()> {
        let StreamPosition { items, errors } = self.target;
        if errors == self.position.errors {
            return Ok(());
        }
        self.end_at(self.target);
        bail!(
            "shard {shard} cannot continue at item {items}: the errors before this item are not the same as when the shard \
             was first read, so other samples would follow; resume from the state again if a sample cannot be read for now, or \
             begin the epoch again"
        );
    }

    /// Reads the next item, with its snapshot if it has one. `None` at the end of the shard.
    ///
    /// # Errors
    /// Returns an error if the shard ends before all items were skipped, because others of them were errors than
    /// before.
    fn next_item(
        &mut self,
        shard: usize,
        timer: Option<&BatchTimer<'_>>,
    ) -> anyhow::Result<Option<ItemWithSnapshot<S>>> {
        if let Some(timer) = timer {
            timer.start_sample();
        }
        let Some(items) = &mut self.items else { return Ok(None) };
        if let Some(Given::Item(item, snapshot)) = items.0.next() {
            return Ok(Some((item, snapshot)));
        }
        self.items = None;
        if self.skip > 0 {
            self.check_errors(shard)?;
        }
        Ok(None)
    }
}

impl<S> Default for Cursors<S> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<S> Cursors<S> {
    /// Returns the position in a shard, including items still to skip; the beginning if no batch of it was asked
    /// for.
    pub(crate) fn position(&self, shard: usize) -> StreamPosition {
        self.0.get(&shard).map_or_else(StreamPosition::default, Cursor::reached)
    }

    /// Closes a shard that another worker has read since: the position at which this process continues the
    /// shard is then not `open_at`. For a task that continues the shard, `open_at` is the start.
    fn forget_stale(&mut self, shard: usize, open_at: &ShardPosition) {
        if open_at.position.items > 0 && self.position(shard) != open_at.position {
            let stale = self.0.remove(&shard);
            // A panic of the iterator's destructor must not fail the task, which is to open the shard.
            drop(catch_unwind(AssertUnwindSafe(|| drop(stale))));
        }
    }

    /// Returns what the last failure of a shard means for it.
    pub(crate) fn after_failure(&self, shard: usize) -> AfterFailure {
        self.0.get(&shard).map_or(AfterFailure::Continues, |cursor| cursor.after_failure)
    }
}

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
        set_up(|cx| dataset.setup(cx), seed, worker.as_ref(), DatasetMemory::default(), hook)?;
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
        let load = AssertUnwindSafe(|| match self.options.digest {
            true => {
                let mut hashes = Vec::new();
                let batch = self.load(cursors, epoch, shard, open_at, arena, sink, &at, &mut hashes)?;
                Ok((Some(hashes), batch))
            }
            false => {
                let batch = self.load(cursors, epoch, shard, open_at, arena, sink, &at, &mut NoHashes)?;
                Ok((None, batch))
            }
        });
        catch_unwind(load).unwrap_or_else(|payload| {
            let items = cursors.0.get_mut(&shard).and_then(|cursor| {
                // Until the cursor has skipped to its position, a loader that resumes may try again.
                let is_at_position = cursor.is_open && cursor.skip == 0;
                cursor.after_failure =
                    if is_at_position { AfterFailure::Ends } else { AfterFailure::EndsForEpoch };
                cursor.items.take()
            });
            // The iterator's destructor is user code too. A second panic must not unwind from here.
            drop(catch_unwind(AssertUnwindSafe(|| drop(items))));
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
        cursors.forget_stale(shard, open_at);
        let cursor = cursors.0.entry(shard).or_insert_with(|| self.cursor(epoch, shard, open_at));
        if !cursor.is_open {
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
            let index = Some(cursor.position.items);
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
            let sample = self.sample_of(item, count, cursor.position.items - 1, sink);
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
                let key = self.key(epoch, shard, cursor.position.items - 1);
                let pushed = push(&self.collate, &mut stack, sample, arena, (key, hashes));
                misfit = pushed.err().map(|error| failed(&error));
            }
        }
        if count == 0 || (count < batch_size && drop_last) {
            // `AllSamplesBad` reports the bad samples. At the end of the shard, the next call returns `Exhausted`.
            return Err(if bad > 0 { NoBatch::AllSamplesBad } else { NoBatch::Exhausted });
        }
        misfit.map_or(Ok(()), Err)?;
        cursor.batches = if snapshot.is_some() { 0 } else { cursor.batches + 1 };
        at.set((Stage::Collate, None));
        sink.progress(WorkerState::Collating, cursor.items_taken());
        let key = self.key(epoch, shard, cursor.position.items - 1);
        let batch = finish::<_, C>(stack, arena, (key, hashes)).map_err(|error| failed(&error))?;
        Ok((snapshot, batch))
    }

    /// Returns the key of the item `index` of a shard.
    fn key(&self, epoch: u64, shard: usize, index: u64) -> SampleKey {
        SampleKey { epoch, shard: Some(self.layout.first_shard + shard), index }
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

    fn cursor(&self, epoch: u64, shard: usize, open_at: &ShardPosition) -> Cursor<O::Sample> {
        // The state may come from a loader with snapshots while this one has none.
        let snapshot = open_at.snapshot.as_ref().filter(|_| O::SNAPSHOTS);
        let position = snapshot.map_or_else(StreamPosition::default, |snapshot| snapshot.position);
        // Saturating: a faulty worker may have sent a snapshot that lies after the position.
        let skip = open_at.position.items.saturating_sub(position.items);
        let whole = Shard::new(self.layout.first_shard + shard, self.layout.all_shards);
        let cx = SampleContext::for_shard(self.worker.clone(), self.seed, epoch, whole)
            .with_memory(DatasetMemory::new(self.memory))
            .collated::<O::Dataset>(C::BY_TYPE);
        let wants_snapshot = Arc::new(AtomicBool::new(false));
        let snapshot = snapshot.map(|snapshot| snapshot.bytes.to_vec());
        let items = Arc::clone(&self.dataset).open(whole, cx, snapshot, skip, Arc::clone(&wants_snapshot));
        Cursor {
            items: Some(items),
            wants_snapshot,
            is_open: false,
            position,
            skip,
            target: open_at.position,
            after_failure: AfterFailure::Continues,
            batches: 0,
        }
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
        self.dataset.samples()
    }

    fn fingerprint(&self) -> String {
        self.dataset.fingerprint()
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

impl<S> fmt::Debug for Items<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Items").field(&self.0).finish()
    }
}
