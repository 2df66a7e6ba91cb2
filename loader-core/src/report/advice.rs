//! What would make loading faster.

use std::fmt;

use serde::Serialize;

use crate::report::figures::{LoadFigures, MIN_BUSY_SHARE};

/// The loader is the bottleneck if the program waits for more than this share of the time.
const MAX_WAITING_SHARE: f64 = 0.05;
/// Workers that use a CPU for less than this share of their busy time wait for something else, if there are CPUs
/// for more workers.
const MIN_ON_CPU_SHARE: f64 = 0.5;
/// Workers lack CPUs if they wait for a CPU for more than this share of their busy time, and for most of the time in
/// which they use none.
const MIN_CPU_WAIT_SHARE: f64 = 0.25;
/// The advice is to use no workers if the predicted rate without them is at least this many times the measured one.
const MIN_IN_PROCESS_GAIN: f64 = 1.2;
/// Workers lack CPUs because of this program's own processes if these use more than this share of the CPUs.
const MIN_OWN_CPU_SHARE: f64 = 0.8;

/// What would make loading faster, with the reason, from [`EpochReport::advice`](crate::EpochReport::advice).
/// Its `Display` is one line.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Advice {
    /// The program waits for at most 5 % of the time: a faster loader would not help.
    KeepsUp {
        /// Share of the time that the program waited.
        waiting_share: f64,
    },
    /// The batches are so cheap that sending them between processes takes longer than loading them: the program
    /// itself, without workers, would load them faster.
    NoWorkers {
        /// Time that a worker spends on a batch, in seconds.
        worker_seconds: f64,
        /// Predicted number of batches per second without workers, divided by that of this epoch.
        gain: f64,
    },
    /// The workers are busy, and the machine has CPUs for more of them.
    MoreWorkers {
        /// Number of workers now.
        num_workers: usize,
        /// Number of workers to add.
        more: usize,
        /// Predicted number of batches per second, divided by that of this epoch. It knows of no limit of
        /// disks and servers.
        gain: f64,
        /// Share of the time that the workers were busy. Without workers, share that the program waited.
        busy_share: f64,
        /// Share of this busy time in which the workers used a CPU.
        on_cpu_share: f64,
    },
    /// The workers use a CPU for less than half of their busy time, and there are CPUs for more of them: they wait
    /// for disks or for servers.
    IoBound {
        /// Number of workers now.
        num_workers: usize,
        /// Number of workers to add; 0 if `num_workers = "auto"` has tried more workers without a gain.
        more: usize,
        /// Predicted number of batches per second, divided by that of this epoch; 1 if `more` is 0. It knows of no
        /// limit of disks and servers.
        gain: f64,
        /// Share of the time that the workers were busy.
        busy_share: f64,
        /// Share of this busy time in which the workers used a CPU.
        on_cpu_share: f64,
    },
    /// The workers wait for CPUs, although this program uses at most 80 % of them: other programs use the rest.
    CpusTaken {
        /// Share of the workers' busy time in which they used a CPU.
        on_cpu_share: f64,
        /// Share of this busy time in which they waited for a CPU.
        cpu_wait_share: f64,
    },
    /// The CPUs are busy: only less work per sample, or more CPUs, would help.
    CpusBusy {
        /// Processor time that all processes spend on a batch, in seconds.
        cpu_seconds: f64,
        /// Number of CPUs that this process may use.
        cpus: usize,
    },
    /// The program waits although workers are idle, because some batches take much longer than others: a
    /// higher `prefetch_factor`, or `hedge`, may help.
    UnevenBatches {
        /// Share of the time that the workers were busy. Without workers, share that the program waited.
        busy_share: f64,
    },
}

