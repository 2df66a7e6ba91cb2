//! Runs the tuner on a model of a program, its workers and a machine.

use std::time::Duration;

use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};

use super::*;

const MEMORY: MemoryBounds = MemoryBounds { max_workers: usize::MAX, max_batches: usize::MAX };
const OPTIONS: TunerOptions = TunerOptions {
    min_workers: 1,
    max_workers: 16,
    max_prefetch: 2,
    within_epochs: true,
    freeze: false,
    cpus: 16,
};

/// A program and a machine. Times are in seconds.
#[derive(Debug, Clone, Copy)]
struct Load {
    /// Time of the program's step.
    step: f64,
    /// Time and processor time of a worker for a batch.
    work: f64,
    cpu: f64,
    /// Batches per second that the storage gives.
    storage: f64,
    /// Share of the workers' time that is idle because some batches are slow, with a prefetch factor of 1. It
    /// is inversely proportional to the prefetch factor.
    uneven: f64,
}

const LOAD: Load = Load { step: 0.01, work: 0.02, cpu: 0.02, storage: f64::INFINITY, uneven: 0.0 };

impl Load {
    /// Returns the rate with a setting, and the share of the workers' time that is busy.
    fn rate(self, Setting { workers, prefetch_factor }: Setting, cpus: usize) -> (f64, f64) {
        let usable = 1.0 - self.uneven / prefetch_factor as f64;
        let of_workers = workers as f64 * usable / self.work;
        let of_machine = (cpus as f64 / self.cpu).min(self.storage);
        let rate = of_workers.min(of_machine).min(1.0 / self.step);
        // Workers that share the CPUs or the storage are busy for longer.
        let busy = if of_machine < of_workers.min(1.0 / self.step) {
            usable
        } else {
            rate * self.work / workers as f64
        };
        (rate, busy)
    }
}

struct Run {
    tuner: Tuner,
    options: TunerOptions,
    rng: ChaCha8Rng,
    decisions: Vec<TuningDecision>,
    batches: u64,
}

impl Run {
    fn new(options: TunerOptions, workers: usize, seed: u64) -> Self {
        let tuner = Tuner::new(options, Setting { workers, prefetch_factor: 2 });
        Self { tuner, options, rng: ChaCha8Rng::seed_from_u64(seed), decisions: Vec::new(), batches: 0 }
    }

    /// Loads for some seconds, with times that vary by up to 10 %.
    fn load(&mut self, load: Load, seconds: f64) {
        let mut elapsed = 0.0;
        while elapsed < seconds {
            let setting = self.tuner.setting();
            let (rate, busy) = load.rate(setting, self.options.cpus);
            let batch = self.rng.random_range(0.9..1.1) / rate;
            let waiting = (batch - load.step * self.rng.random_range(0.9..1.0)).max(0.0);
            elapsed += batch;
            self.batches += 1;
            let duration = Duration::from_secs_f64;
            if self
                .tuner
                .note_batch(duration(batch), duration(if rate < 0.999 / load.step { waiting } else { 0.0 }))
            {
                let busy = duration(batch * busy * setting.workers as f64);
                let worker_cpu = duration(load.cpu);
                self.tuner.add_use(ResourceUse {
                    worker_cpu_wait: Duration::ZERO,
                    worker_busy: busy,
                    worker_cpu,
                    main_cpu: Duration::ZERO,
                    worker_time: duration(batch * setting.workers as f64),
                });
            }
            if self.tuner.is_due()
                && let Some(decision) = self.tuner.decide(MEMORY)
            {
                self.decisions.push(decision);
            }
        }
    }
}

/// Loads for a minute, and compares the rate with the best fixed number of workers.
fn assert_near_best(options: TunerOptions, load: Load) {
    for (seed, first) in [1, 2, 4, 15].into_iter().enumerate() {
        let first = first.clamp(options.min_workers, options.max_workers);
        let mut run = Run::new(options, first, seed as u64);
        run.load(load, 60.0);
        let fixed = |workers| load.rate(Setting { workers, ..run.tuner.setting() }, options.cpus).0;
        let best = (options.min_workers..=options.max_workers).map(fixed).fold(0.0, f64::max);
        let found = fixed(run.tuner.setting().workers);
        assert!(found >= 0.95 * best, "from {first}: {found} of {best}\n{:#?}", run.decisions);
        assert!(run.decisions.len() <= 9, "from {first}: {:#?}", run.decisions);
    }
}

#[test]
fn as_many_workers_are_found_as_the_step_needs() {
    for needed in [0.2, 1.0, 2.5, 4.0, 7.0, 12.0] {
        assert_near_best(OPTIONS, Load { work: needed * LOAD.step, cpu: needed * LOAD.step, ..LOAD });
    }
}

