//! Errors and panics of user code, timeouts, and samples that cannot be loaded.

mod bad_samples;
mod pytorch_errors;
mod user_errors;

loader_worker::init_before_main!();
