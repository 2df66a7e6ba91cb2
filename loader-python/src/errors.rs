//! Python exceptions and the engine's errors, in both directions.

use anyhow::anyhow;
use loader_core::{Error, UserFailure, internal::ForeignError};
use pyo3::{
    exceptions::{PyException, PyRuntimeError, PyValueError},
    prelude::*,
};

use crate::opened;

/// Begins the first line of a backtrace that is Python's, which names the class of the exception.
const CLASS: &str = "class ";

/// Turns an exception of user code into an error that the engine can carry. `describe` of `loader._errors`
/// gives the texts: the exception in one line, its traceback, and its class, from which [`to_python`] makes it again
/// in main.
pub(crate) fn into_chain(py: Python<'_>, error: PyErr, number: u64) -> anyhow::Error {
    if let Some(traceback) = error.traceback(py) {
        // Before Python 3.12 the exception itself has none yet.
        drop(error.value(py).setattr("__traceback__", traceback));
    }
    let described = py
        .import("loader._errors")
        .and_then(|module| module.call_method1("describe", (error.value(py),)))
        .and_then(|texts| texts.extract::<[String; 3]>());
    let [text, traceback, class] = match described {
        Ok(texts) => texts,
        Err(problem) => return anyhow!("{error}; and it could not be described: {problem}"),
    };
    let concerns_process = !error.is_instance_of::<PyException>(py);
    if let Some(opened) = opened::get(number).filter(|opened| opened.is_local) {
        opened.note_raised(py, error);
    }
    ForeignError { text, backtrace: format!("{CLASS}{class}\n{traceback}"), concerns_process }.into()
}

/// Turns an error of the engine into a Python exception. An exception of user code becomes one of its own class.
/// `number` is that of a dataset of Python objects.
pub(crate) fn to_python(py: Python<'_>, error: &Error, number: Option<u64>) -> PyErr {
    let (worker, failure) = match error {
        Error::InvalidOption { .. } | Error::ConflictingOptions { .. } | Error::StateMismatch { .. } => {
            return PyValueError::new_err(error.to_string());
        }
        Error::DatasetFailed { worker, failure, .. }
        | Error::CollateFailed { worker, failure, .. }
        | Error::OpenFailed { worker, failure, .. } => (*worker, failure),
        Error::TimedOut { after, .. } | Error::WorkerStuck { after, .. } => {
            let text = format!("DataLoader timed out after {} seconds: {error}", after.as_secs_f64());
            return PyRuntimeError::new_err(text);
        }
        Error::WorkerExited { pid, .. } | Error::BatchGivenUp { pid, .. } => {
            let text = format!("DataLoader worker (pid(s) {pid}) exited unexpectedly: {error}");
            return PyRuntimeError::new_err(text);
        }
        Error::SharedMemoryExhausted { .. } => {
            // The engine advises the Rust method.
            let text =
                error.to_string().replace("`to_owned_tensor`", "`tensor.clone()`; with NumPy `array.copy()`");
            return PyRuntimeError::new_err(text);
        }
        _ => return PyRuntimeError::new_err(error.to_string()),
    };
    let Some(number) = number else { return PyRuntimeError::new_err(error.to_string()) };
    // Without workers the exception itself is still there.
    match (worker, opened::get(number).and_then(|opened| opened.take_raised(py))) {
        (None, Some(raised)) => raised,
        _ => raised_again(py, failure, worker).unwrap_or_else(|| PyRuntimeError::new_err(error.to_string())),
    }
}

/// Makes the exception of a worker again; `None` if it was no Python exception.
fn raised_again(py: Python<'_>, failure: &UserFailure, worker: Option<usize>) -> Option<PyErr> {
    let (class, traceback) = failure.backtrace.as_ref()?.strip_prefix(CLASS)?.split_once('\n')?;
    let module = py.import("loader._errors").ok()?;
    let made = module.call_method1("raised_again", (traceback, class, worker)).ok()?;
    (!made.is_none()).then(|| PyErr::from_value(made))
}
