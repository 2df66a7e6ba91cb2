//! The control page: shared memory of a pool of workers. It holds the done flag and, for each worker, a line
//! that says what the worker is doing and since when, and an area for what the worker
//! [measures](crate::profile). All of it stays readable after a worker was killed.

use std::{
    io,
    num::NonZeroUsize,
    os::fd::AsFd,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use nix::{
    sys::time::TimeSpec,
    time::{ClockId, clock_gettime},
};

use crate::{
    held_fd::HeldFd,
    memory,
    profile::{AREA_WORDS, ProfileArea, nanos},
    sys::SharedWords,
};

/// The smallest size in bytes of a page of memory.
const PAGE: usize = 4096;

/// Words for each worker: one cache line, so that workers do not slow each other down.
const LINE: usize = 8;

// Line 0, word 0: done flag; word 1: cancel flag of the current epoch. Line 1, word 0: nonzero while main
// sleeps. Line `2 + w`: worker `w`.
const CANCELLED: usize = 1;
const ASLEEP: usize = LINE;
const FIRST_WORKER: usize = 2;
const STATE: usize = 0;
const TASK: usize = 1;
const SAMPLE: usize = 2;
const SINCE: usize = 3;
const BATCHES: usize = 4;
const SAMPLES: usize = 5;
const FAULTS: usize = 6;
const BUSY: usize = 7;

/// What a worker is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum WorkerState {
    /// Before it has opened the dataset.
    Starting,
    /// Waiting for a task.
    Idle,
    /// In the dataset, on one sample.
    Fetching,
    /// In collation.
    Collating,
    /// Encoding and sending.
    Sending,
    /// In the dataset, on several samples at once.
    FetchingMany,
}

/// A worker's line of the control page, as read at one time.
#[derive(Debug, Clone, Copy)]
pub struct WorkerSnapshot {
    /// What the worker is doing.
    pub state: WorkerState,
    /// Number of its current or last task.
    pub task: u64,
    /// Index of its current or last sample.
    pub sample: u64,
    /// Time in this state on this sample, within a few milliseconds: the clock is coarse, and it is not read
    /// for every fast sample.
    pub age: Duration,
    /// Number of batches finished.
    pub batches: u64,
    /// Number of samples loaded.
    pub samples: u64,
    /// Page faults served from memory (`ru_minflt`), counted every few batches.
    pub page_faults: u64,
    /// Time spent on tasks.
    pub busy: Duration,
}

/// The mapped control page. All accesses are atomic. Those of the counters are relaxed, because no other
/// memory depends on them; the flags and main's sleep state their orderings where they are accessed.
#[derive(Debug)]
pub struct ControlPage {
    words: SharedWords,
    /// Number of lines for workers.
    max_workers: usize,
}

impl ControlPage {
    /// Makes a page for `workers` workers, with room for those that are added later: see
    /// [`max_workers`](Self::max_workers).
    ///
    /// # Errors
    /// If the system is out of memory or descriptors.
    pub fn create(workers: usize) -> io::Result<(Self, HeldFd)> {
        let len = bytes_of(words(workers))?;
        let fd = memory::create(len)?;
        memory::reserve_pages(&fd, 0, bytes_of(line_words(workers))?)?;
        let page = Self::map(&fd, workers)?;
        (0..page.max_workers()).for_each(|worker| page.reset(worker));
        Ok((page, fd))
    }

    /// Reserves the memory of a worker's area in the page that was made for `workers` workers, so that
    /// accessing it never raises a signal. Call this before the worker is started.
    ///
    /// # Errors
    /// If the system is out of memory.
    pub fn reserve_area(fd: &HeldFd, workers: usize, worker: usize) -> io::Result<()> {
        let start = size_of::<u64>() * area_start(max_workers(workers), worker);
        memory::reserve_pages(fd, start, bytes_of(NonZeroUsize::new(AREA_WORDS).expect("an area has words"))?)
    }

