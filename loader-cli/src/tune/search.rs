//! Which settings a sweep measures, and which one wins. Starts nothing and reads no clock.

use std::fmt;

use loader_core::LoadFigures;

/// Minimum number of rounds for a choice.
pub(super) const MIN_ROUNDS: usize = 3;
/// Prefetch factors that a sweep measures, beside that of the config.
const PREFETCH: [usize; 4] = [2, 4, 8, 16];
/// Numbers of workers that a sweep may measure, beside that of the config.
const WORKERS: [usize; 13] = [0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 62];
/// Factor by which a measured rate may exceed a predicted one. A setting is skipped if even this factor times
/// its prediction is less than a measured rate.
const MAX_ERROR: f64 = 1.15;
/// A setting takes part in the rounds if its rate is at least this share of the highest.
const CONTENDER: f64 = 0.8;
/// A smaller relative difference does not matter, however little the rates vary.
const MIN_DIFFERENCE: f64 = 0.02;
/// A larger relative difference always matters. A larger noise means that something else uses the machine.
const MAX_NOISE: f64 = 0.1;
/// More batches ahead can help if the program waits for a larger share of the time than this, while workers
/// are busy for a smaller share.
const WAITING: f64 = 0.02;
const ALWAYS_BUSY: f64 = 0.98;

/// What a sweep varies. The order is that of cost: fewer workers, then fewer batches ahead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Setting {
    pub(super) num_workers: usize,
    /// `None` without workers.
    pub(super) prefetch_factor: Option<usize>,
}

impl Setting {
    pub(super) fn new(num_workers: usize, prefetch_factor: usize) -> Self {
        Self { num_workers, prefetch_factor: (num_workers > 0).then_some(prefetch_factor) }
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "num_workers = {}", self.num_workers)?;
        self.prefetch_factor.map_or(Ok(()), |factor| write!(f, ", prefetch_factor = {factor}"))
    }
}

/// What a sweep may measure.
#[derive(Debug, Clone)]
pub(super) struct Bounds {
    pub(super) cpus: usize,
    /// Maximum number of workers, at least 1.
    pub(super) max_workers: usize,
    /// The keys that need workers, and that the config or an upper layer sets: 0 workers are then invalid.
    pub(super) needs_workers: Vec<&'static str>,
    /// The setting of the config, if it is fixed and within the bounds.
    pub(super) current: Option<Setting>,
    /// True if the program has a step, which workers overlap with loading.
    pub(super) has_step: bool,
}

/// What was measured with a setting.
#[derive(Debug, Clone)]
pub(super) struct Measured {
    pub(super) setting: Setting,
    /// Samples per second before the rounds, which only tells whether the setting takes part in them.
    pub(super) first: f64,
    /// Samples per second in each round.
    pub(super) rounds: Vec<f64>,
    /// What the loader has measured in the last interval.
    pub(super) figures: Option<LoadFigures>,
    pub(super) samples_per_batch: f64,
    /// Number of workers that the memory has room for, if it could be estimated.
    pub(super) affordable_workers: Option<usize>,
}

impl Measured {
    /// Median of the rounds, or the rate before them.
    pub(super) fn rate(&self) -> f64 {
        if self.rounds.is_empty() { self.first } else { median(self.rounds.clone()) }
    }
}

/// Why a number of workers was not measured.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Skipped {
    /// The setting is invalid with these keys.
    NeedsWorkers(Vec<&'static str>),
    /// At most this number of samples per second is predicted.
    TooSlow(f64),
    /// This number of workers is predicted to reach the rate of the program's step or of the CPUs.
    Enough(usize),
    /// The memory has room for this number of workers.
    Memory(usize),
    /// The time was over.
    NoTime,
}

/// The fastest setting, or one that is as fast and costs less.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Choice {
    pub(super) setting: Setting,
    pub(super) rate: f64,
    /// The fastest setting, if another one is chosen: by how much it is faster, and the noise.
    pub(super) over: Option<(Setting, f64, f64)>,
    /// The rate divided by that of the config's setting, if this was measured.
    pub(super) gain: Option<f64>,
    /// The noise, if it is so large that the choice may be wrong.
    pub(super) unsteady: Option<f64>,
}

/// The settings that were measured so far.
#[derive(Debug, Clone)]
pub(super) struct Search {
    bounds: Bounds,
    measured: Vec<Measured>,
}

