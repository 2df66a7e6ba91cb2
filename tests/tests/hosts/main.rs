//! Main processes that die, fork, run many threads, or have unusual signals and descriptors.

mod forks;
mod main_death;
mod main_deaths;
mod odd_hosts;
mod threads;

loader_worker::init_before_main!();
