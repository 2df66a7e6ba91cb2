//! States, and epochs that are resumed from them.

mod interrupted;
mod positions;
mod state;

loader_worker::init_before_main!();
