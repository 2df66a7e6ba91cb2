//! What the loader measures over some batches, and the rates that it predicts from it.

use std::{
    ops::{AddAssign, Sub},
    time::Duration,
};

use loader_ipc::process;
use serde::{Deserialize, Serialize};

/// Times of all processes in an interval.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ResourceUse {
    /// Time for which there were workers, all of them together; zero without workers.
    pub(crate) worker_time: Duration,
    /// Time that workers spent on tasks, all of them together.
    pub(crate) worker_busy: Duration,
    /// Processor time of the workers.
    pub(crate) worker_cpu: Duration,
    /// Time for which workers were ready to run while other threads had the CPUs.
    pub(crate) worker_cpu_wait: Duration,
    /// Processor time of main, with the program's step if it runs on the CPU.
    pub(crate) main_cpu: Duration,
}

impl AddAssign for ResourceUse {
    fn add_assign(&mut self, other: Self) {
        self.worker_time += other.worker_time;
        self.worker_busy += other.worker_busy;
        self.worker_cpu += other.worker_cpu;
        self.worker_cpu_wait += other.worker_cpu_wait;
        self.main_cpu += other.main_cpu;
    }
}

impl Sub for ResourceUse {
    type Output = Self;

    /// Returns the difference to an earlier use.
    fn sub(self, before: Self) -> Self {
        Self {
            worker_time: self.worker_time.saturating_sub(before.worker_time),
            worker_busy: self.worker_busy.saturating_sub(before.worker_busy),
            worker_cpu: self.worker_cpu.saturating_sub(before.worker_cpu),
            worker_cpu_wait: self.worker_cpu_wait.saturating_sub(before.worker_cpu_wait),
            main_cpu: self.main_cpu.saturating_sub(before.main_cpu),
        }
    }
}

/// Returns the processor time that main's process has used.
pub(crate) fn main_cpu() -> Duration {
    process::cpu_time(std::process::id()).unwrap_or_default()
}

/// What the loader has measured over some batches, from [`EpochReport::figures`](crate::EpochReport::figures)
/// and in a [`TuningDecision`](crate::TuningDecision). Shares are from 0 to 1; seconds are per batch.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct LoadFigures {
    /// Number of batches that the program got.
    pub batches: u64,
    /// Batches per second.
    pub batches_per_second: f64,
    /// Share of the time that the program waited in `next`.
    pub waiting_share: f64,
    /// Share of the workers' time that they spent on tasks. Without workers, it equals `waiting_share`.
    pub busy_share: f64,
    /// Share of the busy time in which workers used a CPU; 0 without workers. In the rest they waited for
    /// disks, servers or CPUs.
    pub on_cpu_share: f64,
    /// Share of the busy time in which workers waited for a CPU, because other threads had all of them; 0 without
    /// workers, and if the kernel does not measure it.
    #[serde(default)]
    pub cpu_wait_share: f64,
    /// Seconds of the program between two calls of `next`.
    pub step_seconds: f64,
    /// Seconds that a worker spends on a batch.
    pub worker_seconds: f64,
    /// Processor time of all processes, in seconds.
    pub cpu_seconds: f64,
}

/// Share of busy time above which workers are the bottleneck.
pub(crate) const MIN_BUSY_SHARE: f64 = 0.8;
/// Predicted ratio of rates from which on a change pays.
const MIN_PREDICTED_GAIN: f64 = 1.05;
/// Factor by which there should be more workers than the computed number, because the times of batches vary.
const WORKER_RESERVE: f64 = 1.15;

impl LoadFigures {
    /// Returns `None` if nothing was measured.
    pub(crate) fn new(batches: u64, elapsed: Duration, waiting: Duration, used: ResourceUse) -> Option<Self> {
        if batches == 0 || elapsed.is_zero() {
            return None;
        }
        let (count, elapsed, waiting) = (batches as f64, elapsed.as_secs_f64(), waiting.as_secs_f64());
        // Without workers, main works while the program waits.
        let (busy, of) = if used.worker_time.is_zero() {
            (waiting, elapsed)
        } else {
            (used.worker_busy.as_secs_f64(), used.worker_time.as_secs_f64())
        };
        let of_busy = |time: Duration| if busy > 0.0 { (time.as_secs_f64() / busy).min(1.0) } else { 0.0 };
        Some(Self {
            batches,
            batches_per_second: count / elapsed,
            waiting_share: (waiting / elapsed).min(1.0),
            busy_share: (busy / of).min(1.0),
            on_cpu_share: of_busy(used.worker_cpu),
            cpu_wait_share: of_busy(used.worker_cpu_wait),
            step_seconds: (elapsed - waiting).max(0.0) / count,
            worker_seconds: busy / count,
            cpu_seconds: (used.worker_cpu + used.main_cpu).as_secs_f64() / count,
        })
    }

    /// Returns the maximum number of batches per second with any number of workers: the rate of the program's
    /// step or that of the CPUs, whichever is lower.
    pub(crate) fn max_rate(&self, cpus: usize) -> f64 {
        (1.0 / self.step_seconds).min(cpus as f64 / self.cpu_seconds)
    }

    /// Predicts the number of batches per second without workers: main loads each batch, and then the program uses it.
    pub(crate) fn rate_in_process(&self) -> f64 {
        1.0 / (self.worker_seconds + self.step_seconds)
    }

    /// Returns the number of busy workers that a rate needs.
    pub(crate) fn workers_for(&self, rate: f64) -> f64 {
        rate * self.worker_seconds
    }

    /// Predicts the number of batches per second with `workers` workers, at least 1, on `cpus` CPUs. The
    /// prediction is a maximum: it knows of no limit of disks and servers.
    pub fn predicted_rate(&self, workers: usize, cpus: usize) -> f64 {
        self.max_rate(cpus).min(workers as f64 / self.worker_seconds)
    }

    /// Returns the number of workers that the program's step, or `cpus` CPUs, can use, with a reserve of 15 %
    /// because the times of batches vary. More workers are not predicted to raise the rate. It is 1 or more.
    pub fn usable_workers(&self, cpus: usize) -> usize {
        // The cast saturates: a batch that takes no processor time allows for any number of workers.
        ((WORKER_RESERVE * self.workers_for(self.max_rate(cpus))).ceil() as usize).max(1)
    }

    /// Returns the largest number of workers, more than `workers` and at most twice as many, that
    /// `is_allowed` accepts and that the program's step and the CPUs can use, and the predicted rate divided
    /// by the measured one. Returns `None` if it is not predicted to pay.
    pub(crate) fn more_workers(
        &self,
        workers: usize,
        cpus: usize,
        is_allowed: impl Fn(usize) -> bool,
    ) -> Option<(usize, f64)> {
        let max = self.usable_workers(cpus).clamp(workers + 1, 2 * workers.max(1));
        let more = (workers + 1..=max).rev().find(|&more| is_allowed(more))?;
        let gain = self.predicted_rate(more, cpus) / self.batches_per_second;
        (gain >= MIN_PREDICTED_GAIN).then_some((more, gain))
    }

    /// True if the program's step and a batch's work differ from those of `other` by less than the factor
    /// `max`.
    pub(crate) fn is_like(&self, other: &Self, max: f64) -> bool {
        let is_like = |a: f64, b: f64| a <= b * max && b <= a * max;
        // A step that is short beside a worker's work does not matter, however much it varies.
        let step = |figures: &Self| figures.step_seconds.max(figures.worker_seconds / 100.0);
        is_like(step(self), step(other)) && is_like(self.worker_seconds, other.worker_seconds)
    }
}
