//! Order of batches: samplers, shares of ranks, which worker loads what, and that epochs are equal with any
//! number of workers.

mod epochs;
mod properties;
mod ranks;
mod samplers;
mod scheduling;
mod slots;

loader_worker::init_before_main!();
