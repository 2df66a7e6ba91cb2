//! Batches of an iterable dataset, shard by shard.

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

use anyhow::Context as _;
use loader_ipc::{
    arena::Arena,
    codec,
    control::WorkerState,
    frame::{BadSample, Failure, MOST_BAD_SAMPLES, Stage},
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::{DatasetKind, Fetch, Loaded, NoBatch, Watch, Work, WorkerInit, collate_error, push, set_up};
use crate::{
    collate::{Collate, Stack},
    context::{Context, WorkerInfo},
    dataset::{IterableDataset, NotOpened, Shard, SnapshotDataset, SnapshotIterator, generator::Generator},
    options::OnBadSample,
    panic::{error_to_failure, forget_backtrace, to_failure},
};

/// An iterable dataset and how it is cut: what it is sent to workers as.
#[derive(Debug, Serialize, Deserialize)]
pub struct Iterable<O> {
    pub(crate) dataset: O,
    /// Nothing yet while the loader is put together.
    pub(crate) cut: Cut,
    /// Batches from one snapshot to the next.
    pub(crate) snapshot_every: u64,
    pub(crate) on_bad_sample: OnBadSample,
}

/// How an iterable dataset is cut into batches.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Cut {
    /// Shards that this process reads.
    pub(crate) shards: usize,
    /// The first of them among those of all processes.
    pub(crate) first_shard: usize,
    pub(crate) all_shards: usize,
    pub(crate) batch_size: usize,
    pub(crate) drop_last: bool,
}

impl Cut {
    /// Max number of items that a batch takes from its shard: the samples, and the bad ones that it may leave out.
    pub(crate) fn max_items(&self) -> usize {
        self.batch_size.saturating_add(MOST_BAD_SAMPLES)
    }
}

/// An iterable dataset, opened with snapshots or without.
pub trait OpenShard: Serialize + DeserializeOwned + Send + Sync + 'static {
    /// One sample.
    type Sample: Send + 'static;

    /// Whether it writes snapshots, and opens a shard at one.
    const SNAPSHOTS: bool;

    /// Number of samples, if it is known.
    fn samples(&self) -> Option<usize>;

    /// The dataset's fingerprint.
    fn fingerprint(&self) -> String;

    /// Sets the dataset up.
    ///
    /// # Errors
    /// Its own.
    fn setup(&mut self, cx: &mut Context) -> anyhow::Result<()>;

    /// Opens a shard at a snapshot, and passes over the `skip` items behind it if it can do that without
    /// reading them. While the flag is up, each item comes with a snapshot.
    #[doc(hidden)]
    fn open(
        self: Arc<Self>,
        shard: Shard,
        cx: Context,
        snapshot: Option<Vec<u8>>,
        skip: u64,
        wants_snapshot: Arc<AtomicBool>,
    ) -> Items<Self::Sample>;
}

/// A dataset that is resumed by passing over what comes before.
#[derive(Debug, Serialize, Deserialize)]
pub struct Plain<D>(pub(crate) D);

/// A dataset that is resumed from its own snapshots.
#[derive(Debug, Serialize, Deserialize)]
pub struct Snapshots<D>(pub(crate) D);

