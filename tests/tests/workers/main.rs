//! The life of workers: programs, start, persistent workers, and shutdown.

mod extension;
mod leftovers;
mod lifecycle;
mod persistent;
mod persistent_workers;
mod programs;
mod pytorch_workers;
mod shutdown;

loader_worker::init_before_main!();
