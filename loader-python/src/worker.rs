//! The entry of worker processes.

use loader_worker::Registry;
use pyo3::prelude::*;

/// Serves as a worker until main does not need it any more. Returns the exit code for the process.
///
/// Main has the same extension module, so it sends the addresses of functions, and the worker needs no registry.
#[pyfunction]
pub(crate) fn serve(py: Python<'_>) -> i32 {
    py.detach(|| Registry::new().serve_code())
}