impl Advice {
    /// Returns the advice for a loader with `num_workers` workers on `cpus` CPUs. `has_tried_more` says that more
    /// workers were tried without a gain.
    pub(crate) fn new(figures: &LoadFigures, num_workers: usize, cpus: usize, has_tried_more: bool) -> Self {
        let LoadFigures { waiting_share, busy_share, on_cpu_share, cpu_wait_share, .. } = *figures;
        let LoadFigures { cpu_seconds, batches_per_second, .. } = *figures;
        if waiting_share <= MAX_WAITING_SHARE {
            return Self::KeepsUp { waiting_share };
        }
        let gain = figures.rate_in_process() / batches_per_second;
        if num_workers > 0 && gain >= MIN_IN_PROCESS_GAIN {
            return Self::NoWorkers { worker_seconds: figures.worker_seconds, gain };
        }
        if num_workers > 0 && busy_share <= MIN_BUSY_SHARE {
            return Self::UnevenBatches { busy_share };
        }
        let Some((workers, gain)) = figures.more_workers(num_workers, cpus, |_| true) else {
            return Self::CpusBusy { cpu_seconds, cpus };
        };
        let lack_cpus = cpu_wait_share > MIN_CPU_WAIT_SHARE && cpu_wait_share > (1.0 - on_cpu_share) / 2.0;
        if num_workers > 0 && lack_cpus {
            let own_share = cpu_seconds * batches_per_second / cpus as f64;
            if own_share > MIN_OWN_CPU_SHARE {
                return Self::CpusBusy { cpu_seconds, cpus };
            }
            return Self::CpusTaken { on_cpu_share, cpu_wait_share };
        }
        let more = workers - num_workers;
        if num_workers == 0 || on_cpu_share >= MIN_ON_CPU_SHARE {
            return Self::MoreWorkers { num_workers, more, gain, busy_share, on_cpu_share };
        }
        let (more, gain) = if has_tried_more { (0, 1.0) } else { (more, gain) };
        Self::IoBound { num_workers, more, gain, busy_share, on_cpu_share }
    }
}

impl fmt::Display for Advice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = |share: f64| 100.0 * share;
        match *self {
            Self::KeepsUp { waiting_share } => {
                write!(
                    f,
                    "the loader keeps up: the program waited for {:.1} % of the time",
                    percent(waiting_share)
                )
            }
            Self::NoWorkers { worker_seconds, gain } => write_no_workers(f, worker_seconds, gain),
            Self::MoreWorkers { num_workers: 0, more, gain, busy_share, .. } => {
                write!(
                    f,
                    "the loader is the bottleneck: the program waited for {:.0} % ",
                    percent(busy_share)
                )?;
                let (plural, gain) = (if more == 1 { "" } else { "s" }, percent(gain - 1.0));
                write!(f, "of the time; {more} worker{plural} would raise the rate by up to {gain:.0} %")
            }
            Self::MoreWorkers { num_workers, more, gain, busy_share, on_cpu_share } => {
                let (busy, on_cpu) = (percent(busy_share), percent(on_cpu_share));
                write!(
                    f,
                    "the loader is the bottleneck: the workers were busy for {busy:.0} % of the time, "
                )?;
                write!(f, "{on_cpu:.0} % of it on a CPU; ")?;
                write_gain(f, num_workers, more, gain)
            }
            Self::IoBound { num_workers, more, gain, on_cpu_share, .. } => {
                write_waiting(f, "disks or servers", 1.0 - on_cpu_share)?;
                if more == 0 {
                    const NO_GAIN: &str =
                        "more workers did not raise the rate; larger files, or a cache, would help";
                    return f.write_str(NO_GAIN);
                }
                write_gain(f, num_workers, more, gain)
            }
            Self::CpusTaken { cpu_wait_share, .. } => {
                write_waiting(f, "a CPU", cpu_wait_share)?;
                f.write_str("other programs use the CPUs, so fewer of them, or more CPUs, would help")
            }
            Self::CpusBusy { cpu_seconds, cpus } => {
                let (milliseconds, plural) = (1e3 * cpu_seconds, if cpus == 1 { "" } else { "s" });
                write!(
                    f,
                    "the CPUs are the bottleneck: a batch takes {milliseconds:.1} ms of processor time on "
                )?;
                write!(f, "{cpus} CPU{plural}; only less work per sample, or more CPUs, would help")
            }
            Self::UnevenBatches { busy_share } => {
                let idle = percent(1.0 - busy_share);
                write!(
                    f,
                    "some batches are the bottleneck: the program waited for them while the workers were "
                )?;
                write!(f, "idle for {idle:.0} % of the time; a higher prefetch_factor, or hedge, may help")
            }
        }
    }
}

fn write_waiting(f: &mut fmt::Formatter<'_>, what: &str, share: f64) -> fmt::Result {
    write!(f, "the workers waited for {what} for {:.0} % of their busy time; ", 100.0 * share)
}

fn write_no_workers(f: &mut fmt::Formatter<'_>, worker_seconds: f64, gain: f64) -> fmt::Result {
    let (microseconds, gain) = (1e6 * worker_seconds, 100.0 * (gain - 1.0));
    write!(
        f,
        "sending batches between processes is the bottleneck: a worker loads one in {microseconds:.0} us; "
    )?;
    write!(f, "num_workers = 0 would raise the rate by up to {gain:.0} %")
}

