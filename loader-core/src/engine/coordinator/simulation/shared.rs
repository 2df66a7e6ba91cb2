//! What all parts of one simulation share: the clock, the memory, and what happened.

use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use super::memory::Memory;

/// How often each event has happened, by name.
pub(super) type Counts = BTreeMap<&'static str, u64>;

#[derive(Debug)]
pub(super) struct Shared {
    now: Cell<Instant>,
    pub(super) memory: RefCell<Memory>,
    /// Samples that a worker has tried and that hang only once.
    tried: RefCell<BTreeSet<u64>>,
    counts: RefCell<Counts>,
    is_traced: bool,
    started: Instant,
}

impl Shared {
    pub(super) fn new(started: Instant, is_traced: bool) -> Self {
        let (memory, tried, counts) = Default::default();
        Self { now: Cell::new(started), memory, tried, counts, is_traced, started }
    }

    /// Simulated time.
    pub(super) fn now(&self) -> Instant {
        self.now.get()
    }

    pub(super) fn advance(&self, by: Duration) {
        self.now.set(self.now.get() + by);
    }

    /// Advances the clock to `time`, unless it is later already.
    pub(super) fn advance_to(&self, time: Instant) {
        self.now.set(self.now.get().max(time));
    }

    /// True the first time that a worker tries the sample.
    pub(super) fn is_first_try(&self, sample: u64) -> bool {
        self.tried.borrow_mut().insert(sample)
    }

    /// Counts an event by its name, which `TRIED` may list.
    pub(super) fn count(&self, what: &'static str) {
        self.count_many(what, 1);
    }

    pub(super) fn count_many(&self, what: &'static str, count: u64) {
        *self.counts.borrow_mut().entry(what).or_default() += count;
    }

    pub(super) fn into_counts(self) -> Counts {
        self.counts.into_inner()
    }

    /// Prints a line of the trace.
    pub(super) fn log(&self, text: impl FnOnce() -> String) {
        if self.is_traced {
            let time = self.now() - self.started;
            println!("{:>10.3} ms  {}", time.as_secs_f64() * 1e3, text());
        }
    }
}
