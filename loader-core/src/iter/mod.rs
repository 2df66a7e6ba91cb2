//! One epoch, batch by batch.

mod local;
mod workers;

use std::{fmt, time::Instant};

use crate::{
    error::Error,
    report::{EpochReport, Stopwatch},
};

pub(crate) use local::{LocalIter, LocalSource, Source};
pub(crate) use workers::{Epochs, WorkerIter};

/// The batches of one epoch, in order (or as they arrive, with `in_order(false)`). Made by
/// [`DataLoader::iter`](crate::DataLoader::iter).
///
/// An `Err` loses its batch only, and the iterator goes on, unless [`Error::ends_iteration`]. After the end it stays at its end.
/// Dropping it ends its workers, within a deadline; batches that you hold stay valid.
///
/// With workers, [`next`](Iterator::next) waits for the next batch, for ever without `timeout`, but never for a worker that has
/// died. It must not be called from several threads at once, which its `&mut self` sees to; it may move between threads.
pub struct Iter<B> {
    inner: Inner<B>,
    stopwatch: Stopwatch,
    last: Option<BatchInfo>,
}

enum Inner<B> {
    Local(LocalIter<B>),
    Workers(Box<WorkerIter<B>>),
}

/// What is known of a batch beside its content.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct BatchInfo {
    /// Its number in the epoch, from 0.
    pub number: u64,
    /// The samples in it, in order.
    pub indices: Vec<usize>,
    /// The worker that loaded it; `None` in the main process.
    pub worker: Option<usize>,
}

/// A batch, or why there is none, with what is known of it.
pub(crate) type Step<B> = (Option<BatchInfo>, Result<B, Error>);

impl<B: crate::collate::Batch> Iter<B> {
    pub(crate) fn local(iter: LocalIter<B>, epoch: u64) -> Self {
        Self { inner: Inner::Local(iter), stopwatch: Stopwatch::start(epoch), last: None }
    }

    pub(crate) fn workers(iter: WorkerIter<B>, epoch: u64, started: Instant) -> Self {
        let stopwatch = Stopwatch::start_at(epoch, started);
        Self { inner: Inner::Workers(Box::new(iter)), stopwatch, last: None }
    }

    /// The epoch that is being loaded.
    pub fn epoch(&self) -> u64 {
        self.stopwatch.epoch()
    }

    /// What is known of the batch that `next` returned last; `None` before the first one and after an error that is of no batch.
    pub fn last_batch(&self) -> Option<&BatchInfo> {
        self.last.as_ref()
    }

    /// Process ids of the workers, by their number; empty without workers.
    pub fn worker_pids(&self) -> Vec<u32> {
        match &self.inner {
            Inner::Local(_) => Vec::new(),
            Inner::Workers(iter) => iter.pids(),
        }
    }

    /// The figures so far: batches, samples, time spent waiting, and whether the loader or the training step is the bottleneck.
    pub fn report(&self) -> EpochReport {
        let mut report = self.stopwatch.report();
        if let Inner::Workers(iter) = &self.inner {
            report.workers = iter.worker_reports();
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
            Inner::Local(iter) => iter.step(),
            Inner::Workers(iter) => iter.step(),
        };
        let Some((info, batch)) = step else {
            self.stopwatch.ended(asked);
            return None;
        };
        let samples = info.as_ref().filter(|_| batch.is_ok()).map(|info| info.indices.len());
        self.stopwatch.waited(asked, samples);
        self.last = info;
        Some(batch)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        match &self.inner {
            Inner::Local(iter) => iter.size_hint(),
            Inner::Workers(iter) => iter.size_hint(),
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
