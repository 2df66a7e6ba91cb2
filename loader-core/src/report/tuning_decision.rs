//! What the tuner decided, and why.

use std::fmt;

use serde::Serialize;

use crate::report::figures::LoadFigures;

/// A decision about the number of workers and the prefetch factor, with the figures that led to it, in
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
    /// The program waited although the workers were busy for more than 80 % of the time: the loader adds
    /// workers.
    ProgramWaits,
    /// The program waited although workers were idle, because some batches take much longer than others: the
    /// loader loads more batches ahead. If the prefetch factor is fixed or at its maximum, the loader adds
    /// workers instead, for each of which more batches are loaded ahead.
    UnevenBatches,
    /// The program did not wait, and fewer workers are enough: the loader parks workers.
    WorkersIdle,
    /// The last change did not make loading faster: the loader undoes it.
    NoGain {
        /// Batches per second, divided by those before the change.
        rate_ratio: f64,
    },
    /// Loading became slower with fewer workers: the loader undoes the change.
    TooFewWorkers {
        /// Batches per second, divided by those before the change.
        rate_ratio: f64,
    },
    /// The program's step, or a worker's batch, takes another time than before: the loader searches again.
    LoadChanged,
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
        let LoadFigures { batches_per_second, waiting_share, busy_share, .. } = figures;
        let (waiting, busy) = (100.0 * waiting_share, 100.0 * busy_share);
        write!(
            f,
            ": {reason} ({batches_per_second:.1} batches/s; the program waited for {waiting:.0} % of the "
        )?;
        write!(f, "time, the workers were busy for {busy:.0} %)")
    }
}

impl fmt::Display for TuningReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ProgramWaits => f.write_str("the program waits for busy workers"),
            Self::UnevenBatches => f.write_str("the program waits for a few slow batches"),
            Self::WorkersIdle => f.write_str("fewer workers are enough"),
            Self::NoGain { rate_ratio } => {
                write!(
                    f,
                    "the last change did not pay: the rate changed by {:+.0} %",
                    100.0 * (rate_ratio - 1.0)
                )
            }
            Self::TooFewWorkers { rate_ratio } => {
                write!(
                    f,
                    "fewer workers are too slow: the rate changed by {:+.0} %",
                    100.0 * (rate_ratio - 1.0)
                )
            }
            Self::LoadChanged => f.write_str("the load has changed; searching again"),
        }
    }
}
