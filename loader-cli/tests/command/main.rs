//! The real command, as its users start it.

mod failures;
mod interrupt;
mod plan;
mod run;
mod support;
