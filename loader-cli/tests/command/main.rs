//! Tests of the `loader` command as a process.

mod failures;
mod interrupt;
mod killed;
mod plan;
mod run;
mod support;
mod terminal;
