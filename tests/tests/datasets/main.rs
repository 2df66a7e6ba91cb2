//! Kinds of dataset: map-style, iterable, composed of others, and datasets that change their process.

mod cached;
mod compositions;
mod functions;
mod get_many;
mod side_effects;
mod steps_per_epoch;
mod streams;
mod tensors;

loader_worker::init_before_main!();
