//! Statistics of a loader, which any thread can read at any time.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use loader_ipc::{
    control::{ControlPage, WorkerSnapshot, WorkerState},
    profile::{Profile, nanos},
};

use crate::{
    data::collate::fill::Fill,
    report::{
        batch_info::BatchInfo,
        load_times::{LoadTimes, PhaseTimes},
        warning::{Warn, Warning},
    },
};

/// Statistics of a loader from [`DataLoader::stats`](crate::DataLoader::stats): since `build()`, over all epochs and
/// iterators, except `workers` and `times`, which begin with the workers of the newest iterator.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LoaderStats {
    /// Number of epochs begun.
    pub epochs: u64,
    /// Number of batches returned, without errors.
    pub batches: u64,
    /// Number of samples in these batches.
    pub samples: u64,
    /// Number of bytes of shared memory that these batches took; 0 without workers.
    pub bytes: u64,
    /// Number of tokens of these batches without and with padding, as in
    /// [`EpochReport::fill`](crate::EpochReport::fill); `None` if no batch is counted.
    pub fill: Option<Fill>,
    /// Number of errors returned.
    pub errors: u64,
    /// Time that the program has waited in `next`, with the current call and the first batch of each epoch.
    pub waiting: Duration,
    /// Number of workers that ended and were replaced.
    pub restarts: u64,
    /// Number of samples that were skipped or replaced.
    pub bad_samples: u64,
    /// Number of batches that were ready when each iterator [counted](crate::ReadyBatches) them last. If several
    /// iterators load at a time, their sum.
    pub ready_batches: u64,
    /// Bytes of shared memory that the loader had for batches when `ready_batches` was counted last.
    pub shared_memory_bytes: u64,
    /// Statistics of each worker of the pool of the newest iterator that loads, or that loaded last, by its number,
    /// with workers that are parked; empty without workers, and after the pool has ended.
    pub workers: Vec<WorkerStats>,
    /// What these workers have measured since the pool was started. `slowest` has only samples of the epoch that they
    /// load. Without values if `workers` is empty.
    pub times: LoadTimes,
}

/// Statistics of a worker since its pool was started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct WorkerStats {
    /// What the worker is doing.
    pub state: WorkerState,
    /// Time in this state on the current sample, within some milliseconds.
    pub age: Duration,
    /// Number of the batch on which it works. Meaningless if it is starting or idle.
    pub batch: u64,
    /// Index of the sample that it loads. For an iterable dataset, its position in the shard. Meaningful only
    /// if `state` is [`WorkerState::Fetching`].
    pub index: usize,
    /// Number of batches loaded.
    pub batches: u64,
    /// Number of samples loaded.
    pub samples: u64,
    /// Time spent loading batches.
    pub busy: Duration,
    /// Time of each phase, in the profiled batches; see [`LoadTimes`].
    pub phases: PhaseTimes,
}

/// Reads the statistics of a loader on a thread that the loader need not outlive, from
/// [`DataLoader::stats_reader`](crate::DataLoader::stats_reader).
#[derive(Debug, Clone)]
pub struct StatsReader(pub(crate) Arc<SharedStats>);

impl StatsReader {
    /// Returns the statistics, also after the loader was dropped.
    pub fn read(&self) -> LoaderStats {
        self.0.read()
    }
}

/// The statistics, which iterators write. All accesses are relaxed, because no other memory depends on a value.
#[derive(Debug)]
pub(crate) struct SharedStats {
    built: Instant,
    epochs: AtomicU64,
    batches: AtomicU64,
    samples: AtomicU64,
    bytes: AtomicU64,
    fill: Mutex<Option<Fill>>,
    errors: AtomicU64,
    waiting_nanos: AtomicU64,
    /// Nanoseconds from `built` to the current call of `next`; 0 outside of `next`. With several iterators at
    /// a time, the call that began last.
    in_next_since: AtomicU64,
    /// Maximum of the nanoseconds of waiting that were read. A counter of Prometheus must not fall.
    shown_waiting: AtomicU64,
    restarts: AtomicU64,
    bad_samples: AtomicU64,
    /// The iterators that load.
    iterators: Mutex<Vec<Weak<IterStats>>>,
    workers: Mutex<PublishedWorkers>,
}

