//! The engine's warnings, on their way to Python.

use std::sync::{Arc, Mutex, PoisonError};

use loader_core::{Warning, internal};
use pyo3::{prelude::*, types::PyString};

/// What the warning of a worker's death adds if a map-style dataset has a state.
const STATE_BEGINS_AGAIN: &str = "; each new worker begins with the state that the dataset had when the loader started \
                                  its workers; if the samples depend on this state, set on_worker_death=\"fail\" and \
                                  resume from state_dict()";

/// Warnings that Python has not seen yet. Any thread of the engine may add one; only the thread that iterates
/// calls Python with them, so that no thread waits for the interpreter.
#[derive(Debug, Clone, Default)]
pub(crate) struct Warnings(Arc<Mutex<Vec<String>>>);

impl Warnings {
    /// Returns the callback that notes warnings, except those for which `is_left_out` is true. If `loses_state`, a new
    /// worker does not have the last state of the dataset.
    pub(crate) fn listener(
        self,
        is_left_out: impl Fn(&Warning) -> bool + Send + Sync + 'static,
        loses_state: bool,
    ) -> impl Fn(&Warning) + Send + Sync + 'static {
        move |warning| {
            if !is_left_out(warning) {
                let is_death =
                    matches!(warning, Warning::WorkerReplaced { .. } | Warning::WorkersReplaced { .. });
                let more = if is_death && loses_state { STATE_BEGINS_AGAIN } else { "" };
                self.0.lock().unwrap_or_else(PoisonError::into_inner).push(format!("{warning}{more}"));
            }
        }
    }

    pub(crate) fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// True for the warning of too many workers, which PyTorch's own code gives, and for those of samplers, for which there
/// is no reason: PyTorch's samplers need no length, and divide the dataset among the ranks.
pub(crate) fn is_left_to_pytorch(warning: &Warning) -> bool {
    matches!(
        warning,
        Warning::MoreWorkersThanCpus { .. } | Warning::WrongBatchCount { .. } | Warning::RankIgnored { .. }
    )
}

/// Returns `text` with the characters escaped that a terminal would obey, as in the warnings that Rust prints.
#[pyfunction]
pub(crate) fn printable(text: &Bound<'_, PyString>) -> String {
    internal::printable(text.to_string_lossy())
}
