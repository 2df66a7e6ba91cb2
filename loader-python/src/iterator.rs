//! The iterator over the batches of an epoch.

use std::{
    fmt,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use loader_core::{BatchInfo, Error, Iter, State, collate::Batch};
use pyo3::{exceptions::PyStopIteration, prelude::*, types::PyDict};

use crate::{engine::Warnings, errors, objects::IntoObject, order::Raised};

/// How often a wait for a batch looks for signals, such as Ctrl-C.
const SIGNAL_INTERVAL: Duration = Duration::from_millis(50);

/// The batches of an epoch. Waiting for one releases the interpreter's lock and notices Ctrl-C.
#[pyclass(frozen, weakref, module = "loader._native")]
#[derive(Debug)]
pub(crate) struct BatchIterator {
    /// `None` once it is closed. Locked only while this thread does not hold the interpreter's lock, which the
    /// thread that holds this one may wait for.
    iter: Mutex<Option<Box<dyn Batches>>>,
    /// Number of the dataset, if it is one of Python objects.
    number: Option<u64>,
    /// What the sampler has raised.
    raised: Raised,
    warnings: Warnings,
    /// Makes an object of a pickle and its arrays, or of a tensor of a Rust dataset's batch.
    loads: Py<PyAny>,
}

/// An [`Iter`] over batches of any type.
pub(crate) trait Batches: fmt::Debug + Send {
    /// Returns the next batch, or an error in its place.
    fn next(&mut self) -> Option<Result<Box<dyn Made>, Error>>;
    fn epoch(&self) -> u64;
    fn state(&self) -> State;
    fn worker_pids(&self) -> Vec<u32>;
    fn report(&self) -> String;
    fn last_batch(&self) -> Option<BatchInfo>;
    /// Interrupts a wait at intervals, for signal handlers.
    fn interrupt_waits(&mut self);
}

/// A batch of any type.
pub(crate) trait Made: Send {
    fn into_object(self: Box<Self>, loads: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>>;
}

impl<B: IntoObject> Made for B {
    fn into_object(self: Box<Self>, loads: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        IntoObject::into_object(*self, loads)
    }
}

impl<B: Batch + IntoObject> Batches for Iter<B> {
    fn next(&mut self) -> Option<Result<Box<dyn Made>, Error>> {
        let next = Iterator::next(self)?;
        Some(next.map(|batch| -> Box<dyn Made> { Box::new(batch) }))
    }

    fn epoch(&self) -> u64 {
        self.epoch()
    }

    fn state(&self) -> State {
        self.state()
    }

    fn worker_pids(&self) -> Vec<u32> {
        self.worker_pids()
    }

    fn report(&self) -> String {
        self.report().to_string()
    }

    fn last_batch(&self) -> Option<BatchInfo> {
        self.last_batch().cloned()
    }

    fn interrupt_waits(&mut self) {
        self.interrupt_when(SIGNAL_INTERVAL, || true);
    }
}

#[pymethods]
impl BatchIterator {
    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let next = loop {
            match self.with(py, |iter| iter.next()).flatten() {
                // Signal handlers run while the iterator is not locked: they may ask for its state.
                Some(Err(Error::Interrupted)) => py.check_signals()?,
                next => break next,
            }
        };
        for warning in self.warnings.take() {
            py.import("loader._errors")?.call_method1("warn", (warning,))?;
        }
        match next {
            Some(Ok(batch)) => batch.into_object(self.loads.bind(py)),
            Some(Err(error)) => Err(errors::to_python(py, &error, self.number)),
            None => Err(self.raised.take().unwrap_or_else(|| PyStopIteration::new_err(()))),
        }
    }

    /// Returns the state, as JSON; `None` once the iterator is closed.
    fn state(&self, py: Python<'_>) -> Option<String> {
        self.with(py, |iter| serde_json::to_string(&iter.state()).expect("a state has text keys only"))
    }

    /// Number of the epoch.
    #[getter]
    fn epoch(&self, py: Python<'_>) -> u64 {
        self.with(py, |iter| iter.epoch()).unwrap_or_default()
    }

    /// Returns the process ids of the workers.
    fn worker_pids(&self, py: Python<'_>) -> Vec<u32> {
        self.with(py, |iter| iter.worker_pids()).unwrap_or_default()
    }

    /// Returns the report of the epoch so far.
    fn report(&self, py: Python<'_>) -> Option<String> {
        self.with(py, |iter| iter.report())
    }

    /// Returns what is known of the batch that was returned last.
    fn last_batch<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        let Some(Some(info)) = self.with(py, |iter| iter.last_batch()) else { return Ok(None) };
        let dict = PyDict::new(py);
        dict.set_item("number", info.number)?;
        dict.set_item("indices", info.indices)?;
        dict.set_item("samples", info.samples)?;
        dict.set_item("shard", info.shard)?;
        dict.set_item("worker", info.worker)?;
        Ok(Some(dict))
    }

    /// Ends the workers, or keeps persistent ones for the next epoch.
    fn close(&self, py: Python<'_>) {
        py.detach(|| drop(self.iter.lock().unwrap_or_else(PoisonError::into_inner).take()));
    }
}

impl BatchIterator {
    pub(crate) fn new(
        mut iter: Box<dyn Batches>,
        number: Option<u64>,
        raised: Raised,
        warnings: Warnings,
        loads: Py<PyAny>,
    ) -> Self {
        iter.interrupt_waits();
        Self { iter: Mutex::new(Some(iter)), number, raised, warnings, loads }
    }

    /// Calls `call` without the interpreter's lock; `None` once the iterator is closed.
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&mut Box<dyn Batches>) -> T + Send,
    ) -> Option<T> {
        py.detach(|| self.iter.lock().unwrap_or_else(PoisonError::into_inner).as_mut().map(call))
    }
}

impl Drop for BatchIterator {
    fn drop(&mut self) {
        let iter = self.iter.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        // The end of an iterator waits for its workers. The sampler's objects need the interpreter, which may
        // have ended: then the closure is dropped, and the iterator with it.
        let _: Option<()> = Python::try_attach(|py| py.detach(|| drop(iter)));
    }
}
