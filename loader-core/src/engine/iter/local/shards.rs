//! Loads the batches of an iterable dataset in this process.

use std::{fmt, sync::Arc};

use loader_ipc::{
    arena::Arena,
    frame::{self, AfterFailure, Failure, StreamPosition},
    heap::HeapPool,
    profile::{BatchTimer, OwnProfile, ProfileArea},
};

use super::{super::Step, digested, once::OpenOnce};
use crate::{
    data::{
        collate::Collate,
        fetch::{
            Cursors, Hashed, Iterable, LocalSink, NoBatch, OpenShard, ShardBatch, ShardFetcher, ShardPosition,
        },
        worker_init::NoWorkerInit,
    },
    engine::shards::Shards,
    error::Error,
    report::batch_info::BatchInfo,
    state::Position,
};

/// Loads batches of type `B` in this process. Each iteration has its own [`ShardReader`].
pub(crate) trait ShardSource<B>: Send + Sync {
    fn begin(self: Arc<Self>, epoch: u64) -> Box<dyn ShardReader<B>>;
}

/// Reads the shards for one iteration.
pub(crate) trait ShardReader<B>: Send {
    /// Loads the next batch of a shard. Opens the shard at `open_at` if it is not open.
    fn batch(&mut self, shard: usize, open_at: &ShardPosition, timer: BatchTimer<'_>) -> Loaded<B>;

    /// Returns what a failure, if [`batch`](Self::batch) has just returned one, means for the shard.
    fn after_failure(&self, shard: usize) -> AfterFailure;
}

/// What a [`ShardReader`] has loaded from a shard.
pub(crate) struct Loaded<B> {
    batch: Result<Hashed<ShardBatch<B>>, NoBatch>,
    /// Position in the shard at which the batch ends.
    position: StreamPosition,
    bad: Vec<frame::BadSampleRecord>,
}

/// An iterable dataset that is opened when the first batch is requested. The iterators of the loader share
/// it.
pub(crate) struct StreamSource<O: OpenShard, C> {
    open: OpenOnce<(Iterable<O>, C), ShardFetcher<O, C>>,
    seed: u64,
    memory: HeapPool,
}

impl<O: OpenShard, C> StreamSource<O, C> {
    pub(crate) fn new(iterable: Iterable<O>, collate: C, seed: u64, memory: HeapPool) -> Self {
        Self { open: OpenOnce::new((iterable, collate)), seed, memory }
    }
}

impl<O: OpenShard, C: Collate<O::Sample>> ShardSource<C::Batch> for StreamSource<O, C> {
    fn begin(self: Arc<Self>, epoch: u64) -> Box<dyn ShardReader<C::Batch>> {
        Box::new(Reader { source: self, cursors: Cursors::default(), epoch, is_unfit: false })
    }
}

struct Reader<O: OpenShard, C> {
    source: Arc<StreamSource<O, C>>,
    cursors: Cursors<O::Sample>,
    epoch: u64,
    /// True once the user has received the error that the dataset could not be opened.
    is_unfit: bool,
}

impl<O: OpenShard, C: Collate<O::Sample>> ShardReader<C::Batch> for Reader<O, C> {
    fn batch(&mut self, shard: usize, open_at: &ShardPosition, timer: BatchTimer<'_>) -> Loaded<C::Batch> {
        let not_opened = |batch| Loaded { batch: Err(batch), position: open_at.position, bad: Vec::new() };
        let StreamSource { open, seed, memory } = &*self.source;
        let opened =
            open.get(|(iterable, collate)| ShardFetcher::open(iterable, collate, *seed, None, &NoWorkerInit));
        let fetcher = match opened {
            Ok(fetcher) => fetcher,
            Err(_) if self.is_unfit => return not_opened(NoBatch::Exhausted),
            Err(failure) => {
                self.is_unfit = true;
                return not_opened(NoBatch::Failed(failure));
            }
        };
        let mut arena = Arena::on_heap(memory);
        let sink = LocalSink::new(&timer);
        let batch = fetcher.batch(&mut self.cursors, self.epoch, shard, open_at, &mut arena, &sink);
        let position = self.cursors.position(shard).or_later(open_at.position);
        let bad = if let Err(NoBatch::Failed(_)) = batch { Vec::new() } else { sink.into_bad() };
        if batch.is_ok() {
            timer.finish(position.items.saturating_sub(open_at.position.items));
        }
        Loaded { batch, position, bad }
    }

