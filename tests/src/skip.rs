//! Reports tests that cannot run here.

use std::{
    io::{self, Write},
    panic::Location,
};

/// The word that a line about a skipped test begins with; `.ci/run` counts these lines.
pub const SKIPPED: &str = "SKIPPED: ";

/// Prints to standard error that the calling test is skipped, and why.
#[track_caller]
pub fn skipped(reason: &str) {
    show(&format!("{SKIPPED}{}: {reason}", Location::caller()));
}

/// Writes a line to standard error past the test harness, which shows what a test prints only when the test
/// fails.
pub fn show(line: &str) {
    // A closed standard error must not fail a test.
    drop(io::stderr().write_all(format!("{line}\n").as_bytes()));
}
