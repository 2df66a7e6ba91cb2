//! Collation of samples into batches.

mod kinds_of_samples;
mod pytorch_collation;

loader_worker::init_before_main!();
