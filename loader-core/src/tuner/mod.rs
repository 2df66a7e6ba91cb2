//! Finds the number of workers and the prefetch factor while batches are loaded: `"auto"`.
//!
//! The tuner measures an interval of batches, predicts the rate with another setting, and tries the setting
//! if that pays. After the next interval it keeps the setting, or goes back if the prediction was wrong. Once
//! no other setting pays, it has settled, and only searches again when the load has changed.
//!
//! The tuner reads no clock and starts no worker. [`WorkerIter`](crate::iter::WorkerIter) gives it the times
//! and carries out its decisions.
//!
//! Alternative considered: to try all settings one after the other, and keep the best. Rejected because each
//! setting needs an interval of a second or more, in which a wrong one costs the program time, and because
//! the load of an epoch may change before all were tried.

mod decision;

use std::{ops::RangeInclusive, time::Duration};

use crate::figures::{LoadFigures, Work};

pub use decision::{TuningDecision, TuningReason};

/// Minimum time and number of batches of an interval. Shorter intervals are noise.
const MIN_INTERVAL: Duration = Duration::from_secs(1);
const MIN_BATCHES: u64 = 32;
/// An interval of this length ends with fewer batches: [`MIN_SLOW_BATCHES`].
const LONG_INTERVAL: Duration = Duration::from_secs(15);
const MIN_SLOW_BATCHES: u64 = 8;

/// Main's share of waiting above which more workers or batches ahead may pay.
const MUCH_WAITING: f64 = 0.02;
/// Main's share of waiting below which fewer workers may do.
const NO_WAITING: f64 = 0.005;
/// Workers' share of busy time above which more of them may pay.
const BUSY: f64 = 0.8;
/// A setting is tried if this gain in the rate is predicted, and kept if this gain was measured.
const MIN_PREDICTED_GAIN: f64 = 1.05;
const MIN_GAIN: f64 = 1.03;
/// Fewer workers are kept unless the rate falls below this ratio.
const MAX_LOSS: f64 = 0.98;
/// Reserve of workers, because times vary: more where workers are parked than where they are added.
const RESERVE: f64 = 1.15;
const RESERVE_BEFORE_PARKING: f64 = 1.3;
/// Number of intervals in a row that must ask for fewer workers, for a settled setting, or for a new search.
const CONFIRMATIONS: u32 = 3;
/// Ratio by which the program's step or a batch's work must change for a new search.
const LOAD_CHANGE: f64 = 1.3;
/// Number of changes after which a search ends.
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

/// What memory leaves room for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Room {
    /// Maximum number of workers, by their own memory.
    pub(crate) workers: usize,
    /// Maximum number of batches that are loaded ahead for all workers together, by the slots' memory.
    pub(crate) batches: usize,
}

impl Room {
    fn has(self, setting: Setting) -> bool {
        setting.workers <= self.workers && setting.workers * setting.prefetch_factor <= self.batches
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Tuner {
    options: TunerOptions,
    setting: Setting,
    /// Bounds that the search has found.
    bounds: TunerOptions,
    /// Number of batches that are still loaded with the old setting, and are not measured.
    warm_up: u64,
    interval: Interval,
    trial: Option<Trial>,
    search: Search,
}

/// What was measured since the last decision.
#[derive(Debug, Clone, Copy, Default)]
struct Interval {
    batches: u64,
    elapsed: Duration,
    waiting: Duration,
    work: Work,
}

/// A setting that is being tried.
#[derive(Debug, Clone, Copy)]
struct Trial {
    before: Setting,
    /// What was measured with the setting before.
    figures: LoadFigures,
}

#[derive(Debug, Clone, Copy)]
enum Search {
    Running {
        changes: u32,
        /// Number of intervals in a row that asked for fewer workers, and for no change.
        for_fewer: u32,
        for_none: u32,
    },
    Settled {
        figures: LoadFigures,
        /// Number of intervals in a row with another load.
        changed: u32,
    },
}

impl Search {
    const START: Self = Self::Running { changes: 0, for_fewer: 0, for_none: 0 };
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
            search: Search::START,
        }
    }

    pub(crate) fn setting(&self) -> Setting {
        self.setting
    }

    /// Notes a batch: the program got it `elapsed` after the batch before, and waited for it for `waiting`.
    /// False if the tuner still waits for the effect of its last decision. The caller then begins to measure
    /// the workers' work.
    pub(crate) fn note_batch(&mut self, elapsed: Duration, waiting: Duration) -> bool {
        if self.warm_up > 0 {
            self.warm_up -= 1;
            return false;
        }
        self.interval.batches += 1;
        self.interval.elapsed += elapsed;
        self.interval.waiting += waiting;
        true
    }

    /// True if the interval is long enough for a decision.
    pub(crate) fn is_due(&self) -> bool {
        let Interval { batches, elapsed, .. } = self.interval;
        let enough = MIN_BATCHES.max(4 * self.setting.workers as u64);
        (elapsed >= MIN_INTERVAL && batches >= enough)
            || (elapsed >= LONG_INTERVAL && batches >= MIN_SLOW_BATCHES)
    }

