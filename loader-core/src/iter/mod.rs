//! One epoch, batch by batch.

mod local;
mod team;
mod workers;

use std::{fmt, time::Instant};

use loader_ipc::pin::Pinner;

use crate::{
    batch_info::BatchInfo,
    error::Error,
    pinning,
    report::{BadSample, EpochReport, Stopwatch},
    state::{Origin, State},
    warning::{Warn, Warning},
};

pub(crate) use local::{BatchSource, LocalBatches, LocalShards, MapSource, ShardSource, StreamSource};
pub(crate) use team::{IdleTeam, Team};
pub(crate) use workers::WorkerIter;

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
    /// The dataset or its sampler said a wrong number of samples or batches, and the user has been warned.
    is_miscounted: bool,
    /// Most bad samples in the epoch.
    most_bad: u64,
    /// So many there were before this iterator was resumed.
    bad_before: u64,
    /// There were more than may be.
    is_ended: bool,
}

pub(crate) enum Inner<B> {
    Batches(LocalBatches<B>),
    Shards(LocalShards<B>),
    Workers(Box<WorkerIter<B>>),
}

/// A batch, or why there is none, with what is known of it. `None` for a batch whose samples were all left out.
pub(crate) type Step<B> = (Option<BatchInfo>, Result<Option<B>, Error>);

impl<B: crate::collate::Batch> Iter<B> {
    pub(crate) fn new(
        inner: Inner<B>,
        epoch: u64,
        started: Instant,
        origin: Origin,
        warn: Warn,
        pinner: Option<Pinner>,
        most_bad: u64,
    ) -> Self {
        let stopwatch = Stopwatch::start_at(epoch, started);
        let (last, is_miscounted, bad_before, is_ended) = (None, false, 0, false);
        Self { inner, stopwatch, last, origin, warn, pinner, is_miscounted, most_bad, bad_before, is_ended }
    }

    /// There were `bad_samples` in the epoch before.
    pub(crate) fn count_bad_from(&mut self, bad_samples: u64) {
        self.bad_before = bad_samples;
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
            Some(place) => {
                let bad_samples = self.bad_before.saturating_add(self.stopwatch.bad_samples());
                State::new(&self.origin, self.epoch(), bad_samples, place)
            }
            None => State::start(&self.origin, self.epoch().saturating_add(1)),
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
        let step = loop {
            let step = self.step();
            if let Some((Some(info), _)) = &step
                && !info.bad_samples.is_empty()
                && let Err(error) = self.count_bad_samples(&info.bad_samples)
            {
                break Some((None, Err(error)));
            }
            match step {
                Some((_, Ok(None))) => {}
                Some((info, Ok(Some(batch)))) => break Some((info, Ok(batch))),
                Some((info, Err(error))) => break Some((info, Err(error))),
                None => break None,
            }
        };
        pinning::tell_failure(self.pinner.as_ref(), &self.warn);
        self.check_batch_count();
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
        if self.is_ended {
            return (0, Some(0));
        }
        match &self.inner {
            Inner::Batches(iter) => iter.size_hint(),
            Inner::Shards(_) => (0, None),
            Inner::Workers(iter) => iter.size_hint(),
        }
    }
}

impl<B: crate::collate::Batch> Iter<B> {
    fn step(&mut self) -> Option<Step<B>> {
        match &mut self.inner {
            // Ended itself, with workers to wait for.
            Inner::Workers(iter) => iter.step(),
            _ if self.is_ended => None,
            Inner::Batches(iter) => iter.step(),
            Inner::Shards(iter) => iter.step(),
        }
    }

    /// Warns once when a batch sampler gives another number of batches than its `len` said.
    fn check_batch_count(&mut self) {
        let miscount = match &self.inner {
            Inner::Batches(iter) => iter.miscount(),
            Inner::Shards(_) => None,
            Inner::Workers(iter) => iter.miscount(),
        };
        if let Some((said, given)) = miscount
            && !std::mem::replace(&mut self.is_miscounted, true)
        {
            let epoch = self.stopwatch.epoch();
            self.warn.warn(&Warning::WrongBatchCount { epoch, said, given });
        }
    }

    /// Tells of a batch's bad samples; fails when they are too many in this epoch.
    fn count_bad_samples(&mut self, samples: &[BadSample]) -> Result<(), Error> {
        for sample in samples {
            self.warn.warn(&Warning::BadSample(sample.clone()));
        }
        let most = self.most_bad.saturating_sub(self.bad_before);
        let Some(sample) = self.stopwatch.note_bad(samples, most) else { return Ok(()) };
        let error = Error::TooManyBadSamples { most: self.most_bad, sample: Box::new(sample.clone()) };
        self.is_ended = true;
        if let Inner::Workers(iter) = &mut self.inner {
            iter.end();
        }
        Err(error)
    }
}

impl<B> Iter<B> {
    /// Warns, once, when an iterable dataset turns out longer than it said.
    fn check_length(&mut self) {
        let Some(said) = self.origin.samples else { return };
        let loaded = self.stopwatch.samples();
        if loaded > said as u64 && !std::mem::replace(&mut self.is_miscounted, true) {
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
