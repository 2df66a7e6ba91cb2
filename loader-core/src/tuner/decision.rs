//! What the tuner decided, and why.

use std::fmt;

use serde::Serialize;

use super::Setting;
use crate::figures::LoadFigures;

/// A change of the number of workers or of the prefetch factor, with the figures that led to it. In
/// [`EpochReport::tuning`](crate::EpochReport::tuning). Its `Display` is one line.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct TuningDecision {
    /// Number of batches that the program had got in this epoch, without errors.
    pub batch: u64,
    /// Number of workers before and after the decision.
    pub num_workers: (usize, usize),
    /// Number of batches that are loaded ahead per worker, before and after the decision.
    pub prefetch_factor: (usize, usize),
    /// Why.
    #[serde(flatten)]
    pub reason: TuningReason,
    /// What was measured before the decision.
    pub figures: LoadFigures,
}

/// Why the loader changes the number of workers or the prefetch factor.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(tag = "reason", rename_all = "snake_case")]
#[non_exhaustive]
pub enum TuningReason {
    /// The program waited while all workers were busy: there are more workers now.
    MainWaits,
    /// The program waited while some workers were idle, because some batches take much longer than others:
    /// more batches are loaded ahead now.
    UnevenBatches,
    /// The program did not wait, and workers were idle: there are fewer workers now.
    WorkersIdle,
    /// The last change did not make loading faster, and is taken back.
    NoGain {
        /// Batches per second, divided by those before the change.
        rate_ratio: f64,
    },
    /// Loading became slower with fewer workers, which is taken back.
    TooFewWorkers {
        /// Batches per second, divided by those before the change.
        rate_ratio: f64,
    },
    /// A step of the program, or the work on a batch, takes another time than before: the loader searches
    /// again.
    LoadChanged,
}

impl TuningDecision {
    pub(super) fn new(before: Setting, after: Setting, reason: TuningReason, figures: LoadFigures) -> Self {
        Self {
            batch: 0,
            num_workers: (before.workers, after.workers),
            prefetch_factor: (before.prefetch_factor, after.prefetch_factor),
            reason,
            figures,
        }
    }
}

impl fmt::Display for TuningDecision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { batch, num_workers: (from, to), prefetch_factor: (ahead, now_ahead), reason, figures } =
            self;
        write!(f, "batch {batch}: ")?;
        match (from == to, ahead == now_ahead) {
            (false, _) => write!(f, "{from} -> {to} workers")?,
            (true, false) => write!(f, "prefetch factor {ahead} -> {now_ahead}")?,
            (true, true) => write!(f, "{to} workers")?,
        }
        let LoadFigures { batches_per_second, waiting, busy, .. } = figures;
        let (waiting, busy) = (100.0 * waiting, 100.0 * busy);
        write!(f, ": {reason} ({batches_per_second:.1} batches/s, main waited {waiting:.0} % of the time, ")?;
        write!(f, "workers were busy for {busy:.0} %)")
    }
}

impl fmt::Display for TuningReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MainWaits => f.write_str("the program waits for busy workers"),
            Self::UnevenBatches => f.write_str("the program waits for a few slow batches"),
            Self::WorkersIdle => f.write_str("fewer workers are enough"),
            Self::NoGain { rate_ratio } => write!(f, "no gain ({:+.0} %)", 100.0 * (rate_ratio - 1.0)),
            Self::TooFewWorkers { rate_ratio } => {
                write!(f, "too slow ({:+.0} %)", 100.0 * (rate_ratio - 1.0))
            }
            Self::LoadChanged => f.write_str("the load has changed"),
        }
    }
}