impl Search {
    pub(super) fn new(bounds: Bounds) -> Self {
        Self { bounds, measured: Vec::new() }
    }

    /// Returns what was measured, by setting.
    pub(super) fn measured(&self) -> &[Measured] {
        &self.measured
    }

    /// Notes what was measured before the rounds.
    pub(super) fn add(&mut self, measured: Measured) {
        let at = self.measured.partition_point(|other| other.setting < measured.setting);
        self.measured.insert(at, measured);
    }

    /// Notes what was measured in a round.
    pub(super) fn add_round(&mut self, setting: Setting, rate: f64, figures: Option<LoadFigures>) {
        if let Some(measured) = self.measured.iter_mut().find(|measured| measured.setting == setting) {
            measured.rounds.push(rate);
            measured.figures = figures.or(measured.figures);
        }
    }

    /// Returns the setting to measure next before the rounds; `None` if no other setting can win.
    ///
    /// One worker is the first, because the model needs its figures. Then comes the largest number that can
    /// win: its rate rules out most of the smaller ones.
    pub(super) fn next_new(&self) -> Option<Setting> {
        let first = Setting::new(1, PREFETCH[0]);
        let first = [Some(first), self.bounds.current].into_iter().flatten();
        let workers = self.grid().into_iter().rev().filter(|&workers| self.skipped(workers).is_none());
        let workers = workers.map(|workers| Setting::new(workers, PREFETCH[0]));
        first.chain(workers).chain(self.more_batches_ahead()).find(|&setting| self.find(setting).is_none())
    }

    /// Returns the numbers of workers that were not measured, with the reason.
    pub(super) fn not_measured(&self) -> Vec<(usize, Skipped)> {
        let is_new =
            |&workers: &usize| self.measured.iter().all(|measured| measured.setting.num_workers != workers);
        let reason = |workers| (workers, self.skipped(workers).unwrap_or(Skipped::NoTime));
        self.grid().into_iter().filter(is_new).map(reason).collect()
    }

    /// Returns the settings that take part in the next round: those that may still win, and that of the
    /// config.
    pub(super) fn contenders(&self) -> Vec<Setting> {
        let best = self.measured.iter().map(Measured::rate).fold(0.0, f64::max);
        let rounds = self.measured.iter().map(|measured| measured.rounds.len()).max().unwrap_or(0);
        let takes_part = |measured: &&Measured| {
            let is_current = Some(measured.setting) == self.bounds.current;
            is_current || (measured.rounds.len() == rounds && measured.rate() >= CONTENDER * best)
        };
        self.measured.iter().filter(takes_part).map(|measured| measured.setting).collect()
    }

    /// Returns the winner; `None` before [`MIN_ROUNDS`] rounds.
    pub(super) fn choose(&self) -> Option<Choice> {
        let all = || self.measured.iter().filter(|measured| measured.rounds.len() >= MIN_ROUNDS);
        let fastest = all().max_by(|a, b| a.rate().total_cmp(&b.rate()))?;
        // Without a step, nothing shows that workers load while the program computes. 0 workers then win only
        // if they are faster.
        let cost = |measured: &&Measured| {
            (measured.setting.num_workers == 0 && !self.bounds.has_step, measured.setting)
        };
        let as_fast = all().filter(|other| {
            let (ratio, noise) = compared(other, fastest);
            ratio >= 1.0 - noise.min(MAX_NOISE)
        });
        let chosen = as_fast.min_by_key(cost)?;
        let over = (chosen.setting != fastest.setting).then(|| {
            let (ratio, noise) = compared(chosen, fastest);
            (fastest.setting, (1.0 / ratio - 1.0).max(0.0), noise.min(MAX_NOISE))
        });
        let noise = all().map(|other| compared(other, fastest).1).fold(0.0, f64::max);
        let unsteady = Some(noise).filter(|noise| *noise > MAX_NOISE);
        let current = self.bounds.current.and_then(|current| self.find(current));
        let gain = current.filter(|current| !current.rounds.is_empty());
        let gain = gain.map(|current| compared(chosen, current).0);
        Some(Choice { setting: chosen.setting, rate: chosen.rate(), over, gain, unsteady })
    }

    fn find(&self, setting: Setting) -> Option<&Measured> {
        self.measured.iter().find(|measured| measured.setting == setting)
    }

