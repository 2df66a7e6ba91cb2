//! Limits of memory, descriptors and other resources, and workers that use more and more memory.

mod dataset_memory;
mod held_batches;
mod limits;
mod shared_memory;
mod worker_memory;

loader_worker::init_before_main!();
