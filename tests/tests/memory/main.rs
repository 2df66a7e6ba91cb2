//! Memory, descriptors and other resources: limits that are reached or barely enough, and workers that grow.

mod held_batches;
mod limits;
mod shared_memory;
mod worker_memory;

loader_worker::init_before_main!();
