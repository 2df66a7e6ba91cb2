//! Workers that die, hang, lie or are late: main replaces them, and the epoch stays equal.

mod combinations;
mod hedging;
mod hunted;
mod liars;
mod no_replacement;
mod protocol_steps;
mod stuck;
mod worker_death;
mod worker_deaths;

loader_worker::init_before_main!();
