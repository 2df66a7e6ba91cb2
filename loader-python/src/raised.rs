//! The exception of a sampler or a signal handler, which the loader's iterator raises later.

use pyo3::{PyTraverseError, PyVisit, exceptions::PyException, prelude::*};

use crate::shared_object::SharedObject;

/// The first exception that a sampler or a signal handler has raised, until the loader's iterator raises it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Raised(SharedObject);

impl Raised {
    /// Keeps an exception, unless there is an earlier one.
    pub(crate) fn set(&self, py: Python<'_>, error: PyErr) {
        self.0.set_first(py, error.into_value(py).into_any());
    }

    /// Takes an exception that must reach the program at once, such as `KeyboardInterrupt`.
    pub(crate) fn take_interrupt(&self, py: Python<'_>) -> Option<PyErr> {
        let is_interrupt = self.0.get(py).is_some_and(|raised| !raised.is_instance_of::<PyException>());
        if is_interrupt { self.take(py) } else { None }
    }

    pub(crate) fn take(&self, py: Python<'_>) -> Option<PyErr> {
        self.0.take(py).map(|raised| PyErr::from_value(raised.into_bound(py)))
    }

    pub(crate) fn visit(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.0.visit(visit)
    }

    /// Runs Python's signal handlers. Returns true if one has raised an exception, which is kept then.
    pub(crate) fn check_signals(&self) -> bool {
        Python::attach(|py| py.check_signals().map_err(|error| self.set(py, error)).is_err())
    }
}
