//! Finds the number of workers and the prefetch factor while batches are loaded: `"auto"`.
//!
//! The tuner measures an interval of batches, predicts the rate with another setting, and tries the setting
//! if that pays. After the next interval it keeps the setting, or goes back if the prediction was wrong. Once
//! no other setting pays, it has settled, and only searches again when the load has changed.
//!
//! The tuner reads no clock and starts no worker. [`WorkerIter`](crate::engine::iter::WorkerIter) gives it the times
//! and carries out its decisions.
//!
//! Alternative considered: try every setting and keep the best. Rejected because each trial takes at least a
//! second, a bad setting slows the program meanwhile, and the load may change before the last trial.
//!
//! Alternative considered: no further worker while the present ones wait for CPUs that other programs use. Rejected
//! because the kernel divides the CPUs among all threads, so that more workers together get a larger part of them. A
//! trial without a gain ends after one interval.

use std::{ops::RangeInclusive, time::Duration};

use crate::report::{
    figures::{LoadFigures, MIN_BUSY_SHARE, ResourceUse},
    tuning_decision::{TuningDecision, TuningReason},
};

/// Minimum time and number of batches of an interval. Shorter intervals are noise.
const MIN_INTERVAL: Duration = Duration::from_secs(1);
const MIN_BATCHES: u64 = 32;
/// An interval of this length ends with fewer batches: [`MIN_SLOW_BATCHES`].
const LONG_INTERVAL: Duration = Duration::from_secs(15);
const MIN_SLOW_BATCHES: u64 = 8;

/// Share of waiting above which more workers or more batches ahead may pay.
const WAITING_TO_GROW: f64 = 0.02;
/// Share of waiting below which fewer workers may be enough.
const WAITING_TO_SHRINK: f64 = 0.005;
/// Share of busy time above which workers never wait for tasks, so that more batches ahead do not help.
const ALWAYS_BUSY: f64 = 0.98;
/// Minimum measured ratio of rates for keeping more workers or a higher prefetch factor.
const MIN_MEASURED_GAIN: f64 = 1.03;
/// Minimum measured ratio of rates for keeping fewer workers.
const MIN_RATE_WITH_FEWER: f64 = 0.98;
/// Factor by which there should be more workers than the computed number, where the tuner removes workers. It
/// is larger than where it adds them, so that the rate does not fall.
const RESERVE_BEFORE_PARKING: f64 = 1.3;
/// Number of consecutive intervals with the same result after which the tuner removes workers, settles, or
/// searches again.
const CONFIRMATIONS: u32 = 3;
/// Factor by which the time of the program's step, or of a worker's batch, must change for a new search.
const LOAD_CHANGE: f64 = 1.3;
/// A step of the program is a pause if it takes at least this time, and this many times as long as usual.
const MIN_PAUSE: Duration = Duration::from_millis(500);
const MIN_PAUSE_RATIO: u32 = 10;
/// Number of changes after which the tuner settles.
const MAX_CHANGES: u32 = 10;
/// Prefetch factors that the tuner may choose.
pub(crate) const AUTO_PREFETCH: RangeInclusive<usize> = 2..=16;

/// What the tuner may choose.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TunerOptions {
    pub(crate) min_workers: usize,
    pub(crate) max_workers: usize,
    pub(crate) max_prefetch: usize,
    /// False if the setting changes only between two epochs.
    pub(crate) within_epochs: bool,
    /// True to keep the setting once it was found.
    pub(crate) freeze: bool,
    pub(crate) cpus: usize,
}

/// Number of workers, and number of batches that are loaded ahead for each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Setting {
    pub(crate) workers: usize,
    pub(crate) prefetch_factor: usize,
}

/// Maxima that the free memory allows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MemoryBounds {
    /// Maximum number of workers, by their private memory.
    pub(crate) max_workers: usize,
    /// Maximum number of batches that are loaded ahead for all workers together, by the memory of slots.
    pub(crate) max_batches: usize,
}

