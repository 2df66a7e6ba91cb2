//! Tests of the `loader` command as a process.

mod failures;
mod interrupt;
mod killed;
mod plan;
#[cfg(feature = "formats")]
mod records;
mod run;
mod support;
mod terminal;
