//! Measures a setting with the user's dataset, loader and workers.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use loader_core::{
    DataLoader, Error, Iter, LoadFigures, LoaderOptions, PrefetchFactor, State, Warning, collate::Batch,
};

use super::search::Setting;
use crate::{
    interrupt::Interrupt,
    progress::{Screen, time_left},
    reporter::Reporter,
    stop::Stop,
};

/// Minimum number of batches of an interval, and of each worker. Fewer are noise, because workers that began at
/// the same time finish at about the same time.
const MIN_BATCHES: u64 = 8;
const MIN_BATCHES_PER_WORKER: u64 = 4;

/// What was measured in one interval.
#[derive(Debug, Clone, Copy)]
pub(super) struct Interval {
    pub(super) batches: u64,
    pub(super) samples: u64,
    pub(super) elapsed: Duration,
    /// What the loader has measured, if the epoch had enough batches.
    pub(super) figures: Option<LoadFigures>,
    /// Number of workers that the memory has room for, if it could be estimated.
    pub(super) affordable_workers: Option<usize>,
}

impl Interval {
    pub(super) fn samples_per_second(&self) -> f64 {
        self.samples as f64 / self.elapsed.as_secs_f64()
    }
}

/// How the intervals of a sweep are measured.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    /// The options of the loader but those of a [`Setting`].
    pub(super) options: LoaderOptions,
    /// Simulated time between two batches.
    pub(super) step: Duration,
    /// Length of an interval, unless it needs more time for its batches.
    pub(super) length: Duration,
    /// Minimum time before an interval. It is not measured.
    pub(super) warm_up: Duration,
    pub(super) started: Instant,
    /// Time from the start after which nothing is measured.
    pub(super) time: Duration,
}

/// Measures one interval after the other. Each continues in the dataset where the last one has ended, so that
/// the files in the system's cache are those of a run.
pub(super) struct Meter<'a, F> {
    build: F,
    plan: Plan,
    state: State,
    reporter: &'a mut Reporter,
    interrupt: Interrupt,
    failed: u64,
}

impl<'a, F, B> Meter<'a, F>
where
    F: Fn(LoaderOptions) -> Result<DataLoader<B>, Error>,
    B: Batch,
{
    pub(super) fn new(
        build: F,
        plan: Plan,
        state: State,
        reporter: &'a mut Reporter,
        interrupt: Interrupt,
    ) -> Self {
        Self { build, plan, state, reporter, interrupt, failed: 0 }
    }

    pub(super) fn reporter(&mut self) -> &mut Reporter {
        self.reporter
    }

    /// Number of batches that failed.
    pub(super) fn failed(&self) -> u64 {
        self.failed
    }

    /// Time that is left.
    pub(super) fn left(&self) -> Duration {
        self.plan.time.saturating_sub(self.plan.started.elapsed())
    }

    /// Measures an interval with the setting. Returns `None` if the time is over before the interval ends.
    pub(super) fn measure(&mut self, setting: Setting) -> Result<Option<Interval>, Stop> {
        let loader = (self.build)(options_of(setting, &self.plan.options))?;
        let mut batches = loader.resume(&self.state)?;
        let mut clock = Clock::new(setting, &self.plan);
        let mut is_new_epoch = false;
        let interval = loop {
            self.interrupt.check()?;
            let batch = batches.next();
            match batch {
                Some(Ok(_)) => clock.note(batches.last_batch().map_or(0, |info| info.samples)),
                Some(Err(error)) => self.batch_failed(&batches, error)?,
                None if is_new_epoch => return Err(Error::EmptyDataset.into()),
                None => {
                    let next = batches.epoch().saturating_add(1);
                    // Persistent workers go on to the next epoch only when the iterator is gone.
                    drop(batches);
                    // The state may stay in an epoch that cannot be read to its end.
                    batches = loader.epoch(next)?;
                    is_new_epoch = true;
                    continue;
                }
            }
            is_new_epoch = false;
            thread::sleep(self.plan.step);
            self.show(setting);
            if let Some(interval) = clock.interval(&batches) {
                break Some(interval);
            }
            if self.left().is_zero() {
                break None;
            }
        };
        self.state = batches.state();
        Ok(interval)
    }

    /// Counts a batch that failed, and prints the first error. Fails if the error ends the epoch.
    fn batch_failed(&mut self, batches: &Iter<B>, error: Error) -> Result<(), Stop> {
        let info = batches.last_batch();
        if info.is_none() {
            return Err(error.into());
        }
        self.failed += 1;
        if self.failed == 1 {
            self.reporter.error(batches.epoch(), info, &error)?;
        }
        Ok(())
    }

    fn show(&mut self, setting: Setting) {
        let Plan { started, time, .. } = self.plan;
        self.reporter.update(|task| {
            let done = started.elapsed().min(time);
            (done.as_secs(), format!("{}, {setting}", time_left(done.as_secs(), task, done)))
        });
    }
}

/// Returns the options with the setting.
pub(super) fn options_of(setting: Setting, options: &LoaderOptions) -> LoaderOptions {
    let mut options = options.clone().num_workers(setting.num_workers);
    options.prefetch_factor = setting.prefetch_factor.map(PrefetchFactor::Fixed);
    // These files and this address belong to the user's own runs.
    (options.trace, options.trace_on_failure, options.metrics) = (None, None, None);
    options
}

/// Returns the callback for warnings of the loader, which prints each warning once. That there are more workers
/// than CPUs is no mistake of the user's here.
pub(super) fn warnings(screen: Screen) -> impl Fn(&Warning) + Clone + Send + Sync + 'static {
    let printed = Arc::new(Mutex::new(BTreeSet::new()));
    move |warning| {
        let text = warning.to_string();
        if matches!(warning, Warning::MoreWorkersThanCpus { .. }) {
            return;
        }
        if printed.lock().unwrap_or_else(PoisonError::into_inner).insert(text.clone()) {
            screen.error_line(&format!("loader: warning: {text}"));
        }
    }
}

/// Decides when an interval begins and ends.
#[derive(Debug)]
struct Clock {
    length: Duration,
    warm_up: Duration,
    workers: u64,
    /// When the first batch came, and the number of batches since the beginning.
    first: Option<Instant>,
    returned: u64,
    /// When the interval began.
    began: Option<Instant>,
    batches: u64,
    samples: u64,
}

impl Clock {
    fn new(setting: Setting, plan: &Plan) -> Self {
        let Plan { length, warm_up, .. } = *plan;
        let workers = setting.num_workers as u64;
        Self { length, warm_up, workers, first: None, returned: 0, began: None, batches: 0, samples: 0 }
    }

    /// Notes a batch that was returned now.
    fn note(&mut self, samples: usize) {
        let now = Instant::now();
        let first = *self.first.get_or_insert(now);
        self.returned += 1;
        if self.began.is_some() {
            self.batches += 1;
            self.samples += samples as u64;
        } else if self.returned > self.workers && now - first >= self.warm_up {
            self.began = Some(now);
        }
    }

    /// Returns the interval if it is over.
    fn interval<B: Batch>(&self, iter: &Iter<B>) -> Option<Interval> {
        let elapsed = self.began?.elapsed();
        let min = MIN_BATCHES.max(MIN_BATCHES_PER_WORKER * self.workers);
        let is_over = elapsed >= self.length && self.batches >= min;
        is_over.then(|| Interval {
            batches: self.batches,
            samples: self.samples,
            elapsed,
            figures: iter.report().figures,
            affordable_workers: iter.affordable_workers(),
        })
    }
}
