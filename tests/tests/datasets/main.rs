//! Kinds of dataset: map-style, iterable, composed, and datasets that change their process.

mod compositions;
mod odd_datasets;
mod pytorch_datasets;
mod pytorch_streams;
mod streams;

loader_worker::init_before_main!();