#[test]
fn workers_that_wait_for_the_network_may_be_more_than_the_cpus() {
    let options = TunerOptions { cpus: 2, ..OPTIONS };
    assert_near_best(options, Load { work: 0.1, cpu: 0.001, ..LOAD });
    assert_near_best(options, Load { work: 0.1, cpu: 0.001, storage: 35.0, ..LOAD });
}

#[test]
fn workers_that_would_not_pay_are_not_kept() {
    let options = TunerOptions { cpus: 2, ..OPTIONS };
    let load = Load { step: 0.0001, ..LOAD };
    assert_near_best(options, load);
    let mut run = Run::new(options, 1, 7);
    run.load(load, 60.0);
    assert_eq!(run.tuner.setting().workers, 2, "{:#?}", run.decisions);
}

#[test]
fn more_batches_are_loaded_ahead_if_some_are_slow() {
    let load = Load { step: 0.001, uneven: 0.9, cpu: 0.001, ..LOAD };
    let mut run = Run::new(TunerOptions { max_prefetch: 16, ..OPTIONS }, 4, 1);
    run.load(load, 60.0);
    assert!(run.tuner.setting().prefetch_factor >= 4, "{:#?}", run.decisions);
}

#[test]
fn a_search_begins_again_when_the_load_changes() {
    for (freeze, found) in [(false, 8..=10), (true, 2..=3)] {
        let mut run = Run::new(TunerOptions { freeze, ..OPTIONS }, 1, 3);
        run.load(LOAD, 60.0);
        assert!((2..=3).contains(&run.tuner.setting().workers), "{:#?}", run.decisions);
        run.load(Load { work: 0.08, cpu: 0.08, ..LOAD }, 60.0);
        assert!(found.contains(&run.tuner.setting().workers), "{:#?}", run.decisions);
    }
}

#[test]
fn more_workers_without_a_gain_are_remembered_until_the_load_changes() {
    let slow_storage = Load { cpu: 0.001, storage: 60.0, ..LOAD };
    let mut run = Run::new(OPTIONS, 1, 5);
    assert!(!run.tuner.has_tried_more_workers());
    run.load(slow_storage, 60.0);
    assert!(run.tuner.has_tried_more_workers(), "{:#?}", run.decisions);
    run.load(Load { step: 0.1, ..slow_storage }, 10.0);
    assert!(!run.tuner.has_tried_more_workers(), "{:#?}", run.decisions);
}

#[test]
fn the_setting_stays_within_its_bounds_and_memory() {
    let mut rng = ChaCha8Rng::seed_from_u64(11);
    for seed in 0..200 {
        let min_workers = rng.random_range(1..4);
        let max_workers = rng.random_range(min_workers..20);
        let options = TunerOptions { min_workers, max_workers, max_prefetch: 16, ..OPTIONS };
        let memory =
            MemoryBounds { max_workers: rng.random_range(1..20), max_batches: rng.random_range(1..60) };
        let mut run = Run::new(options, min_workers, seed);
        for _ in 0..40 {
            let setting = run.tuner.setting();
            for _ in 0..200 {
                let batch = Duration::from_secs_f64(rng.random_range(0.001..0.1));
                run.tuner.note_batch(batch, batch.mul_f64(rng.random_range(0.0..1.0)));
                let busy = batch.mul_f64(rng.random_range(0.0..1.0) * setting.workers as f64);
                run.tuner.add_use(ResourceUse {
                    worker_cpu_wait: Duration::ZERO,
                    worker_busy: busy,
                    worker_time: batch * setting.workers as u32,
                    worker_cpu: busy / 3,
                    main_cpu: batch / 9,
                });
            }
            run.tuner.decide(memory);
            let now = run.tuner.setting();
            assert!((min_workers..=max_workers).contains(&now.workers), "{now:?} of {options:?}");
            assert!((2..=16).contains(&now.prefetch_factor));
            let is_more = now.workers > setting.workers || now.prefetch_factor > setting.prefetch_factor;
            assert!(
                !is_more || memory.allow(now) || run.tuner.trial.is_none(),
                "{setting:?} {now:?} in {memory:?}"
            );
        }
    }
}

#[test]
fn a_pause_of_the_program_is_not_measured() {
    let options = TunerOptions { max_workers: 4, ..OPTIONS };
    let mut run = Run::new(options, 1, 5);
    for _ in 0..60 {
        // Between the pauses, four workers are needed.
        run.load(Load { work: 0.035, cpu: 0.035, ..LOAD }, 1.3);
        run.tuner.note_batch(Duration::from_secs(30), Duration::ZERO);
    }
    assert_eq!(run.tuner.setting().workers, 4, "{:#?}", run.decisions);
}