impl MemoryBounds {
    fn allow(self, setting: Setting) -> bool {
        let batches = setting.workers.saturating_mul(setting.prefetch_factor);
        setting.workers <= self.max_workers && batches <= self.max_batches
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Tuner {
    options: TunerOptions,
    setting: Setting,
    /// Bounds of the current search: those of the options, narrowed by trials that failed.
    bounds: TunerOptions,
    /// Number of batches of the old setting that main has yet to return. They are not measured.
    warm_up: u64,
    interval: Interval,
    trial: Option<Trial>,
    search: SearchState,
    /// True if more workers were tried without a gain since the search began.
    has_tried_more_workers: bool,
}

/// What was measured since the last decision.
#[derive(Debug, Clone, Copy, Default)]
struct Interval {
    batches: u64,
    elapsed: Duration,
    waiting: Duration,
    used: ResourceUse,
}

/// A setting that is being tried.
#[derive(Debug, Clone, Copy)]
struct Trial {
    before: Setting,
    /// What was measured with the setting before.
    figures: LoadFigures,
}

#[derive(Debug, Clone, Copy)]
enum SearchState {
    Running {
        changes: u32,
        /// Number of consecutive intervals in which fewer workers were enough.
        fewer_streak: u32,
        /// Number of consecutive intervals in which no other setting would have paid.
        unchanged_streak: u32,
    },
    Settled {
        figures: LoadFigures,
        /// Number of consecutive intervals with another load.
        changed: u32,
    },
}

impl SearchState {
    const START: Self = Self::Running { changes: 0, fewer_streak: 0, unchanged_streak: 0 };
}

impl Tuner {
    pub(crate) fn new(options: TunerOptions, first: Setting) -> Self {
        Self {
            options,
            setting: first,
            bounds: options,
            warm_up: 0,
            interval: Interval::default(),
            trial: None,
            search: SearchState::START,
            has_tried_more_workers: false,
        }
    }

    pub(crate) fn setting(&self) -> Setting {
        self.setting
    }

    /// True if more workers were tried without a gain, and the load has not changed since.
    pub(crate) fn has_tried_more_workers(&self) -> bool {
        self.has_tried_more_workers
    }

    /// Notes that an epoch begins: all of its batches are loaded with the setting.
    pub(crate) fn begin_epoch(&mut self) {
        self.warm_up = 0;
    }

    /// Notes a batch. `elapsed` is the time since the previous batch was returned, and `waiting` the part of
    /// it that the program spent in `next`. Returns false if the batch was loaded with the old setting: the
    /// caller must then take a new baseline of the processes' times.
    pub(crate) fn note_batch(&mut self, elapsed: Duration, waiting: Duration) -> bool {
        if self.warm_up > 0 {
            self.warm_up -= 1;
            return false;
        }
        if self.is_pause(elapsed.saturating_sub(waiting)) {
            // The workers have loaded these batches meanwhile.
            self.warm_up = (self.setting.workers * self.setting.prefetch_factor) as u64;
            return false;
        }
        self.interval.batches += 1;
        self.interval.elapsed += elapsed;
        self.interval.waiting += waiting;
        true
    }

    /// True if `step`, the time between two calls of `next`, is so long that it is a pause of the program,
    /// for example to evaluate a model.
    fn is_pause(&self, step: Duration) -> bool {
        let Interval { batches, elapsed, waiting, .. } = self.interval;
        let steps = elapsed.saturating_sub(waiting);
        let has_usual = u32::try_from(batches)
            .is_ok_and(|batches| batches >= 4 && step * batches > steps * MIN_PAUSE_RATIO);
        step >= MIN_PAUSE && has_usual
    }

    /// True if the interval is long enough for a decision.
    pub(crate) fn is_due(&self) -> bool {
        let Interval { batches, elapsed, .. } = self.interval;
        let enough = MIN_BATCHES.max(4 * self.setting.workers as u64);
        (elapsed >= MIN_INTERVAL && batches >= enough)
            || (elapsed >= LONG_INTERVAL && batches >= MIN_SLOW_BATCHES)
    }

    /// Adds what the processes have used since the last call or the last baseline.
    pub(crate) fn add_use(&mut self, used: ResourceUse) {
        self.interval.used += used;
    }

    /// Notes that fewer workers than wanted could be started.
    pub(crate) fn limit_workers(&mut self, workers: usize) {
        self.setting.workers = workers;
        self.bounds.max_workers = workers;
        self.bounds.min_workers = self.bounds.min_workers.min(workers);
        self.trial = None;
    }

    /// Notes that the program has set the number of workers. The tuner does not change it any more.
    pub(crate) fn fix_workers(&mut self, workers: usize) {
        (self.options.min_workers, self.options.max_workers) = (workers, workers);
        self.bounds = self.options;
        self.setting.workers = workers;
        (self.trial, self.interval) = (None, Interval::default());
    }

    /// True if the setting may change while an epoch is loaded.
    pub(crate) fn changes_within_epochs(&self) -> bool {
        self.options.within_epochs
    }

    /// Decides at the end of an interval. Returns the decision if the setting changes, or if a search begins
    /// again.
    pub(crate) fn decide(&mut self, memory: MemoryBounds) -> Option<TuningDecision> {
        let figures = self.end_interval()?;
        let before = self.setting;
        let reason = match self.trial.take() {
            Some(trial) => self.judge_trial(trial, &figures),
            None => None,
        };
        let reason = reason.or_else(|| self.choose_next(&figures, memory))?;
        if self.setting != before {
            self.warm_up = (before.workers * before.prefetch_factor) as u64;
            self.count_change();
        }
        let num_workers = (before.workers, self.setting.workers);
        let prefetch_factor = (before.prefetch_factor, self.setting.prefetch_factor);
        Some(TuningDecision { batch: 0, num_workers, prefetch_factor, reason, figures })
    }

    fn end_interval(&mut self) -> Option<LoadFigures> {
        let Interval { batches, elapsed, waiting, used } = std::mem::take(&mut self.interval);
        LoadFigures::new(batches, elapsed, waiting, used)
    }

    /// Goes back to the setting before the trial if the trial was no gain.
    fn judge_trial(&mut self, trial: Trial, figures: &LoadFigures) -> Option<TuningReason> {
        let Trial { before, figures: then } = trial;
        let ratio = figures.batches_per_second / then.batches_per_second;
        let tried = self.setting;
        let is_more = tried.workers > before.workers || tried.prefetch_factor > before.prefetch_factor;
        if ratio >= if is_more { MIN_MEASURED_GAIN } else { MIN_RATE_WITH_FEWER } {
            return None;
        }
        self.setting = before;
        if !is_more {
            self.bounds.min_workers = tried.workers + 1;
            return Some(TuningReason::TooFewWorkers { rate_ratio: ratio });
        }
        // A smaller increase would not pay either, so the search does not try one.
        if tried.workers > before.workers {
            self.bounds.max_workers = before.workers;
            self.has_tried_more_workers = true;
        } else {
            self.bounds.max_prefetch = before.prefetch_factor;
        }
        Some(TuningReason::NoGain { rate_ratio: ratio })
    }

    /// Tries another setting if that is predicted to pay, or begins to search again if the load has changed.
    fn choose_next(&mut self, figures: &LoadFigures, memory: MemoryBounds) -> Option<TuningReason> {
        let (changes, fewer_streak, unchanged_streak) = match self.search {
            SearchState::Running { changes, fewer_streak, unchanged_streak } => {
                (changes, fewer_streak, unchanged_streak)
            }
            SearchState::Settled { .. } if self.options.freeze => return None,
            SearchState::Settled { figures: then, changed } => {
                let changed = if figures.is_like(&then, LOAD_CHANGE) { 0 } else { changed + 1 };
                self.search = SearchState::Settled { figures: then, changed };
                if changed < CONFIRMATIONS {
                    return None;
                }
                (self.bounds, self.search) = (self.options, SearchState::START);
                self.has_tried_more_workers = false;
                return Some(TuningReason::LoadChanged);
            }
        };
        let next = if changes < MAX_CHANGES { self.next_setting(figures, memory) } else { None };
        let is_fewer = matches!(next, Some((_, TuningReason::WorkersIdle)));
        let fewer_streak = if is_fewer { fewer_streak + 1 } else { 0 };
        let next = next.filter(|_| !is_fewer || fewer_streak >= CONFIRMATIONS);
        let unchanged_streak = if next.is_some() { 0 } else { unchanged_streak + 1 };
        // An interval in which fewer workers are enough does not end their streak.
        let is_settled = unchanged_streak > CONFIRMATIONS || (unchanged_streak == CONFIRMATIONS && !is_fewer);
        self.search = if is_settled {
            SearchState::Settled { figures: *figures, changed: 0 }
        } else {
            SearchState::Running { changes, fewer_streak, unchanged_streak }
        };
        let (setting, reason) = next?;
        let before = std::mem::replace(&mut self.setting, setting);
        self.trial = Some(Trial { before, figures: *figures });
        Some(reason)
    }

    /// Returns the setting to try next.
    fn next_setting(&self, figures: &LoadFigures, memory: MemoryBounds) -> Option<(Setting, TuningReason)> {
        let Setting { workers, prefetch_factor } = self.setting;
        let setting = |workers, prefetch_factor| Setting { workers, prefetch_factor };
        if figures.waiting_share > WAITING_TO_GROW {
            let is_busy = figures.busy_share > MIN_BUSY_SHARE;
            let is_allowed =
                |more| more <= self.bounds.max_workers && memory.allow(setting(more, prefetch_factor));
            if is_busy && let Some((more, _)) = figures.more_workers(workers, self.options.cpus, is_allowed) {
                return Some((setting(more, prefetch_factor), TuningReason::ProgramWaits));
            }
            let further = setting(workers, (2 * prefetch_factor).min(self.bounds.max_prefetch));
            // More workers have more batches ahead too.
            let wider = setting((2 * workers).min(self.bounds.max_workers), prefetch_factor);
            let more = [(figures.busy_share < ALWAYS_BUSY).then_some(further), (!is_busy).then_some(wider)];
            let more = more.into_iter().flatten().find(|&more| more != self.setting && memory.allow(more));
            return more.map(|more| (more, TuningReason::UnevenBatches));
        }
        if figures.waiting_share < WAITING_TO_SHRINK {
            let wanted = RESERVE_BEFORE_PARKING * figures.workers_for(figures.batches_per_second);
            let fewer = (wanted.ceil() as usize).max(workers.div_ceil(2)).max(self.bounds.min_workers);
            return (fewer < workers).then_some((setting(fewer, prefetch_factor), TuningReason::WorkersIdle));
        }
        None
    }

    /// Counts a change. After [`MAX_CHANGES`] the search makes no other one, because the rates vary too much
    /// to compare settings.
    fn count_change(&mut self) {
        if let SearchState::Running { changes, .. } = self.search {
            let changes = changes + 1;
            self.search = SearchState::Running { changes, fewer_streak: 0, unchanged_streak: 0 };
        }
    }
}

#[cfg(test)]
mod tests;
