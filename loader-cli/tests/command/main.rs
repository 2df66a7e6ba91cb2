//! The real command, as its users start it.

mod failures;
mod interrupt;
mod killed;
mod plan;
mod run;
mod support;
mod terminal;
