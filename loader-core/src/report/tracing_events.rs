//! Events and spans for the package tracing. Without the feature `tracing`, these functions do nothing.

#![cfg_attr(not(feature = "tracing"), allow(unused_variables))]

use crate::report::{epoch_report::EpochReport, warning::Warn};

/// Returns a `Warn` that also makes an event of each warning, at level `WARN`.
pub(crate) fn watch(warn: Warn) -> Warn {
    #[cfg(feature = "tracing")]
    return Warn::with(move |warning| {
        tracing::warn!(target: "loader", worker = warning.worker(), "{warning}");
        warn.warn(warning);
    });
    #[cfg(not(feature = "tracing"))]
    warn
}

/// Makes an event of the beginning of an epoch, at level `INFO`.
pub(crate) fn epoch_began(epoch: u64, num_workers: usize) {
    #[cfg(feature = "tracing")]
    tracing::info!(target: "loader", epoch, num_workers, "epoch {epoch} begins");
}

/// Makes an event of the end of an epoch, at level `INFO`. Calls `report` only if there is a subscriber for it.
pub(crate) fn epoch_ended(report: impl FnOnce() -> EpochReport) {
    #[cfg(feature = "tracing")]
    if tracing::enabled!(target: "loader", tracing::Level::INFO) {
        let report = report();
        let EpochReport { epoch, batches, samples, errors, restarts, .. } = report;
        tracing::info!(target: "loader", epoch, batches, samples, errors, restarts, "{report}");
    }
}

/// Calls `next` in a span, at level `TRACE`.
#[inline]
pub(crate) fn in_next<R>(epoch: u64, next: impl FnOnce() -> R) -> R {
    #[cfg(feature = "tracing")]
    let _span = tracing::trace_span!(target: "loader", "next", epoch).entered();
    next()
}
