//! States, and epochs that are resumed from them.

mod elastic;
mod flips;
mod generations;
mod language_models;
mod mismatches;
mod resumed;
mod states;
mod streams;
mod unavailable;

loader_worker::init_before_main!();
