//! Arguments of a loader: defaults, validation, lengths, and the errors for wrong options, datasets and
//! programs.

mod compile_errors;
mod lengths;
mod options;
mod wrong_datasets;

loader_worker::init_before_main!();
