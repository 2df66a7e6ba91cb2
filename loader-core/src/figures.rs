//! What the loader measures over some batches, and the rates that it predicts from it.

use std::{ops::AddAssign, time::Duration};

use serde::Serialize;

/// What workers have done in a time.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Work {
    /// Time that workers spent on tasks, all of them together.
    pub(crate) busy: Duration,
    /// Processor time of the workers.
    pub(crate) worker_cpu: Duration,
    /// Processor time of main, with the program's step if it runs on the CPU.
    pub(crate) main_cpu: Duration,
}

impl AddAssign for Work {
    fn add_assign(&mut self, other: Self) {
        self.busy += other.busy;
        self.worker_cpu += other.worker_cpu;
        self.main_cpu += other.main_cpu;
    }
}

/// What the loader has measured over some batches, from [`EpochReport::figures`](crate::EpochReport::figures)
/// and in a [`TuningDecision`](crate::TuningDecision). Shares are from 0 to 1, times are in seconds per batch.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[non_exhaustive]
pub struct LoadFigures {
    /// Number of batches that the program got.
    pub batches: u64,
    /// Batches per second.
    pub batches_per_second: f64,
    /// Share of the time that the program waited in `next`.
    pub waiting: f64,
    /// Share of the workers' time that they spent on tasks. Without workers, it equals `waiting`.
    pub busy: f64,
    /// Share of this busy time in which the workers used a CPU, rather than wait for disks, servers or CPUs.
    pub on_cpu: f64,
    /// Time of the program's own step.
    pub step: f64,
    /// Time that a worker spends on a batch.
    pub work: f64,
    /// Processor time that all processes spend on a batch.
    pub cpu: f64,
}

impl LoadFigures {
    /// Returns `None` if nothing was measured.
    pub(crate) fn new(
        batches: u64,
        elapsed: Duration,
        waiting: Duration,
        work: Work,
        workers: usize,
    ) -> Option<Self> {
        if batches == 0 || elapsed.is_zero() {
            return None;
        }
        let (count, elapsed, waiting) = (batches as f64, elapsed.as_secs_f64(), waiting.as_secs_f64());
        // Without workers, main works while the program waits.
        let (busy, busy_cpu) = match workers {
            0 => (waiting, (work.main_cpu.as_secs_f64() - (elapsed - waiting)).max(0.0)),
            _ => (work.busy.as_secs_f64(), work.worker_cpu.as_secs_f64()),
        };
        Some(Self {
            batches,
            batches_per_second: count / elapsed,
            waiting: (waiting / elapsed).min(1.0),
            busy: (busy / elapsed / workers.max(1) as f64).min(1.0),
            on_cpu: if busy > 0.0 { (busy_cpu / busy).min(1.0) } else { 0.0 },
            step: (elapsed - waiting).max(0.0) / count,
            work: busy / count,
            cpu: (work.worker_cpu + work.main_cpu).as_secs_f64() / count,
        })
    }

    /// Returns the maximum rate in batches per second with any number of workers: of the program's step, or of
    /// the CPUs.
    pub(crate) fn max_rate(&self, cpus: usize) -> f64 {
        (1.0 / self.step).min(cpus as f64 / self.cpu)
    }

    /// Returns the number of busy workers that a rate needs.
    pub(crate) fn workers_for(&self, rate: f64) -> f64 {
        rate * self.work
    }

    /// Predicts the number of batches per second with `workers` workers, at least 1, on `cpus` CPUs. The
    /// prediction is a maximum: it knows of no limit of disks and servers.
    pub fn predicted_rate(&self, workers: usize, cpus: usize) -> f64 {
        self.max_rate(cpus).min(workers as f64 / self.work)
    }

    /// True if the program's step and a batch's work differ from those of `other` by less than the factor
    /// `max`.
    pub(crate) fn is_like(&self, other: &Self, max: f64) -> bool {
        let is_like = |a: f64, b: f64| a <= b * max && b <= a * max;
        // A step that is short beside a worker's work does not matter, however much it varies.
        let step = |figures: &Self| figures.step.max(figures.work / 100.0);
        is_like(step(self), step(other)) && is_like(self.work, other.work)
    }
}