/// An open shard.
#[doc(hidden)]
pub struct Items<S>(Generator<'static, Given<S>>);

/// What an open shard gives.
enum Given<S> {
    /// The shard is open, this many items behind the snapshot. Errors from now on belong to its samples.
    Opened { skipped: u64 },
    /// A sample, and the snapshot behind it if it was asked for and the dataset has any.
    Item(anyhow::Result<S>, Option<Vec<u8>>),
    /// It cannot be opened.
    NotOpen(anyhow::Error),
}

impl<D: IterableDataset> OpenShard for Plain<D> {
    type Sample = D::Sample;

    const SNAPSHOTS: bool = false;

    fn samples(&self) -> Option<usize> {
        self.0.len()
    }

    fn fingerprint(&self) -> String {
        self.0.fingerprint()
    }

    fn setup(&mut self, cx: &mut Context) -> anyhow::Result<()> {
        self.0.setup(cx)
    }

    fn open(
        self: Arc<Self>,
        shard: Shard,
        mut cx: Context,
        _snapshot: Option<Vec<u8>>,
        skip: u64,
        _wants_snapshot: Arc<AtomicBool>,
    ) -> Items<D::Sample> {
        Items(Generator::new(move |giver| async move {
            if skip > 0 {
                match self.0.iter_at(shard, skip, &mut cx) {
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
    type Sample = D::Sample;

    const SNAPSHOTS: bool = true;

    fn samples(&self) -> Option<usize> {
        self.0.len()
    }

    fn fingerprint(&self) -> String {
        self.0.fingerprint()
    }

    fn setup(&mut self, cx: &mut Context) -> anyhow::Result<()> {
        self.0.setup(cx)
    }

    fn open(
        self: Arc<Self>,
        shard: Shard,
        mut cx: Context,
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
                // Relaxed: both sides are the same thread.
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

/// Where a shard is read from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ShardPlace {
    /// Items taken.
    pub position: u64,
    /// The last snapshot before that.
    pub snapshot: Option<Snapshot>,
    /// There is nothing behind it.
    pub ended: bool,
}

/// What an iterator wrote down.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// Items taken when it was written.
    pub position: u64,
    /// What it wrote.
    pub bytes: Vec<u8>,
}

impl ShardPlace {
    /// Items to pass over behind the snapshot.
    pub(crate) fn skip(&self) -> u64 {
        // A snapshot behind the place can come from a worker that cannot be trusted only.
        self.position.saturating_sub(self.snapshot.as_ref().map_or(0, |snapshot| snapshot.position))
    }
}

/// A batch of a shard, and the snapshot behind its last sample.
pub(crate) type ShardBatch<B> = (Option<Vec<u8>>, B);

/// The shards that are open.
pub(crate) struct Cursors<S>(BTreeMap<usize, Cursor<S>>);

struct Cursor<S> {
    /// `None` at the end.
    items: Option<Items<S>>,
    wants_snapshot: Arc<AtomicBool>,
    is_open: bool,
    /// Items taken.
    position: u64,
    /// Items to pass over.
    skip: u64,
    /// Ended by a panic: whoever resumes behind it must not go on either.
    is_broken: bool,
    /// Batches since the last snapshot.
    batches: u64,
}

impl<S> Default for Cursors<S> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<S> Cursors<S> {
    /// Items taken from a shard so far, those included that are still to be passed over; 0 if it is not open.
    pub(crate) fn position(&self, shard: usize) -> u64 {
        self.0.get(&shard).map_or(0, |cursor| cursor.position.saturating_add(cursor.skip))
    }

    /// True when a shard was ended by a panic. One that could not be opened was not: it is tried again by whoever resumes.
    pub(crate) fn is_broken(&self, shard: usize) -> bool {
        self.0.get(&shard).is_some_and(|cursor| cursor.is_broken)
    }
}

/// An iterable dataset and its collation, set up in one process.
#[derive(Debug)]
pub(crate) struct ShardFetcher<O, C> {
    dataset: Arc<O>,
    cut: Cut,
    snapshot_every: u64,
    on_bad_sample: OnBadSample,
    collate: C,
    seed: u64,
    worker: Option<WorkerInfo>,
}

impl<O: OpenShard, C: Collate<O::Sample>> ShardFetcher<O, C> {
    /// Sets the dataset up and runs the worker's hook.
    pub(crate) fn open(
        iterable: Iterable<O>,
        collate: C,
        seed: u64,
        worker: Option<WorkerInfo>,
        hook: &impl WorkerInit,
    ) -> Result<Self, Failure> {
        let Iterable { mut dataset, cut, snapshot_every, on_bad_sample } = iterable;
        set_up(|cx| dataset.setup(cx), seed, worker.as_ref(), hook)?;
        Ok(Self { dataset: Arc::new(dataset), cut, snapshot_every, on_bad_sample, collate, seed, worker })
    }

    /// Loads the next batch of `shard`, which is opened at `place` if it is not open. After a panic the shard is over.
    pub(crate) fn batch(
        &self,
        cursors: &mut Cursors<O::Sample>,
        epoch: u64,
        shard: usize,
        place: &ShardPlace,
        arena: &mut Arena,
        watch: &(impl Watch + ?Sized),
    ) -> Result<ShardBatch<C::Batch>, NoBatch> {
        let at = Cell::new((Stage::Open, None));
        forget_backtrace();
        let load = AssertUnwindSafe(|| self.load(cursors, epoch, shard, place, arena, watch, &at));
        catch_unwind(load).unwrap_or_else(|payload| {
            let items = cursors.0.get_mut(&shard).and_then(|cursor| {
                // Before that it has not come to its place: whoever resumes tries again.
                cursor.is_broken = cursor.is_open && cursor.skip == 0;
                cursor.items.take()
            });
            // Destructors are user code too, and one panic is enough.
            drop(catch_unwind(AssertUnwindSafe(|| drop(items))));
            let (stage, index) = at.get();
            Err(NoBatch::Failed(to_failure(&*payload, stage, index)))
        })
    }

    #[allow(clippy::too_many_arguments)] // those of `batch`, and where it is
    fn load(
        &self,
        cursors: &mut Cursors<O::Sample>,
        epoch: u64,
        shard: usize,
        place: &ShardPlace,
        arena: &mut Arena,
        watch: &(impl Watch + ?Sized),
        at: &Cell<(Stage, Option<u64>)>,
    ) -> Result<ShardBatch<C::Batch>, NoBatch> {
        let failed = |error: &anyhow::Error| {
            let (stage, index) = at.get();
            NoBatch::Failed(error_to_failure(error, stage, index))
        };
        let cursor = cursors.0.entry(shard).or_insert_with(|| self.cursor(epoch, shard, place));
        if let (Some(items), false) = (&mut cursor.items, cursor.is_open) {
            // The control page shows where reading begins, which may be before the batch.
            watch.progress(WorkerState::Fetching, usize::try_from(cursor.position).unwrap_or(usize::MAX));
            match items.0.next() {
                Some(Given::NotOpen(error)) => {
                    cursor.items = None;
                    return Err(failed(&error.context(format!("opening shard {shard}"))));
                }
                Some(Given::Opened { skipped }) => {
                    cursor.position = cursor.position.saturating_add(skipped);
                    cursor.skip = cursor.skip.saturating_sub(skipped);
                }
                _ => {}
            }
            cursor.is_open = true;
        }
        let place = cursor.position.saturating_add(cursor.skip);
        let Cut { batch_size, drop_last, .. } = self.cut;
        let mut stack = self.collate.stack(batch_size);
        let (mut count, mut bad, mut snapshot, mut misfit) = (0, 0, None, None);
        // A batch with too many bad samples is left out: reading on would only lose more good ones.
        while count < batch_size && bad <= MOST_BAD_SAMPLES {
            if !watch.progress(WorkerState::Fetching, usize::try_from(cursor.position).unwrap_or(usize::MAX))
            {
                return Err(NoBatch::Unwanted);
            }
            let ends_batch = cursor.skip == 0 && count + 1 == batch_size;
            let is_due = ends_batch && cursor.batches + 1 >= self.snapshot_every;
            // Relaxed: both sides are the same thread.
            cursor.wants_snapshot.store(is_due, Ordering::Relaxed);
            let Some(items) = &mut cursor.items else { break };
            let index = Some(cursor.position);
            at.set((Stage::Fetch, index));
            let item = match items.0.next() {
                Some(Given::Item(item, written)) => {
                    snapshot = written;
                    item
                }
                _ => {
                    cursor.items = None;
                    break;
                }
            };
            if let Err(error) = &item
                && error.is::<NotOpened>()
            {
                // The shard is over for now and keeps the place at which the batch begins: a resumed run opens the stream again.
                (cursor.items, cursor.position, cursor.skip) = (None, place, 0);
                return Err(failed(error));
            }
            cursor.position = cursor.position.saturating_add(1);
            if cursor.skip > 0 {
                // Its error was reported when it was read first.
                cursor.skip -= 1;
                continue;
            }
            let sample = match (item, self.on_bad_sample) {
                (Ok(sample), _) => sample,
                (Err(error), OnBadSample::Error) => return Err(failed(&error)),
                (Err(error), _) => {
                    bad += 1;
                    let (place, index) = (count as u32, cursor.position - 1);
                    watch.bad(BadSample { place, index, replaced_by: None, reason: format!("{error:#}") });
                    continue;
                }
            };
            count += 1;
            if misfit.is_some() {
                continue;
            }
            at.set((Stage::Collate, index));
            // The batch is read to its end all the same, so that the next one begins where it would have.
            misfit = push(&mut stack, sample, arena).err().map(|error| failed(&error));
        }
        if bad > MOST_BAD_SAMPLES {
            return Err(NoBatch::LeftOut);
        }
        if count == 0 || (count < batch_size && drop_last) {
            // What was bad is to be told before the end.
            return Err(if bad > 0 { NoBatch::LeftOut } else { NoBatch::Exhausted });
        }
        if let Some(failed) = misfit {
            return Err(failed);
        }
        cursor.batches = if snapshot.is_some() { 0 } else { cursor.batches + 1 };
        at.set((Stage::Collate, None));
        watch.progress(WorkerState::Collating, usize::try_from(cursor.position).unwrap_or(usize::MAX));
        let batch = arena.within(|| stack.finish()).map_err(|error| failed(&collate_error(error)))?;
        Ok((snapshot, batch))
    }

    fn cursor(&self, epoch: u64, shard: usize, place: &ShardPlace) -> Cursor<O::Sample> {
        // A dataset without snapshots does not understand those of a loader that had them.
        let snapshot = place.snapshot.as_ref().filter(|_| O::SNAPSHOTS);
        let position = snapshot.map_or(0, |snapshot| snapshot.position);
        let skip = place.position.saturating_sub(position);
        let whole = Shard::new(self.cut.first_shard + shard, self.cut.all_shards);
        let cx = Context::for_shard(self.worker.clone(), self.seed, epoch, whole);
        let wants_snapshot = Arc::new(AtomicBool::new(false));
        let snapshot = snapshot.map(|snapshot| snapshot.bytes.clone());
        let items = Arc::clone(&self.dataset).open(whole, cx, snapshot, skip, Arc::clone(&wants_snapshot));
        Cursor {
            items: Some(items),
            wants_snapshot,
            is_open: false,
            position,
            skip,
            is_broken: false,
            batches: 0,
        }
    }
}

/// In a worker.
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

    fn set_on_bad_sample(&mut self, on_bad_sample: OnBadSample) {
        self.on_bad_sample = on_bad_sample;
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
        work: &Work,
        arena: &mut Arena,
        watch: &dyn Watch,
    ) -> Result<Box<dyn Loaded>, NoBatch> {
        let Work::NextOf { shard, place } = work else { unreachable!("an iterable dataset has no indices") };
        let batch = self.fetcher.batch(&mut self.cursors, epoch, *shard, place, arena, watch)?;
        Ok(Box::new(batch))
    }

    fn position(&self, shard: usize) -> u64 {
        self.cursors.position(shard)
    }

    fn is_broken(&self, shard: usize) -> bool {
        self.cursors.is_broken(shard)
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
