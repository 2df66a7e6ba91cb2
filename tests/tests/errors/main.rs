//! Errors and panics of user code, timeouts, limits, dead workers that are not replaced, and samples that
//! cannot be loaded.

mod bad_samples;
mod deadly_samples;
mod deaths;
mod limits;
mod opening;
mod samplers;
mod streams;
mod timeouts;
mod user_code;

loader_worker::init_before_main!();
