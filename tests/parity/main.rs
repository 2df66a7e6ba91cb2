//! PyTorch's `DataLoader`, behaviour by behaviour: what it does here is the same, or differs on purpose.
//!
//! A row is one argument, rule or upstream test; `coverage.toml` says where each is shown, or why it is not, and [`coverage`] checks
//! that it says so of every row and that every test here belongs to one. A test is named after its row: `row_066_...` is row 66.

mod arguments;
mod collation;
mod coverage;
mod datasets;
mod errors;
mod interrupted;
mod iteration;
mod lifecycle;
mod order;
mod persistent;
mod properties;
mod samplers;
mod splits;
mod state;
mod streams;
mod support;
mod workers;

loader_worker::init_before_main!();