    /// Marks a worker as starting now, because another process takes its place. Its counters continue.
    pub fn reset(&self, worker: usize) {
        self.line(worker)[SINCE].store(now_nanos(), Ordering::Relaxed);
        self.line(worker)[STATE].store(WorkerState::Starting as u64, Ordering::Relaxed);
    }

    /// Maps the page that another process has made for `workers` workers.
    ///
    /// # Errors
    /// If the page cannot be mapped.
    pub fn map(fd: impl AsFd, workers: usize) -> io::Result<Self> {
        Ok(Self { words: SharedWords::map(fd, words(workers))?, max_workers: max_workers(workers) })
    }

    /// Returns the number of workers that have a line. The page is filled, so this is 62 for up to 62
    /// workers, then 126, and so on.
    pub fn max_workers(&self) -> usize {
        self.max_workers
    }

    /// Raises the done flag: no batch is wanted any more, and the sentinels follow.
    pub fn set_done(&self) {
        // Release: a process that sees the flag sees what main did before.
        self.words.words()[0].store(1, Ordering::Release);
    }

    /// True if [`set_done`](Self::set_done) was called in any process.
    pub fn is_done(&self) -> bool {
        // Acquire: pairs with `set_done`.
        self.words.words()[0].load(Ordering::Acquire) == 1
    }

    /// Sets the cancel flag: while it is true, the current epoch is abandoned and persistent workers skip its
    /// tasks.
    pub fn set_cancelled(&self, cancelled: bool) {
        // Release: as for the done flag.
        self.words.words()[CANCELLED].store(u64::from(cancelled), Ordering::Release);
    }

    /// True if no batch is wanted: the done flag or the cancel flag is set.
    pub fn is_cancelled(&self) -> bool {
        // Acquire: pairs with `set_cancelled`.
        self.is_done() || self.words.words()[CANCELLED].load(Ordering::Acquire) == 1
    }

    /// The word that is nonzero while main sleeps and must be woken. The queues state how they access it.
    pub(crate) fn main_asleep(&self) -> &AtomicU64 {
        &self.words.words()[ASLEEP]
    }

    /// Returns a worker's line, for that worker to write.
    pub fn line_of(&self, worker: usize) -> WorkerLine<'_> {
        WorkerLine { words: self.line(worker) }
    }

    /// Returns the area for what a worker measures. Its memory must have been
    /// [reserved](Self::reserve_area).
    pub fn area_of(&self, worker: usize) -> ProfileArea<'_> {
        assert!(worker < self.max_workers, "worker {worker} of at most {}", self.max_workers);
        let start = area_start(self.max_workers, worker);
        ProfileArea::over(&self.words.words()[start..start + AREA_WORDS])
    }

    /// Reads a worker's line. The words are read one after the other, so they may be from different moments.
    pub fn read(&self, worker: usize) -> WorkerSnapshot {
        let line = self.line(worker);
        let word = |offset: usize| line[offset].load(Ordering::Relaxed);
        let state = match word(STATE) {
            1 => WorkerState::Idle,
            2 => WorkerState::Fetching,
            3 => WorkerState::Collating,
            4 => WorkerState::Sending,
            5 => WorkerState::FetchingMany,
            _ => WorkerState::Starting,
        };
        WorkerSnapshot {
            state,
            task: word(TASK),
            sample: word(SAMPLE),
            age: Duration::from_nanos(now_nanos().saturating_sub(word(SINCE))),
            batches: word(BATCHES),
            samples: word(SAMPLES),
            page_faults: word(FAULTS),
            busy: Duration::from_nanos(word(BUSY)),
        }
    }

    fn line(&self, worker: usize) -> &[AtomicU64; LINE] {
        assert!(worker < self.max_workers, "worker {worker} of at most {}", self.max_workers);
        let line = &self.words.words()[(FIRST_WORKER + worker) * LINE..(FIRST_WORKER + 1 + worker) * LINE];
        line.try_into().expect("a line has LINE words")
    }
}