/// What the statistics say of one iterator until its epoch ends or it is dropped. All accesses are relaxed, because no
/// other memory depends on a value.
#[derive(Debug, Default)]
pub(crate) struct IterStats {
    /// Number of epochs that were begun before this one.
    number: u64,
    ready_batches: AtomicU64,
    shared_memory_bytes: AtomicU64,
}

impl IterStats {
    /// Stores the number of ready batches, and the bytes of shared memory that the loader has for batches.
    pub(crate) fn set_ready(&self, batches: u64, shared_memory_bytes: u64) {
        self.ready_batches.store(batches, Ordering::Relaxed);
        self.shared_memory_bytes.store(shared_memory_bytes, Ordering::Relaxed);
    }
}

impl Default for SharedStats {
    fn default() -> Self {
        Self {
            built: Instant::now(),
            epochs: AtomicU64::new(0),
            batches: AtomicU64::new(0),
            samples: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            fill: Mutex::default(),
            errors: AtomicU64::new(0),
            waiting_nanos: AtomicU64::new(0),
            in_next_since: AtomicU64::new(0),
            shown_waiting: AtomicU64::new(0),
            restarts: AtomicU64::new(0),
            bad_samples: AtomicU64::new(0),
            iterators: Mutex::default(),
            workers: Mutex::default(),
        }
    }
}

impl SharedStats {
    pub(crate) fn read(&self) -> LoaderStats {
        let load = |value: &AtomicU64| value.load(Ordering::Relaxed);
        let (workers, times) = self.workers.lock().unwrap_or_else(PoisonError::into_inner).clone().read();
        let iterators: Vec<_> = self.iterators().iter().filter_map(Weak::upgrade).collect();
        LoaderStats {
            epochs: load(&self.epochs),
            batches: load(&self.batches),
            samples: load(&self.samples),
            bytes: load(&self.bytes),
            fill: *self.fill(),
            errors: load(&self.errors),
            waiting: Duration::from_nanos(self.waiting()),
            restarts: load(&self.restarts),
            bad_samples: load(&self.bad_samples),
            ready_batches: iterators.iter().map(|iterator| load(&iterator.ready_batches)).sum(),
            // The iterators of a loader share its memory, so each of them has stored the bytes of all.
            shared_memory_bytes: iterators
                .iter()
                .map(|iterator| load(&iterator.shared_memory_bytes))
                .max()
                .unwrap_or(0),
            workers,
            times,
        }
    }

    /// Returns the nanoseconds that the program has waited, with the current call of `next`. Never less than
    /// before.
    fn waiting(&self) -> u64 {
        let since = self.in_next_since.load(Ordering::Relaxed);
        // Acquire: pairs with the release of `next_ends`, so that a call whose time is in the sum is seen to
        // have ended.
        let ended = self.waiting_nanos.load(Ordering::Acquire);
        let is_same_call = since != 0 && self.in_next_since.load(Ordering::Relaxed) == since;
        let current = if is_same_call { self.nanos_at(Instant::now()).saturating_sub(since) } else { 0 };
        let waiting = ended.saturating_add(current);
        self.shown_waiting.fetch_max(waiting, Ordering::Relaxed).max(waiting)
    }

    /// Returns a `Warn` that also counts replaced workers and bad samples.
    pub(crate) fn watch(self: &Arc<Self>, warn: Warn) -> Warn {
        let stats = Arc::clone(self);
        Warn::with(move |warning| {
            match warning {
                Warning::WorkerReplaced { .. } => add(&stats.restarts, 1),
                Warning::BadSample(_) => add(&stats.bad_samples, 1),
                _ => {}
            }
            warn.warn(warning);
        })
    }

    /// Notes that an iterator begins. The statistics have its values until the returned ones are dropped.
    pub(crate) fn epoch_begins(&self) -> Arc<IterStats> {
        let number = self.epochs.fetch_add(1, Ordering::Relaxed);
        let iterator = Arc::new(IterStats { number, ..IterStats::default() });
        let mut iterators = self.iterators();
        iterators.retain(|other| other.strong_count() > 0);
        iterators.push(Arc::downgrade(&iterator));
        iterator
    }

    fn iterators(&self) -> MutexGuard<'_, Vec<Weak<IterStats>>> {
        self.iterators.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes the first `count` workers of `page`, with which `iterator` loads `epoch`, unless a newer iterator that
    /// still loads has noted its workers.
    pub(crate) fn set_workers(
        &self,
        iterator: &Arc<IterStats>,
        page: &Arc<ControlPage>,
        count: usize,
        epoch: u64,
    ) {
        let mut workers = self.workers.lock().unwrap_or_else(PoisonError::into_inner);
        if workers.iterator.upgrade().is_none_or(|current| current.number <= iterator.number) {
            let iterator = Arc::downgrade(iterator);
            *workers = PublishedWorkers { iterator, page: Arc::downgrade(page), count, epoch };
        }
    }