    /// Returns the numbers of workers within the bounds, in order.
    fn grid(&self) -> Vec<usize> {
        let Bounds { cpus, max_workers, .. } = self.bounds;
        let mut grid = WORKERS.to_vec();
        grid.extend([cpus.saturating_sub(1), cpus, max_workers]);
        grid.retain(|&workers| workers <= max_workers);
        grid.sort_unstable();
        grid.dedup();
        grid
    }

    /// Returns why this number of workers cannot win.
    fn skipped(&self, workers: usize) -> Option<Skipped> {
        let Bounds { cpus, needs_workers, .. } = &self.bounds;
        if workers == 0 && !needs_workers.is_empty() {
            return Some(Skipped::NeedsWorkers(needs_workers.clone()));
        }
        let affordable = self.measured.iter().filter_map(|measured| measured.affordable_workers).min();
        if let Some(affordable) = affordable.filter(|&affordable| affordable < workers) {
            return Some(Skipped::Memory(affordable));
        }
        let with_workers = self.measured.iter().filter(|measured| measured.setting.num_workers > 0);
        let models: Vec<(LoadFigures, f64)> = with_workers
            .filter_map(|measured| Some((measured.figures?, measured.samples_per_batch)))
            .collect();
        let fewer = self.grid().into_iter().rfind(|&fewer| fewer < workers);
        let usable = models.iter().map(|(figures, _)| figures.usable_workers(*cpus)).min()?;
        if let Some(fewer) = fewer.filter(|&fewer| fewer >= usable) {
            return Some(Skipped::Enough(fewer));
        }
        let predicted = models.iter().map(|(figures, samples)| match workers {
            0 => samples / (figures.step_seconds + figures.worker_seconds),
            _ => samples * figures.predicted_rate(workers, *cpus),
        });
        let predicted = predicted.fold(0.0, f64::max);
        let best = self.measured.iter().map(Measured::rate).fold(0.0, f64::max);
        (MAX_ERROR * predicted < best).then_some(Skipped::TooSlow(predicted))
    }

    /// Returns the fastest number of workers with twice as many batches ahead, if the program waits although
    /// workers are idle, and if the last increase has raised the rate.
    fn more_batches_ahead(&self) -> Option<Setting> {
        let fastest = self.measured.iter().max_by(|a, b| a.rate().total_cmp(&b.rate()))?;
        let workers = fastest.setting.num_workers;
        let mut largest =
            self.measured.iter().rev().filter(|measured| measured.setting.num_workers == workers);
        let (last, before) = (largest.next()?, largest.next());
        let figures = last.figures?;
        let can_help = figures.waiting_share > WAITING
            && figures.busy_share < ALWAYS_BUSY
            && before.is_none_or(|before| last.rate() >= (1.0 + MIN_DIFFERENCE) * before.rate());
        let now = last.setting.prefetch_factor.filter(|_| can_help)?;
        let more = PREFETCH.into_iter().find(|&more| more > now)?;
        Some(Setting::new(workers, more))
    }
}

/// Returns the median of the rounds' ratios of two rates, and the noise: the error that this median exceeds in one
/// of 20 sweeps, at least [`MIN_DIFFERENCE`]. Both rates of a ratio are of one round, so that a change of the
/// machine's speed between two rounds does not matter.
fn compared(a: &Measured, b: &Measured) -> (f64, f64) {
    if a.setting == b.setting {
        return (1.0, MIN_DIFFERENCE);
    }
    let ratios: Vec<f64> = a.rounds.iter().zip(&b.rounds).map(|(a, b)| a / b).collect();
    let ratio = median(ratios.clone());
    // For a normal distribution, the standard deviation is 1.48 times the median distance from the median, and
    // the standard error of a median is 1.25 times the standard deviation, divided by the root of the number.
    let distance = median(ratios.iter().map(|other| (other - ratio).abs()).collect());
    let error = 1.25 * 1.48 * distance / (ratios.len() as f64).sqrt();
    (ratio, (1.96 * error).max(MIN_DIFFERENCE))
}

