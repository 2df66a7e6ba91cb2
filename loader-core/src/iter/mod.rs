//! One epoch, batch by batch.

mod local;
mod rest;
mod shards;
mod supply;
mod workers;

use std::{fmt, time::Instant};

use loader_ipc::pin::Pinner;

use crate::{
    error::Error,
    pinning,
    report::{EpochReport, Stopwatch},
    state::{Origin, Place, State},
    warning::{Warn, Warning},
};

pub(crate) use local::{BatchSource, LocalBatches, LocalShards, MapSource, ShardSource, StreamSource};
pub(crate) use rest::Bench;
pub(crate) use shards::Shards;
pub(crate) use supply::Supply;
pub(crate) use workers::{Epochs, WorkerIter};

/// The batches of one epoch, in order (or as they arrive, with `in_order(false)`). Made by
/// [`DataLoader::iter`](crate::DataLoader::iter).
///
/// An `Err` loses its batch only, and the iterator goes on, unless [`Error::ends_iteration`]. After the end it stays at its end.
/// Dropping it ends its workers, within a deadline, or sends persistent ones home; batches that you hold stay valid.
///
/// With workers, [`next`](Iterator::next) waits for the next batch, for ever without `timeout`, but never for a worker that has
/// died. It must not be called from several threads at once, which its `&mut self` sees to; it may move between threads.
pub struct Iter<B> {
    inner: Inner<B>,
    stopwatch: Stopwatch,
    last: Option<BatchInfo>,
    origin: Origin,
    warn: Warn,
    /// Page-locks the batches' memory.
    pinner: Option<Pinner>,
    /// More samples came than the dataset said there are.
    is_too_long: bool,
}

pub(crate) enum Inner<B> {
    Batches(LocalBatches<B>),
    Shards(LocalShards<B>),
    Workers(Box<WorkerIter<B>>),
}

/// What is known of a batch beside its content.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct BatchInfo {
    /// Its number in the epoch, from 0.
    pub number: u64,
    /// The samples in it, in order; empty for an iterable dataset, whose samples have no index.
    pub indices: Vec<usize>,
    /// Number of samples in it.
    pub samples: usize,
    /// The shard of an iterable dataset that it is of, counted in this process.
    pub shard: Option<usize>,
    /// The worker that loaded it; `None` in the main process.
    pub worker: Option<usize>,
}

impl BatchInfo {
    pub(crate) fn of_indices(number: u64, indices: Vec<usize>, worker: Option<usize>) -> Self {
        Self { number, samples: indices.len(), indices, shard: None, worker }
    }

    pub(crate) fn of_shard(number: u64, shard: usize, samples: u64, worker: Option<usize>) -> Self {
        let samples = usize::try_from(samples).unwrap_or(usize::MAX);
        Self { number, indices: Vec::new(), samples, shard: Some(shard), worker }
    }
}

/// A batch, or why there is none, with what is known of it.
pub(crate) type Step<B> = (Option<BatchInfo>, Result<B, Error>);

impl<B: crate::collate::Batch> Iter<B> {
    pub(crate) fn new(
        inner: Inner<B>,
        epoch: u64,
        started: Instant,
        origin: Origin,
        warn: Warn,
        pinner: Option<Pinner>,
    ) -> Self {
        let stopwatch = Stopwatch::start_at(epoch, started);
        Self { inner, stopwatch, last: None, origin, warn, pinner, is_too_long: false }
    }

    /// Where you stand: behind the batch that `next` returned last, whatever has been loaded ahead. Give it to
    /// [`DataLoader::resume`](crate::DataLoader::resume) to go on from there, in this process or another, with any number of workers.
    ///
    /// It costs no more than to copy it. It is exact; a batch that failed counts as returned. Of an iterable dataset see
    /// [`SnapshotDataset`](crate::SnapshotDataset) for what going on costs.
    pub fn state(&self) -> State {
        let place = match &self.inner {
            Inner::Batches(iter) => iter.place(),
            Inner::Shards(iter) => iter.place(),
            Inner::Workers(iter) => iter.place(),
        };
        match place {
            Some(place) => State::new(self.origin, self.epoch(), place),
            None => State::new(self.origin, self.epoch().saturating_add(1), Place::Start),
        }
    }

    /// False when it is already over. Waits for the next batch.
    pub(crate) fn has_more(&mut self) -> Result<bool, Error> {
        match &mut self.inner {
            Inner::Batches(iter) => Ok(iter.place().is_some()),
            Inner::Shards(iter) => Ok(iter.has_more()),
            Inner::Workers(iter) => iter.wait(),
        }
    }

    /// The epoch that is being loaded.
    pub fn epoch(&self) -> u64 {
        self.stopwatch.epoch()
    }

    /// What is known of the batch that `next` returned last; `None` before the first one and after an error that is of no batch.
    pub fn last_batch(&self) -> Option<&BatchInfo> {
        self.last.as_ref()
    }

    /// Process ids of the workers, by their number; empty without workers. A worker that dies and is replaced gets another one.
    pub fn worker_pids(&self) -> Vec<u32> {
        match &self.inner {
            Inner::Batches(_) | Inner::Shards(_) => Vec::new(),
            Inner::Workers(iter) => iter.pids(),
        }
    }

    /// The figures so far: batches, samples, time spent waiting, and whether the loader or the training step is the bottleneck.
    pub fn report(&self) -> EpochReport {
        let mut report = self.stopwatch.report();
        if let Inner::Workers(iter) = &self.inner {
            report.workers = iter.worker_reports();
            report.restarts = iter.restarts();
            report.shared_memory_bytes = iter.shared_memory_bytes();
        }
        report
    }
}

impl<B: crate::collate::Batch> Iterator for Iter<B> {
    type Item = Result<B, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        let asked = Instant::now();
        let step = match &mut self.inner {
            Inner::Batches(iter) => iter.step(),
            Inner::Shards(iter) => iter.step(),
            Inner::Workers(iter) => iter.step(),
        };
        pinning::tell_failure(self.pinner.as_ref(), &self.warn);
        let Some((info, batch)) = step else {
            self.stopwatch.ended(asked);
            return None;
        };
        let samples = info.as_ref().filter(|_| batch.is_ok()).map(|info| info.samples);
        self.stopwatch.waited(asked, samples);
        if info.as_ref().is_some_and(|info| info.shard.is_some()) {
            self.check_length();
        }
        self.last = info;
        Some(batch)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        match &self.inner {
            Inner::Batches(iter) => iter.size_hint(),
            Inner::Shards(_) => (0, None),
            Inner::Workers(iter) => iter.size_hint(),
        }
    }
}

impl<B> Iter<B> {
    /// Warns, once, when an iterable dataset turns out longer than it said.
    fn check_length(&mut self) {
        let Some(said) = self.origin.samples else { return };
        let loaded = self.stopwatch.samples();
        if loaded > said as u64 && !std::mem::replace(&mut self.is_too_long, true) {
            self.warn.warn(&Warning::LongerThanSaid { said, loaded });
        }
    }
}

impl<B: crate::collate::Batch> std::iter::FusedIterator for Iter<B> {}

impl<B> fmt::Debug for Iter<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Iter")
            .field("epoch", &self.stopwatch.epoch())
            .field("last", &self.last)
            .finish_non_exhaustive()
    }
}