    /// Adds what workers have done since this was called last.
    pub(crate) fn add_work(&mut self, work: Work) {
        self.interval.work += work;
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
    pub(crate) fn decide(&mut self, room: Room) -> Option<TuningDecision> {
        let figures = self.end_interval()?;
        let before = self.setting;
        let reason = match self.trial.take() {
            Some(trial) => self.judge(trial, &figures),
            None => None,
        };
        let reason = reason.or_else(|| self.search(&figures, room))?;
        if self.setting != before {
            self.warm_up = (before.workers * before.prefetch_factor) as u64;
            self.count_change(&figures);
        }
        Some(TuningDecision::new(before, self.setting, reason, figures))
    }

    fn end_interval(&mut self) -> Option<LoadFigures> {
        let Interval { batches, elapsed, waiting, work } = std::mem::take(&mut self.interval);
        LoadFigures::new(batches, elapsed, waiting, work, self.setting.workers)
    }

    /// Goes back to the setting before the trial if the trial was no gain.
    fn judge(&mut self, trial: Trial, figures: &LoadFigures) -> Option<TuningReason> {
        let Trial { before, figures: then } = trial;
        let ratio = figures.batches_per_second / then.batches_per_second;
        let tried = self.setting;
        let is_more = tried.workers > before.workers || tried.prefetch_factor > before.prefetch_factor;
        if ratio >= if is_more { MIN_GAIN } else { MAX_LOSS } {
            return None;
        }
        self.setting = before;
        if !is_more {
            self.bounds.min_workers = tried.workers + 1;
            return Some(TuningReason::TooFewWorkers { rate_ratio: ratio });
        }
        // A smaller step is no gain either.
        if tried.workers > before.workers {
            self.bounds.max_workers = before.workers;
        } else {
            self.bounds.max_prefetch = before.prefetch_factor;
        }
        Some(TuningReason::NoGain { rate_ratio: ratio })
    }

    /// Tries another setting if that is predicted to pay, or begins to search again if the load has changed.
    fn search(&mut self, figures: &LoadFigures, room: Room) -> Option<TuningReason> {
        let (changes, for_fewer, for_none) = match self.search {
            Search::Running { changes, for_fewer, for_none } => (changes, for_fewer, for_none),
            Search::Settled { .. } if self.options.freeze => return None,
            Search::Settled { figures: then, changed } => {
                let changed = if figures.is_like(&then, LOAD_CHANGE) { 0 } else { changed + 1 };
                self.search = Search::Settled { figures: then, changed };
                if changed < CONFIRMATIONS {
                    return None;
                }
                (self.bounds, self.search) = (self.options, Search::START);
                return Some(TuningReason::LoadChanged);
            }
        };
        let (setting, reason) = self.proposal(figures, room).unzip();
        let is_fewer = reason == Some(TuningReason::WorkersIdle);
        let for_fewer = if is_fewer { for_fewer + 1 } else { 0 };
        let for_none = if setting.is_none() { for_none + 1 } else { 0 };
        self.search = match for_none < CONFIRMATIONS {
            true => Search::Running { changes, for_fewer, for_none },
            false => Search::Settled { figures: *figures, changed: 0 },
        };
        if is_fewer && for_fewer < CONFIRMATIONS {
            return None;
        }
        let before = std::mem::replace(&mut self.setting, setting?);
        self.trial = Some(Trial { before, figures: *figures });
        reason
    }

    /// Returns the setting to try next.
    fn proposal(&self, figures: &LoadFigures, room: Room) -> Option<(Setting, TuningReason)> {
        let Setting { workers, prefetch_factor } = self.setting;
        let (cpus, step) =
            (self.options.cpus, |workers, prefetch_factor| Setting { workers, prefetch_factor });
        if figures.waiting > MUCH_WAITING && figures.busy > BUSY {
            let wanted = (RESERVE * figures.workers_for(figures.max_rate(cpus))).ceil() as usize;
            let more = wanted.clamp(workers + 1, 2 * workers).min(self.bounds.max_workers);
            let more = (workers..=more).rev().find(|&more| room.has(step(more, prefetch_factor)))?;
            let gain = figures.predicted_rate(more, cpus) / figures.batches_per_second;
            return (more > workers && gain >= MIN_PREDICTED_GAIN)
                .then_some((step(more, prefetch_factor), TuningReason::MainWaits));
        }
        if figures.waiting > MUCH_WAITING {
            let more = step(workers, (2 * prefetch_factor).min(self.bounds.max_prefetch));
            return (more != self.setting && room.has(more)).then_some((more, TuningReason::UnevenBatches));
        }
        if figures.waiting < NO_WAITING {
            let wanted = RESERVE_BEFORE_PARKING * figures.workers_for(figures.batches_per_second);
            let fewer = (wanted.ceil() as usize).max(workers.div_ceil(2)).max(self.bounds.min_workers);
            return (fewer < workers).then_some((step(fewer, prefetch_factor), TuningReason::WorkersIdle));
        }
        None
    }

    /// Ends the search after many changes: the rates vary too much to find a better setting.
    fn count_change(&mut self, figures: &LoadFigures) {
        let Search::Running { changes, .. } = self.search else { return };
        let changes = changes + 1;
        self.search = match changes < MAX_CHANGES || self.trial.is_some() {
            true => Search::Running { changes, for_fewer: 0, for_none: 0 },
            false => Search::Settled { figures: *figures, changed: 0 },
        };
    }
}

#[cfg(test)]
mod tests;
