//! Main processes that die, fork, run many threads, or have unusual signals and descriptors.

mod deaths;
mod forks;
mod odd_hosts;
mod threads;

loader_worker::init_before_main!();
