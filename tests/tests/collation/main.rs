//! Collation of samples into batches, and conversion of single samples.

mod kept_tensors;
mod kinds_of_samples;
mod mismatches;

loader_worker::init_before_main!();
