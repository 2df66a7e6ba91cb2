//! Arguments of a loader: defaults, validation, and the errors for wrong options, datasets and programs.

mod bad_input;
mod compile_errors;
mod pytorch_arguments;

loader_worker::init_before_main!();
