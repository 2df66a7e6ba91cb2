//! The control page: a small shared page per pool with the done flag and, for each worker, what it is doing and since when. It
//! stays readable after a worker was killed.

use std::{
    io,
    num::NonZeroUsize,
    os::fd::{AsFd, OwnedFd},
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use nix::{
    sys::time::TimeSpec,
    time::{ClockId, clock_gettime},
};

use crate::{memory, sys::SharedWords};

/// Words per worker: one cache line each, so that workers do not disturb each other.
const LINE: usize = 8;

// Word 0 of line 0 is the done flag, word 1 its likeness for one epoch, word 0 of line 1 says that main sleeps; worker `w` has line `2 + w`.
const UNWANTED: usize = 1;
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
    /// Not yet through its bootstrap.
    Starting,
    /// Waiting for a task.
    Idle,
    /// In the dataset.
    Fetching,
    /// In collation.
    Collating,
    /// Encoding and sending.
    Sending,
    /// In the dataset, on several samples at once.
    FetchingMany,
}

/// A worker's line of the control page, read once.
#[derive(Debug, Clone, Copy)]
pub struct WorkerSnapshot {
    /// What it is doing.
    pub state: WorkerState,
    /// Number of the task it is on or was on last.
    pub task: u64,
    /// Index of the sample it is on or was on last.
    pub sample: u64,
    /// How long it has been in this state on this sample; to a few milliseconds, since the clock is coarse and fast samples share a
    /// look at it.
    pub age: Duration,
    /// Batches finished.
    pub batches: u64,
    /// Samples loaded.
    pub samples: u64,
    /// Page faults served from memory (`ru_minflt`), as of a few batches ago.
    pub page_faults: u64,
    /// Time spent in tasks.
    pub busy: Duration,
}

/// The page, mapped. Every access is atomic; all orderings are relaxed but for the done flag and main's sleep, since no other memory
/// hangs on the counters.
#[derive(Debug)]
pub struct ControlPage {
    words: SharedWords,
    workers: usize,
}

impl ControlPage {
    /// Makes a page for `workers` workers.
    ///
    /// # Errors
    /// When the system is out of memory or descriptors.
    pub fn create(workers: usize) -> io::Result<(Self, OwnedFd)> {
        let (words, fd) = memory::reserve_words(words(workers))?;
        let page = Self { words, workers };
        (0..workers).for_each(|worker| page.reset(worker));
        Ok((page, fd))
    }

    /// Notes that another process begins to be the worker: it is starting since now, whenever it comes to say so. The counters go on.
    pub fn reset(&self, worker: usize) {
        self.line(worker)[SINCE].store(now_nanos(), Ordering::Relaxed);
        self.line(worker)[STATE].store(WorkerState::Starting as u64, Ordering::Relaxed);
    }

    /// Maps the page that another process made for `workers` workers.
    ///
    /// # Errors
    /// When it cannot be mapped.
    pub fn map(fd: impl AsFd, workers: usize) -> io::Result<Self> {
        Ok(Self { words: SharedWords::map(fd, words(workers))?, workers })
    }

    /// Says that nothing is wanted any more: the sentinels follow.
    pub fn set_done(&self) {
        // Release: who sees the flag sees what main did before.
        self.words.words()[0].store(1, Ordering::Release);
    }

    /// True once [`set_done`](Self::set_done) was called in any process.
    pub fn is_done(&self) -> bool {
        // Acquire: pairs with `set_done`.
        self.words.words()[0].load(Ordering::Acquire) == 1
    }

    /// Says that what workers are loading is not wanted, until it is taken back: an epoch is abandoned whose workers stay.
    pub fn set_unwanted(&self, unwanted: bool) {
        // Release: as for the done flag.
        self.words.words()[UNWANTED].store(u64::from(unwanted), Ordering::Release);
    }

    /// True while what workers are loading is not wanted, for a while or for good.
    pub fn is_unwanted(&self) -> bool {
        // Acquire: pairs with `set_unwanted`.
        self.is_done() || self.words.words()[UNWANTED].load(Ordering::Acquire) == 1
    }

    /// Nonzero while main sleeps and must be woken; for the queues, which say how it is read and written.
    pub(crate) fn main_asleep(&self) -> &AtomicU64 {
        &self.words.words()[ASLEEP]
    }

    /// The line of a worker, for the worker itself to write.
    pub fn line_of(&self, worker: usize) -> WorkerLine<'_> {
        WorkerLine { words: self.line(worker) }
    }

    /// The worker's line. Its words are read one after the other, so they may be of two moments.
    pub fn read(&self, worker: usize) -> WorkerSnapshot {
        let line = self.line(worker);
        let word = |place: usize| line[place].load(Ordering::Relaxed);
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
        assert!(worker < self.workers, "worker {worker} of {}", self.workers);
        let line = &self.words.words()[(FIRST_WORKER + worker) * LINE..(FIRST_WORKER + 1 + worker) * LINE];
        line.try_into().expect("as many words as a line has")
    }
}

/// A worker's line of the control page. Only the worker writes it.
#[derive(Debug, Clone, Copy)]
pub struct WorkerLine<'a> {
    words: &'a [AtomicU64; LINE],
}

impl WorkerLine<'_> {
    /// Enters a state. True when the clock has not moved since the last one.
    pub fn enter(&self, state: WorkerState) -> bool {
        let now = now_nanos();
        let is_same_tick = self.words[SINCE].load(Ordering::Relaxed) == now;
        self.words[SINCE].store(now, Ordering::Relaxed);
        self.words[STATE].store(state as u64, Ordering::Relaxed);
        is_same_tick
    }

    /// Notes the task that the worker is on.
    pub fn set_task(&self, task: u64) {
        self.words[TASK].store(task, Ordering::Relaxed);
    }

    /// Enters a state on one sample; the clock of [`WorkerSnapshot::age`] starts anew. True when it has not moved since the last
    /// time.
    pub fn progress(&self, state: WorkerState, sample: u64) -> bool {
        self.words[SAMPLE].store(sample, Ordering::Relaxed);
        self.enter(state)
    }

    /// The same without the clock, which is what it would cost.
    pub fn progress_untimed(&self, state: WorkerState, sample: u64) {
        self.words[SAMPLE].store(sample, Ordering::Relaxed);
        self.words[STATE].store(state as u64, Ordering::Relaxed);
    }

    /// Adds a finished batch to the worker's counters.
    pub fn count_batch(&self, samples: u64, busy: Duration) {
        // Nobody else adds: no read-modify-write is needed.
        let add = |place: usize, more| {
            self.words[place].store(self.words[place].load(Ordering::Relaxed) + more, Ordering::Relaxed);
        };
        add(BATCHES, 1);
        add(SAMPLES, samples);
        add(BUSY, nanos(busy));
    }

    /// Notes the worker's page faults so far.
    pub fn set_page_faults(&self, page_faults: u64) {
        self.words[FAULTS].store(page_faults, Ordering::Relaxed);
    }
}

fn words(workers: usize) -> NonZeroUsize {
    NonZeroUsize::MIN.saturating_add(LINE * (FIRST_WORKER + workers) - 1)
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// The monotonic clock, which is the same in every process, in its coarse form: quick to read, right to a few milliseconds.
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
