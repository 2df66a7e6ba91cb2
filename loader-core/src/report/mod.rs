//! What the loader tells of an epoch: its report, statistics, trace and warnings.

pub(crate) mod advice;
pub(crate) mod batch_info;
pub(crate) mod digest;
pub(crate) mod epoch_report;
pub(crate) mod figures;
pub(crate) mod load_times;
pub(crate) mod metrics;
pub(crate) mod observers;
pub(crate) mod ready_batches;
pub(crate) mod stats;
pub(crate) mod trace;
pub(crate) mod tracing_events;
pub(crate) mod tuning_decision;
pub(crate) mod warning;
