//! What would make loading faster.

use std::fmt;

use serde::Serialize;

use crate::figures::LoadFigures;

/// The loader is the bottleneck if the program waits for more than this share of the time.
const MAX_WAITING: f64 = 0.05;
/// Workers are the bottleneck if they are busy for more than this share of the time.
const BUSY: f64 = 0.8;
/// A change is worth naming if it makes loading faster by this factor.
const MIN_GAIN: f64 = 1.05;
/// Reserve of workers, because the times of batches vary.
const RESERVE: f64 = 1.15;

/// What would make loading faster, with the reason, from [`EpochReport::advice`](crate::EpochReport::advice).
/// Its `Display` is one line.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Advice {
    /// The program waits for at most 5 % of the time: a faster loader would not help.
    KeepsUp {
        /// Share of the time that the program waited.
        waiting: f64,
    },
    /// The workers are busy, and the machine has CPUs for more of them.
    MoreWorkers {
        /// Number of workers to add.
        workers: usize,
        /// Predicted number of batches per second, divided by that of this epoch. It knows of no limit of
        /// disks and servers.
        gain: f64,
        /// Share of the time that the workers were busy.
        busy: f64,
        /// Share of this busy time in which the workers used a CPU.
        on_cpu: f64,
    },
    /// The CPUs are busy: only less work per sample, or more CPUs, would help.
    CpusBusy {
        /// Processor time that all processes spend on a batch, in seconds.
        cpu: f64,
        /// Number of CPUs that this process may use.
        cpus: usize,
    },
    /// The program waits although workers are idle, because some batches take much longer than others: a
    /// higher `prefetch_factor`, or `hedge`, may help.
    UnevenBatches {
        /// Share of the time that the workers were busy.
        busy: f64,
    },
}

impl Advice {
    /// Returns the advice for a loader with `workers` workers on `cpus` CPUs.
    pub(crate) fn new(figures: &LoadFigures, workers: usize, cpus: usize) -> Self {
        let LoadFigures { waiting, busy, on_cpu, cpu, batches_per_second, .. } = *figures;
        if waiting <= MAX_WAITING {
            return Self::KeepsUp { waiting };
        }
        if workers > 0 && busy <= BUSY {
            return Self::UnevenBatches { busy };
        }
        // The cast saturates: a batch that takes no processor time allows for any number of workers.
        let wanted = (RESERVE * figures.workers_for(figures.max_rate(cpus))).ceil() as usize;
        let more = wanted.clamp(workers + 1, 2 * workers.max(1)) - workers;
        let gain = figures.predicted_rate(workers + more, cpus) / batches_per_second;
        match gain >= MIN_GAIN {
            true => Self::MoreWorkers { workers: more, gain, busy, on_cpu },
            false => Self::CpusBusy { cpu, cpus },
        }
    }
}

impl fmt::Display for Advice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = |share: f64| 100.0 * share;
        match *self {
            Self::KeepsUp { waiting } => {
                write!(f, "the loader keeps up: the program waited for {:.1} % of the time", percent(waiting))
            }
            Self::MoreWorkers { workers, gain, busy, on_cpu } => {
                let (busy, on_cpu) = (percent(busy), percent(on_cpu));
                let (plural, gain) = (if workers == 1 { "" } else { "s" }, percent(gain - 1.0));
                write!(f, "the loader is the bottleneck: loading takes {busy:.0} % of the workers' time, ")?;
                write!(
                    f,
                    "{on_cpu:.0} % of it on a CPU; {workers} more worker{plural} would give about +{gain:.0} %"
                )
            }
            Self::CpusBusy { cpu, cpus } => {
                let (milliseconds, plural) = (1e3 * cpu, if cpus == 1 { "" } else { "s" });
                write!(
                    f,
                    "the CPUs are the bottleneck: a batch takes {milliseconds:.1} ms of processor time on "
                )?;
                write!(f, "{cpus} CPU{plural}; only less work per sample, or more CPUs, would help")
            }
            Self::UnevenBatches { busy } => {
                let idle = percent(1.0 - busy);
                write!(
                    f,
                    "some batches are the bottleneck: the program waited for them while the workers were "
                )?;
                write!(f, "idle for {idle:.0} % of the time; a higher prefetch_factor, or hedge, may help")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIGURES: LoadFigures = LoadFigures {
        batches: 100,
        batches_per_second: 50.0,
        waiting: 0.5,
        busy: 1.0,
        on_cpu: 0.25,
        step: 0.01,
        work: 0.02,
        cpu: 0.006,
    };

    #[test]
    fn the_advice_names_the_bottleneck() {
        let text = |figures, workers, cpus| Advice::new(&figures, workers, cpus).to_string();
        assert_eq!(
            text(FIGURES, 1, 8),
            "the loader is the bottleneck: loading takes 100 % of the workers' time, 25 % of it on a CPU; \
             1 more worker would give about +100 %"
        );
        // One CPU has time for 167 batches a second; the program's step for 100.
        assert_eq!(text(FIGURES, 1, 1), text(FIGURES, 1, 8));
        let decoding = LoadFigures { cpu: 0.02, ..FIGURES };
        assert_eq!(
            text(decoding, 1, 1),
            "the CPUs are the bottleneck: a batch takes 20.0 ms of processor time on 1 CPU; only less work per \
             sample, or more CPUs, would help"
        );
        assert_eq!(
            text(LoadFigures { busy: 0.4, ..FIGURES }, 2, 8),
            "some batches are the bottleneck: the program waited for them while the workers were idle for 60 % of \
             the time; a higher prefetch_factor, or hedge, may help"
        );
        assert_eq!(
            text(LoadFigures { waiting: 0.002, ..FIGURES }, 2, 8),
            "the loader keeps up: the program waited for 0.2 % of the time"
        );
    }

    #[test]
    fn a_loader_without_workers_is_told_to_use_some() {
        let figures = LoadFigures { waiting: 0.667, busy: 0.667, batches_per_second: 33.3, ..FIGURES };
        let Advice::MoreWorkers { workers: 2, gain, .. } = Advice::new(&figures, 0, 8) else { panic!() };
        assert!((2.9..3.1).contains(&gain), "{gain}");
    }
}
