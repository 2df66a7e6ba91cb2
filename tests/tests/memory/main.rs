//! Limits on memory and descriptors: typed errors, nothing left, and no growth.

mod descriptors;
mod held_batches;
mod resources;
mod shared_memory;
mod worker_memory;

loader_worker::init_before_main!();