    fn after_failure(&self, shard: usize) -> AfterFailure {
        if self.is_unfit { AfterFailure::EndsForEpoch } else { self.cursors.after_failure(shard) }
    }
}

/// The batches of one epoch. The open shards take turns, one batch at a time.
pub(crate) struct LocalShards<B> {
    reader: Box<dyn ShardReader<B>>,
    shards: Shards,
    /// By shard: true if it may have more batches.
    open: Vec<bool>,
    profile: OwnProfile,
}

/// The next batch of a shard, or its failure.
struct Read<B> {
    shard: usize,
    position: StreamPosition,
    /// `None` if all samples of the batch were left out.
    batch: Result<Option<Hashed<ShardBatch<B>>>, Failure>,
    bad: Vec<frame::BadSampleRecord>,
}

impl<B> LocalShards<B> {
    pub(crate) fn new(source: Arc<dyn ShardSource<B>>, shards: Shards) -> Self {
        let open = (0..shards.count()).map(|shard| !shards.position(shard).ended).collect();
        let (reader, profile) = (source.begin(shards.epoch()), OwnProfile::default());
        Self { reader, shards, open, profile }
    }

    pub(in super::super) fn step(&mut self) -> Option<Step<B>> {
        let Read { shard, position, batch, bad } = self.read()?;
        let number = self.shards.returned();
        let (snapshot, batch) = match batch {
            Ok(Some((hashes, (snapshot, batch)))) => (snapshot, Ok(Some((hashes, batch)))),
            Ok(None) => (None, Ok(None)),
            Err(failure) => (None, Err(Error::from_failure(failure, number, None))),
        };
        let samples = self.shards.advance(shard, position, snapshot);
        let mut info = BatchInfo::of_shard(number, shard, samples, None, bad);
        if batch.is_err() {
            let after = self.reader.after_failure(shard);
            info.is_read_again = after == AfterFailure::EndsForEpoch;
            self.shards.failed(shard, after);
        }
        Some(digested(info, batch))
    }

    fn read(&mut self) -> Option<Read<B>> {
        let count = self.open.len();
        let mut turn = self.shards.turn();
        loop {
            let shard = (0..count).map(|step| (turn + step) % count).find(|&shard| self.open[shard])?;
            let (epoch, number) = (self.shards.epoch(), self.shards.returned());
            let timer = self.profile.area().start_batch(epoch, number, u32::try_from(shard).ok());
            let open_at = self.shards.position(shard);
            let Loaded { batch, position, bad } = self.reader.batch(shard, open_at, timer);
            let read = |batch, bad| Some(Read { shard, position, batch, bad });
            match batch {
                Ok(batch) => return read(Ok(Some(batch)), bad),
                Err(NoBatch::AllSamplesBad) => return read(Ok(None), bad),
                Err(NoBatch::Failed(failure)) => return read(Err(failure), bad),
                Err(NoBatch::Exhausted | NoBatch::Cancelled) => {
                    self.open[shard] = false;
                    turn = (shard + 1) % count;
                }
            }
        }
    }

    pub(in super::super) fn profile(&self) -> ProfileArea<'_> {
        self.profile.area()
    }

    /// Returns the user's position in the epoch, also at its end.
    pub(in super::super) fn position(&self) -> Position {
        Position::Shards(self.shards.write())
    }

    /// True if it is known that the epoch has no more batches, and that no part of it is left for a resumed run.
    pub(in super::super) fn is_over(&self) -> bool {
        !self.open.contains(&true) && !self.shards.has_unread_shard()
    }

    /// True if an error has ended a shard before its end.
    pub(in super::super) fn has_rest(&self) -> bool {
        self.shards.has_unread_shard()
    }
}

impl<O: OpenShard, C> fmt::Debug for StreamSource<O, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamSource").finish_non_exhaustive()
    }
}
