//! Order of batches: samplers, shares of ranks, splits, and that epochs are equal with any number of workers.

mod epochs;
mod in_order;
mod iteration;
mod properties;
mod samplers;
mod shares;
mod splits;

loader_worker::init_before_main!();
