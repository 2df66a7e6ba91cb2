//! Warnings on standard error.

use std::{
    collections::BTreeSet,
    io::{self, Write},
    sync::{Mutex, PoisonError},
};

use super::printable::printable;

/// Prints a warning, unless this process has printed the same text before, as Python's `warnings` does.
pub(crate) fn print_once(text: String) {
    static PRINTED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    // `eprintln` would panic if standard error is closed.
    let line = format!("loader: warning: {}", printable(&text));
    if PRINTED.lock().unwrap_or_else(PoisonError::into_inner).insert(text) {
        drop(writeln!(io::stderr(), "{line}"));
    }
}
