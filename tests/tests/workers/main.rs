//! The life of workers: programs, start, persistent workers, and shutdown.

mod affinity;
mod ahead;
mod automatic;
mod ends;
mod extension;
mod number_of_workers;
mod observability;
mod persistent;
mod programs;
mod shutdown;
mod template;
mod worker_info;
mod world;

loader_worker::init_before_main!();
