//! Python exceptions and the engine's errors, in both directions.

use anyhow::anyhow;
use loader_core::{Error, ExitStatus, UserFailure, WorkerExit, internal::ForeignError};
use pyo3::{
    exceptions::{PyException, PyRuntimeError, PyStopIteration, PyValueError},
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
    // Before it is described, which may fail.
    let opened = opened::get(number).filter(|opened| opened.is_local);
    let note = |error: &PyErr| opened.iter().for_each(|opened| opened.note_raised(py, error.clone_ref(py)));
    note(&error);
    let described = py
        .import("loader._errors")
        .and_then(|module| module.call_method1("describe", (error.value(py),)))
        .and_then(|texts| texts.extract::<[String; 3]>());
    match described {
        Ok([text, traceback, class]) => {
            let concerns_process = is_interrupt(py, &error);
            let backtrace = format!("{CLASS}{class}\n{traceback}");
            ForeignError { text, backtrace, concerns_process }.into()
        }
        // Ctrl-C while Python described the exception.
        Err(interrupt) if is_interrupt(py, &interrupt) => {
            note(&interrupt);
            let text = format!("{interrupt}, while {error} was described");
            ForeignError { text, backtrace: String::new(), concerns_process: true }.into()
        }
        Err(problem) => anyhow!("{error}; and it could not be described: {problem}"),
    }
}

/// True for an exception that must reach the program at once, such as `KeyboardInterrupt`: what is no `Exception`.
pub(crate) fn is_interrupt(py: Python<'_>, error: &PyErr) -> bool {
    !error.is_instance_of::<PyException>(py)
}

/// True if the handler of a signal has raised the exception.
pub(crate) fn is_of_signal_handler(py: Python<'_>, error: &PyErr) -> bool {
    let is_of_handler = || {
        let module = py.import("loader._errors")?;
        module.call_method1("is_of_signal_handler", (error.traceback(py),))?.extract::<bool>()
    };
    // An error here is the exception of one more signal: the batch is kept for it too.
    is_of_handler().unwrap_or(true)
}

/// Wraps a `StopIteration` of user code in a `RuntimeError`, because a `StopIteration` would end the loop of the
/// program as if the epoch were over. Returns any other exception as it is.
pub(crate) fn without_stop_iteration(py: Python<'_>, error: PyErr) -> PyErr {
    if !error.is_instance_of::<PyStopIteration>(py) {
        return error;
    }
    let raised = PyRuntimeError::new_err(
        "the dataset, `collate_fn` or the sampler has raised StopIteration in place of a batch, and the epoch is not \
         over: raise another exception",
    );
    raised.set_cause(py, Some(error));
    raised
}

/// Turns an error of the engine into a Python exception. An exception of user code becomes one of its own class.
/// `is_python` is true for a dataset of Python objects. `noted` is what [`opened::take_raised`] has returned.
pub(crate) fn to_python(py: Python<'_>, error: &Error, is_python: bool, noted: Option<PyErr>) -> PyErr {
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
        Error::WorkerExited { pid, exit, .. } | Error::BatchGivenUp { pid, exit, .. } => {
            let text = format!("DataLoader worker (pid(s) {pid}) exited unexpectedly: {error}");
            let signal = killed_by(py, exit).map(|signal| {
                // PyTorch raises two exceptions, one the cause of the other.
                format!("DataLoader worker (pid {pid}) is killed by signal: {signal}. ")
            });
            return PyRuntimeError::new_err(signal.unwrap_or_default() + &text);
        }
        Error::SharedMemoryExhausted { .. } => {
            // The engine advises the Rust method, and names what holds a batch in Rust.
            let rust_advice =
                "`to_owned_tensor`; what `to_burn`, `into_dlpack` or `view` has returned holds its batch too";
            let text = error.to_string().replace(rust_advice, "`tensor.clone()`; with NumPy `array.copy()`");
            return PyRuntimeError::new_err(text);
        }
        _ => return PyRuntimeError::new_err(error.to_string()),
    };
    let is_exception = failure.backtrace.as_ref().is_some_and(|backtrace| backtrace.starts_with(CLASS));
    match noted {
        // Without workers the exception itself is still there. If the failure is none of Python, an exception that was
        // noted is that of an earlier sample.
        Some(noted) if worker.is_none() && (is_exception || is_interrupt(py, &noted)) => noted,
        _ if is_python => {
            raised_again(py, failure, worker).unwrap_or_else(|| PyRuntimeError::new_err(error.to_string()))
        }
        _ => PyRuntimeError::new_err(error.to_string()),
    }
}

/// Returns the name of the signal that has ended a worker, as the system describes it, such as "Segmentation fault".
fn killed_by(py: Python<'_>, exit: &WorkerExit) -> Option<String> {
    let ExitStatus::Signal { signal: number, .. } = exit.status else { return None };
    py.import("signal").and_then(|signal| signal.call_method1("strsignal", (number,))?.extract()).ok()
}

/// Makes the exception of a worker again; `None` if the failure was not a Python exception. Returns the
/// exception of a signal handler that has run meanwhile.
fn raised_again(py: Python<'_>, failure: &UserFailure, worker: Option<usize>) -> Option<PyErr> {
    let (class, traceback) = failure.backtrace.as_ref()?.strip_prefix(CLASS)?.split_once('\n')?;
    let module = py.import("loader._errors");
    match module.and_then(|module| module.call_method1("raised_again", (traceback, class, worker))) {
        Ok(made) => (!made.is_none()).then(|| PyErr::from_value(made)),
        Err(error) => is_interrupt(py, &error).then_some(error),
    }
}