/// A worker's line of the control page. Only the worker writes it.
#[derive(Debug, Clone, Copy)]
pub struct WorkerLine<'a> {
    words: &'a [AtomicU64; LINE],
}

impl WorkerLine<'_> {
    /// Enters a state. True if the coarse clock shows the same time as at the last entry.
    pub fn enter(&self, state: WorkerState) -> bool {
        let now = now_nanos();
        let is_same_tick = self.words[SINCE].load(Ordering::Relaxed) == now;
        self.words[SINCE].store(now, Ordering::Relaxed);
        self.words[STATE].store(state as u64, Ordering::Relaxed);
        is_same_tick
    }

    /// Sets the number of the worker's current task.
    pub fn set_task(&self, task: u64) {
        self.words[TASK].store(task, Ordering::Relaxed);
    }

    /// Enters a state on one sample, which restarts [`WorkerSnapshot::age`]. True if the coarse clock shows
    /// the same time as at the last entry.
    pub fn progress(&self, state: WorkerState, sample: u64) -> bool {
        self.words[SAMPLE].store(sample, Ordering::Relaxed);
        self.enter(state)
    }

    /// Like [`progress`](Self::progress), but does not read the clock, which is the larger part of the cost.
    pub fn progress_untimed(&self, state: WorkerState, sample: u64) {
        self.words[SAMPLE].store(sample, Ordering::Relaxed);
        self.words[STATE].store(state as u64, Ordering::Relaxed);
    }

    /// Adds a finished batch to the worker's counters.
    pub fn count_batch(&self, samples: u64, busy: Duration) {
        // Only the worker writes its counters, so a load and a store are enough. Another worker may have written any number
        // here by accident, so the sum wraps.
        let add = |offset: usize, more| {
            let sum = self.words[offset].load(Ordering::Relaxed).wrapping_add(more);
            self.words[offset].store(sum, Ordering::Relaxed);
        };
        add(BATCHES, 1);
        add(SAMPLES, samples);
        add(BUSY, nanos(busy));
    }

    /// Sets the number of the worker's page faults so far.
    pub fn set_page_faults(&self, page_faults: u64) {
        self.words[FAULTS].store(page_faults, Ordering::Relaxed);
    }
}

/// Returns the number of words of the lines of a page for `workers` workers.
fn line_words(workers: usize) -> NonZeroUsize {
    NonZeroUsize::MIN.saturating_add(LINE * (FIRST_WORKER + max_workers(workers)) - 1)
}

/// Returns the number of words of a page for `workers` workers, with the areas behind it.
fn words(workers: usize) -> NonZeroUsize {
    line_words(workers).saturating_add(AREA_WORDS * max_workers(workers))
}

/// Returns the number of words before a worker's area.
fn area_start(max_workers: usize, worker: usize) -> usize {
    LINE * (FIRST_WORKER + max_workers) + AREA_WORDS * worker
}

fn bytes_of(words: NonZeroUsize) -> io::Result<NonZeroUsize> {
    let word = const { NonZeroUsize::new(size_of::<u64>()).unwrap() };
    Ok(words.checked_mul(word).ok_or(io::ErrorKind::InvalidInput)?)
}

/// Returns the number of workers for which there is a line if the lines of `workers` workers fill whole
/// pages.
fn max_workers(workers: usize) -> usize {
    const LINES: usize = PAGE / (LINE * size_of::<u64>());
    (FIRST_WORKER + workers).next_multiple_of(LINES) - FIRST_WORKER
}

/// Returns the time of the coarse monotonic clock, which is the same in all processes. It is quick to read,
/// and accurate to a few milliseconds.
fn now_nanos() -> u64 {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC_COARSE).unwrap_or_else(|_| TimeSpec::new(0, 0));
    nanos(Duration::from(now))
}

impl std::fmt::Display for WorkerState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Starting => "starting",
            Self::Idle => "idle",
            Self::Fetching => "fetching",
            Self::Collating => "collating",
            Self::Sending => "sending",
            Self::FetchingMany => "fetching at once",
        })
    }
}