    /// Notes that the program calls `next` at `asked`.
    pub(crate) fn next_begins(&self, asked: Instant) {
        self.in_next_since.store(self.nanos_at(asked).max(1), Ordering::Relaxed);
    }

    /// Notes that `next`, called at `asked`, returns `now`: a batch, an error (`Some(None)`), or the end (`None`).
    pub(crate) fn next_ends(&self, asked: Instant, now: Instant, returned: Option<Option<&BatchInfo>>) {
        self.in_next_since.store(0, Ordering::Relaxed);
        // Release: who sees this sum sees that the call has ended.
        self.waiting_nanos
            .fetch_add(self.nanos_at(now).saturating_sub(self.nanos_at(asked)), Ordering::Release);
        match returned {
            Some(Some(batch)) => {
                add(&self.batches, 1);
                add(&self.samples, batch.samples as u64);
                add(&self.bytes, batch.bytes);
            }
            Some(None) => add(&self.errors, 1),
            None => {}
        }
    }

    /// Adds the fill of a batch that the program gets.
    pub(crate) fn add_fill(&self, fill: Fill) {
        let mut all = self.fill();
        *all = Some(all.unwrap_or_default() + fill);
    }

    fn fill(&self) -> MutexGuard<'_, Option<Fill>> {
        self.fill.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn nanos_at(&self, instant: Instant) -> u64 {
        nanos(instant.saturating_duration_since(self.built))
    }
}

/// Workers of an iterator, whose areas on the control page are reserved.
#[derive(Debug, Clone, Default)]
struct PublishedWorkers {
    iterator: Weak<IterStats>,
    page: Weak<ControlPage>,
    count: usize,
    /// Number of the epoch that they load.
    epoch: u64,
}

impl PublishedWorkers {
    /// Returns the statistics of each worker, and the times of all of them.
    fn read(&self) -> (Vec<WorkerStats>, LoadTimes) {
        let Some(page) = self.page.upgrade() else { return Default::default() };
        let profiles: Vec<_> = (0..self.count).map(|worker| page.area_of(worker).read()).collect();
        let stats = profiles.iter().enumerate();
        let stats = stats.map(|(worker, profile)| WorkerStats::new(&page.read(worker), profile)).collect();
        let slowest = (0..self.count).flat_map(|worker| page.area_of(worker).slowest(self.epoch));
        (stats, LoadTimes::new(&profiles, slowest))
    }
}

impl WorkerStats {
    fn new(snapshot: &WorkerSnapshot, profile: &Profile) -> Self {
        let WorkerSnapshot { state, age, task: batch, sample, batches, samples, busy, .. } = *snapshot;
        let index = usize::try_from(sample).unwrap_or(usize::MAX);
        Self { state, age, batch, index, batches, samples, busy, phases: PhaseTimes::new(profile) }
    }
}

fn add(counter: &AtomicU64, more: u64) {
    counter.fetch_add(more, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a page of workers that have their areas.
    fn page(workers: usize) -> Arc<ControlPage> {
        let (page, fd) = ControlPage::create(workers).unwrap();
        (0..workers).for_each(|worker| ControlPage::reserve_area(&fd, workers, worker).unwrap());
        Arc::new(page)
    }

    #[test]
    fn the_workers_are_those_of_the_newest_iterator_that_loads() {
        let stats = SharedStats::default();
        let pages = [1, 2].map(page);
        let shown = || stats.read().workers.len();
        let (older, newer) = (stats.epoch_begins(), stats.epoch_begins());
        stats.set_workers(&older, &pages[0], 1, 0);
        stats.set_workers(&newer, &pages[1], 2, 1);
        assert_eq!(shown(), 2);
        stats.set_workers(&older, &pages[0], 1, 0);
        assert_eq!(shown(), 2, "the newer one still loads");
        drop(newer);
        assert_eq!(shown(), 2, "persistent workers wait for the next epoch");
        stats.set_workers(&older, &pages[0], 1, 0);
        assert_eq!(shown(), 1);
        drop((older, pages));
        assert_eq!(shown(), 0);
    }
}