/// Returns 0 if there are no values.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => 0.0,
        len if len % 2 == 1 => values[middle],
        _ => f64::midpoint(values[middle - 1], values[middle]),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const BOUNDS: Bounds =
        Bounds { cpus: 2, max_workers: 16, needs_workers: Vec::new(), current: None, has_step: false };

    /// A load whose batches take a worker `work` seconds, of which `cpu` are processor time, and the program
    /// `step` seconds.
    #[derive(Clone, Copy)]
    struct Load {
        work: f64,
        cpu: f64,
        step: f64,
    }

    impl Load {
        fn rate(self, Setting { num_workers, .. }: Setting) -> f64 {
            match num_workers {
                0 => 1.0 / (self.work + self.step),
                _ => (num_workers as f64 / self.work).min(2.0 / self.cpu).min(1.0 / self.step),
            }
        }

        fn figures(self, setting: Setting) -> LoadFigures {
            let rate = self.rate(setting);
            let waiting = 1.0 - rate * self.step;
            serde_json::from_value(json!({
                "batches": 100, "batches_per_second": rate, "waiting_share": waiting,
                "busy_share": (rate * self.work / setting.num_workers.max(1) as f64).min(1.0),
                "on_cpu_share": 1.0, "step_seconds": self.step,
                "worker_seconds": self.work, "cpu_seconds": self.cpu,
            }))
            .unwrap()
        }

        /// Measures everything that may win. Returns the numbers of workers, in the order of measurement.
        fn explore(self, search: &mut Search) -> Vec<usize> {
            let mut order = Vec::new();
            while let Some(setting) = search.next_new() {
                assert!(order.len() < 30, "{order:?}");
                order.push(setting.num_workers);
                search.add(Measured {
                    setting,
                    first: self.rate(setting),
                    rounds: Vec::new(),
                    figures: Some(self.figures(setting)),
                    samples_per_batch: 1.0,
                    affordable_workers: None,
                });
            }
            order
        }
    }

    /// Rounds in which each setting has the rates that `rates` returns for it.
    fn choose(bounds: Bounds, rates: &[(usize, [f64; 4])]) -> Choice {
        let mut search = Search::new(bounds);
        for (workers, rates) in rates {
            let setting = Setting::new(*workers, 2);
            let rounds = rates.to_vec();
            let (figures, affordable_workers) = (None, None);
            search.add(Measured {
                setting,
                first: 1.0,
                rounds,
                figures,
                samples_per_batch: 1.0,
                affordable_workers,
            });
        }
        search.choose().unwrap()
    }

    #[test]
    fn the_model_skips_what_cannot_win() {
        // Two CPUs: with a reserve, three workers use them. 0 workers are as fast as one.
        let mut search = Search::new(BOUNDS);
        // A worker that shares a CPU is busy for 67 % of the time at least, and more batches ahead are tried.
        assert_eq!(Load { work: 0.01, cpu: 0.01, step: 0.0 }.explore(&mut search), [1, 3, 2, 3]);
        let (mut low, mut high) = (Vec::new(), Vec::new());
        for (workers, reason) in search.not_measured() {
            match reason {
                Skipped::TooSlow(rate) => low.push((workers, rate.round())),
                Skipped::Enough(enough) => high.push((workers, enough)),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(low, [(0, 100.0)]);
        assert_eq!(high, [(4, 3), (6, 4), (8, 6), (12, 8), (16, 12)]);

        // The workers wait for a disk: the largest number comes at once, and rules out the others.
        let waiting = Load { work: 0.01, cpu: 0.0001, step: 0.0 };
        assert_eq!(waiting.explore(&mut Search::new(BOUNDS)), [1, 16]);
        // The step limits the rate.
        let slow_step = Load { work: 0.002, cpu: 0.002, step: 0.02 };
        assert_eq!(slow_step.explore(&mut Search::new(BOUNDS)), [1, 0]);
        // The setting of the config is always measured, and no more workers than the memory has room for.
        let bounds = Bounds { current: Some(Setting::new(6, 3)), ..BOUNDS };
        assert_eq!(slow_step.explore(&mut Search::new(bounds)), [1, 6, 0]);
        let mut small = Search::new(BOUNDS);
        let setting = Setting::new(1, 2);
        let (rounds, figures) = (Vec::new(), Some(waiting.figures(setting)));
        small.add(Measured {
            setting,
            first: 100.0,
            rounds,
            figures,
            samples_per_batch: 1.0,
            affordable_workers: Some(5),
        });
        assert_eq!(small.next_new(), Some(Setting::new(4, 2)));
    }

    #[test]
    fn zero_workers_are_left_out_if_a_key_needs_workers() {
        let bounds = Bounds { needs_workers: vec!["timeout"], ..BOUNDS };
        let mut search = Search::new(bounds);
        assert_eq!(Load { work: 0.004, cpu: 0.004, step: 0.02 }.explore(&mut search), [1]);
        assert_eq!(search.not_measured()[0], (0, Skipped::NeedsWorkers(vec!["timeout"])));
    }

    #[test]
    fn more_batches_ahead_are_tried_only_if_workers_are_idle() {
        let mut search = Search::new(BOUNDS);
        let uneven = Load { work: 0.01, cpu: 0.0001, step: 0.0 };
        let setting = Setting::new(16, 2);
        for (setting, busy) in [(Setting::new(1, 2), 1.0), (setting, 0.7)] {
            let mut figures = serde_json::to_value(uneven.figures(setting)).unwrap();
            figures["busy_share"] = busy.into();
            search.add(Measured {
                setting,
                first: setting.num_workers as f64 * 100.0,
                rounds: Vec::new(),
                figures: serde_json::from_value(figures).ok(),
                samples_per_batch: 1.0,
                affordable_workers: None,
            });
        }
        let more = search.next_new().unwrap();
        assert_eq!(more, Setting::new(16, 4));
        let mut same = search.measured().last().unwrap().clone();
        same.setting = more;
        search.add(same);
        assert_eq!(search.next_new(), None, "the last increase did not help");
    }

    #[test]
    fn a_difference_below_the_noise_takes_fewer_workers() {
        // The machine becomes slower from round to round, which both settings share.
        let clear = choose(BOUNDS, &[(1, [100.0, 90.0, 80.0, 70.0]), (2, [110.0, 99.0, 88.0, 77.0])]);
        assert_eq!((clear.setting, clear.over.is_none()), (Setting::new(2, 2), true));
        let noisy = choose(BOUNDS, &[(1, [100.0, 90.0, 80.0, 70.0]), (2, [98.0, 99.0, 78.0, 77.0])]);
        assert_eq!(noisy.setting, Setting::new(1, 2));
        let unsteady = choose(BOUNDS, &[(1, [80.0, 40.0, 90.0, 60.0]), (2, [100.0; 4])]);
        assert!(unsteady.setting == Setting::new(2, 2) && unsteady.unsteady.unwrap() > 0.2, "{unsteady:?}");
        assert_eq!(clear.unsteady, None);
        let small = choose(BOUNDS, &[(1, [100.0; 4]), (2, [101.0; 4])]);
        let (fastest, faster, noise) = small.over.unwrap();
        assert_eq!((small.setting, fastest), (Setting::new(1, 2), Setting::new(2, 2)));
        assert!((faster - 0.01).abs() < 1e-9 && (noise - MIN_DIFFERENCE).abs() < 1e-9);
    }

    #[test]
    fn without_a_step_zero_workers_win_only_if_they_are_faster() {
        let equal = [(0, [100.0; 4]), (1, [99.5; 4])];
        assert_eq!(choose(BOUNDS, &equal).setting, Setting::new(1, 2));
        assert_eq!(choose(Bounds { has_step: true, ..BOUNDS }, &equal).setting, Setting::new(0, 2));
        assert_eq!(choose(BOUNDS, &[(0, [110.0; 4]), (1, [100.0; 4])]).setting, Setting::new(0, 2));
    }

    #[test]
    fn only_settings_that_may_win_take_part_in_the_rounds() {
        let mut search = Search::new(Bounds { current: Some(Setting::new(4, 2)), ..BOUNDS });
        for (workers, first) in [(1, 50.0), (2, 90.0), (3, 100.0), (4, 10.0)] {
            let setting = Setting::new(workers, 2);
            let (rounds, figures, affordable_workers) = (Vec::new(), None, None);
            search.add(Measured {
                setting,
                first,
                rounds,
                figures,
                samples_per_batch: 1.0,
                affordable_workers,
            });
        }
        let workers = |search: &Search| -> Vec<usize> {
            search.contenders().iter().map(|setting| setting.num_workers).collect()
        };
        assert_eq!(workers(&search), [2, 3, 4]);
        for (workers, rate) in [(2, 70.0), (3, 100.0), (4, 10.0)] {
            search.add_round(Setting::new(workers, 2), rate, None);
        }
        assert_eq!(workers(&search), [3, 4]);
        assert_eq!(search.choose(), None);
    }
}
