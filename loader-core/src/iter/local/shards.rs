//! Of an iterable dataset.

use std::{fmt, sync::Arc};

use loader_ipc::{arena::Arena, frame::Failure, heap::HeapPool};

use super::{
    super::{BatchInfo, Step, shards::Shards},
    once::OpenOnce,
};
use crate::{
    collate::Collate,
    error::Error,
    fetch::{
        Cursors, Iterable, NoBatch, NoWorkerInit, OpenShard, ShardBatch, ShardFetcher, ShardPlace, Unwatched,
    },
    state::Place,
};

/// Loads batches of type `B` in this process, one iteration at a time for each that begins.
pub(crate) trait ShardSource<B>: Send + Sync {
    fn begin(self: Arc<Self>, epoch: u64) -> Box<dyn ShardReader<B>>;
}

/// The shards of one iteration.
pub(crate) trait ShardReader<B>: Send {
    /// The next batch of a shard, which is opened at `place` if it is not open, and the place where it ends.
    fn batch(&mut self, shard: usize, place: &ShardPlace) -> (Result<ShardBatch<B>, NoBatch>, u64);

    /// True when a shard was ended by a panic.
    fn is_broken(&self, shard: usize) -> bool;
}

/// A dataset that is set up when the first batch is asked for, and shared by the loader's iterators.
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
    /// The dataset could not be set up, which the user knows.
    is_unfit: bool,
}

impl<O: OpenShard, C: Collate<O::Sample>> ShardReader<C::Batch> for Reader<O, C> {
    fn batch(&mut self, shard: usize, place: &ShardPlace) -> (Result<ShardBatch<C::Batch>, NoBatch>, u64) {
        let StreamSource { open, seed, memory } = &*self.source;
        let opened =
            open.get(|(iterable, collate)| ShardFetcher::open(iterable, collate, *seed, None, &NoWorkerInit));
        let fetcher = match opened {
            Ok(fetcher) => fetcher,
            Err(_) if self.is_unfit => return (Err(NoBatch::Exhausted), place.position),
            Err(failure) => {
                self.is_unfit = true;
                return (Err(NoBatch::Failed(failure)), place.position);
            }
        };
        let mut arena = Arena::on_heap(memory);
        let batch = fetcher.batch(&mut self.cursors, self.epoch, shard, place, &mut arena, &Unwatched);
        (batch, self.cursors.position(shard).max(place.position))
    }

    fn is_broken(&self, shard: usize) -> bool {
        self.cursors.is_broken(shard)
    }
}

/// The batches of one epoch: one of each shard in turn.
pub(crate) struct LocalShards<B> {
    reader: Box<dyn ShardReader<B>>,
    shards: Shards,
    /// Shards that may have more.
    open: Vec<bool>,
    /// The next batch, if somebody wanted to know whether there is one.
    upcoming: Option<Read<B>>,
}

/// What a shard gave.
struct Read<B> {
    shard: usize,
    position: u64,
    batch: Result<ShardBatch<B>, Failure>,
}

impl<B> LocalShards<B> {
    pub(crate) fn new(source: Arc<dyn ShardSource<B>>, shards: Shards) -> Self {
        let open = (0..shards.count()).map(|shard| !shards.place(shard).ended).collect();
        Self { reader: source.begin(shards.epoch()), shards, open, upcoming: None }
    }

    pub(in super::super) fn step(&mut self) -> Option<Step<B>> {
        let Read { shard, position, batch } = self.upcoming.take().or_else(|| self.read())?;
        let number = self.shards.returned();
        let (snapshot, batch) = match batch {
            Ok((snapshot, batch)) => (snapshot, Ok(batch)),
            Err(failure) => (None, Err(Error::from_failure(failure, number, None))),
        };
        let samples = self.shards.advance(shard, position, snapshot);
        if batch.is_err() && self.reader.is_broken(shard) {
            self.shards.end(shard);
        }
        Some((Some(BatchInfo::of_shard(number, shard, samples, None)), batch))
    }

    /// True when there is another batch; it is then loaded already.
    pub(in super::super) fn has_more(&mut self) -> bool {
        if self.upcoming.is_none() {
            self.upcoming = self.read();
        }
        self.upcoming.is_some()
    }

    fn read(&mut self) -> Option<Read<B>> {
        let count = self.open.len();
        let mut turn = self.shards.turn();
        loop {
            let shard = (0..count).map(|step| (turn + step) % count).find(|&shard| self.open[shard])?;
            let (batch, position) = self.reader.batch(shard, self.shards.place(shard));
            match batch {
                Ok(batch) => return Some(Read { shard, position, batch: Ok(batch) }),
                Err(NoBatch::Failed(failure)) => return Some(Read { shard, position, batch: Err(failure) }),
                Err(NoBatch::Exhausted | NoBatch::Unwanted) => {
                    self.open[shard] = false;
                    turn = (shard + 1) % count;
                }
            }
        }
    }

    /// Where the user stands; `None` when the end is known.
    pub(in super::super) fn place(&self) -> Option<Place> {
        let is_over = self.upcoming.is_none() && !self.open.contains(&true);
        (!is_over).then(|| Place::Shards(self.shards.write()))
    }
}

impl<O: OpenShard, C> fmt::Debug for StreamSource<O, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamSource").finish_non_exhaustive()
    }
}