fn write_gain(f: &mut fmt::Formatter<'_>, num_workers: usize, more: usize, gain: f64) -> fmt::Result {
    let (workers, gain) = (num_workers + more, 100.0 * (gain - 1.0));
    write!(f, "{workers} workers instead of {num_workers} would raise the rate by up to {gain:.0} %")
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIGURES: LoadFigures = LoadFigures {
        batches: 100,
        batches_per_second: 50.0,
        waiting_share: 0.5,
        busy_share: 1.0,
        on_cpu_share: 0.25,
        cpu_wait_share: 0.0,
        step_seconds: 0.01,
        worker_seconds: 0.02,
        cpu_seconds: 0.006,
    };

    #[test]
    fn the_advice_names_the_bottleneck() {
        let text = |figures, workers, cpus| Advice::new(&figures, workers, cpus, false).to_string();
        let computing = LoadFigures { on_cpu_share: 0.9, ..FIGURES };
        assert_eq!(
            text(computing, 1, 8),
            "the loader is the bottleneck: the workers were busy for 100 % of the time, 90 % of it on a CPU; \
             2 workers instead of 1 would raise the rate by up to 100 %"
        );
        // One CPU has time for 167 batches a second; the program's step for 100.
        assert_eq!(text(computing, 1, 1), text(computing, 1, 8));
        assert_eq!(
            text(FIGURES, 1, 8),
            "the workers waited for disks or servers for 75 % of their busy time; 2 workers instead of 1 would raise \
             the rate by up to 100 %"
        );
        assert_eq!(
            Advice::new(&FIGURES, 1, 8, true).to_string(),
            "the workers waited for disks or servers for 75 % of their busy time; more workers did not raise the \
             rate; larger files, or a cache, would help"
        );
        // Another program has a CPU for as long as the worker, on both sides of half of the time.
        for on_cpu_share in [0.48, 0.52] {
            assert_eq!(
                text(LoadFigures { on_cpu_share, cpu_wait_share: 0.45, ..FIGURES }, 1, 8),
                "the workers waited for a CPU for 45 % of their busy time; other programs use the CPUs, so fewer of \
                 them, or more CPUs, would help"
            );
        }
        // Four workers share two CPUs, which they use nearly always.
        let crowded = LoadFigures { on_cpu_share: 0.47, cpu_wait_share: 0.5, cpu_seconds: 0.0376, ..FIGURES };
        assert_eq!(
            text(crowded, 4, 2),
            "the CPUs are the bottleneck: a batch takes 37.6 ms of processor time on 2 CPUs; only less work per \
             sample, or more CPUs, would help"
        );
        let decoding = LoadFigures { cpu_seconds: 0.02, ..FIGURES };
        assert_eq!(
            text(decoding, 1, 1),
            "the CPUs are the bottleneck: a batch takes 20.0 ms of processor time on 1 CPU; only less work per \
             sample, or more CPUs, would help"
        );
        assert_eq!(
            text(LoadFigures { busy_share: 0.4, ..FIGURES }, 2, 8),
            "some batches are the bottleneck: the program waited for them while the workers were idle for 60 % of \
             the time; a higher prefetch_factor, or hedge, may help"
        );
        // The program waits for 5 us per batch, of which a worker needs 1 us.
        let cheap =
            LoadFigures { batches_per_second: 2e5, step_seconds: 1e-6, worker_seconds: 1e-6, ..FIGURES };
        assert_eq!(
            text(LoadFigures { busy_share: 0.1, waiting_share: 0.8, ..cheap }, 2, 8),
            "sending batches between processes is the bottleneck: a worker loads one in 1 us; num_workers = 0 would raise \
             the rate by up to 150 %"
        );
        assert_eq!(
            text(LoadFigures { waiting_share: 0.002, ..FIGURES }, 2, 8),
            "the loader keeps up: the program waited for 0.2 % of the time"
        );
    }

    #[test]
    fn a_loader_without_workers_is_told_to_use_some() {
        let figures =
            LoadFigures { waiting_share: 0.667, busy_share: 0.667, batches_per_second: 33.3, ..FIGURES };
        let Advice::MoreWorkers { more: 2, gain, .. } = Advice::new(&figures, 0, 8, false) else { panic!() };
        assert!((2.9..3.1).contains(&gain), "{gain}");
    }
}
