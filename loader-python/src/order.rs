//! The order of an epoch, as a Python iterator gives it.

use std::{
    fmt,
    panic::resume_unwind,
    sync::{Mutex, PoisonError},
};

use loader_core::sampler::{BatchSampler, Epoch};
use pyo3::{
    PyTraverseError, PyVisit,
    exceptions::PyStopIteration,
    prelude::*,
    types::{PyInt, PyList},
};

use crate::{
    raised::Raised,
    shared_object::{LatestObject, SharedObject},
};

/// The Python objects of an order, which its engine shows to Python's garbage collector.
#[derive(Debug, Clone, Default)]
pub(crate) struct OrderObjects {
    begin: SharedObject,
    batches: LatestObject,
}

impl OrderObjects {
    pub(crate) fn new(begin: Option<Py<PyAny>>) -> Self {
        Self { begin: begin.map(SharedObject::new).unwrap_or_default(), batches: LatestObject::default() }
    }

    pub(crate) fn visit(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.begin.visit(visit)?;
        self.batches.visit(visit)
    }
}

/// Batches of indices from a Python object: its method `begin(epoch)` returns a generator of lists of
/// indices, or of [`Numbers`].
pub(crate) struct PyOrder {
    pub(crate) objects: OrderObjects,
    /// Number of batches in an epoch, as far as the sampler says.
    pub(crate) batches: usize,
    pub(crate) fingerprint: String,
    pub(crate) raised: Raised,
}

impl BatchSampler for PyOrder {
    fn len(&self, _epoch: Epoch) -> usize {
        self.batches
    }

    fn batches(&self, epoch: Epoch) -> Box<dyn Iterator<Item = Vec<usize>> + Send> {
        let batches = Python::attach(|py| {
            let Some(begin) = self.objects.begin.get(py) else { return Ok(SharedObject::default()) };
            let begun = begin.call1((epoch.number,)).map_err(|error| self.raised.set(py, error))?;
            let batches = SharedObject::new(begun.unbind());
            self.objects.batches.set(py, &batches);
            Ok(batches)
        });
        let batches = batches.unwrap_or_else(|()| has_raised());
        Box::new(IndexBatches { batches, raised: self.raised.clone() })
    }

    fn fingerprint(&self) -> String {
        self.fingerprint.clone()
    }
}

impl fmt::Debug for PyOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PyOrder").field("batches", &self.batches).finish_non_exhaustive()
    }
}

/// Message of the panic by which the engine learns that the sampler has raised an exception, which [`Raised`] keeps.
pub(crate) const HAS_RAISED: &str = "the sampler has raised an exception";

/// Tells the engine that the sampler has failed, without a message on standard error.
fn has_raised() -> ! {
    resume_unwind(Box::new(HAS_RAISED))
}

/// The batches of an epoch.
struct IndexBatches {
    /// The generator; nothing after its end or an exception.
    batches: SharedObject,
    raised: Raised,
}

impl IndexBatches {
    /// Draws a batch from the generator. With `is_left_out`, the list is empty; not for the first batch.
    ///
    /// # Panics
    /// If the generator raises an exception, which `raised` has then: for the engine, an end would be the end of the
    /// epoch.
    fn draw(&self, is_left_out: bool) -> Option<Vec<usize>> {
        let drawn = Python::attach(|py| {
            let Some(batches) = self.batches.get(py) else { return Ok(None) };
            let taken = if is_left_out {
                batches.call_method1("send", (true,))
            } else {
                batches.call_method0("__next__")
            };
            match taken.and_then(|batch| numbers(&batch)) {
                Ok(indices) => Ok(Some(indices)),
                Err(error) => {
                    self.batches.clear(py);
                    if error.is_instance_of::<PyStopIteration>(py) {
                        return Ok(None);
                    }
                    self.raised.set(py, error);
                    Err(())
                }
            }
        });
        drawn.unwrap_or_else(|()| has_raised())
    }
}

impl Drop for IndexBatches {
    fn drop(&mut self) {
        let _: Option<()> = Python::try_attach(|py| self.batches.clear(py));
    }
}

impl Iterator for IndexBatches {
    type Item = Vec<usize>;

    fn next(&mut self) -> Option<Vec<usize>> {
        self.draw(false)
    }

    /// A resumed loader leaves out the batches that the program has got, after the first batch of the epoch.
    fn nth(&mut self, count: usize) -> Option<Vec<usize>> {
        for _ in 0..count {
            self.draw(true)?;
        }
        self.next()
    }
}

/// The indices of a batch, made by [`plain_numbers`]. Only [`IndexBatches`] reads it, so that it reads each Python integer
/// once.
#[pyclass(frozen, module = "loader._native")]
#[derive(Debug)]
pub(crate) struct Numbers(Mutex<Vec<usize>>);

#[pymethods]
impl Numbers {
    /// Returns a copy of the indices, before [`IndexBatches`] has read them.
    fn tolist(&self) -> Vec<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Returns the elements of a list if all of them are plain integers from 0 and below `end`.
#[pyfunction]
pub(crate) fn plain_numbers(keys: &Bound<'_, PyList>, end: usize) -> Option<Numbers> {
    let plain = |key: Bound<'_, PyAny>| {
        if key.is_exact_instance_of::<PyInt>() {
            key.extract().ok().filter(|&number: &usize| number < end)
        } else {
            None
        }
    };
    Some(Numbers(Mutex::new(keys.iter().map(plain).collect::<Option<_>>()?)))
}

/// Returns what the generator gave: [`Numbers`], or a list of integers.
fn numbers(batch: &Bound<'_, PyAny>) -> PyResult<Vec<usize>> {
    match batch.cast::<Numbers>() {
        Ok(numbers) => {
            Ok(std::mem::take(&mut *numbers.get().0.lock().unwrap_or_else(PoisonError::into_inner)))
        }
        Err(_) => batch.extract(),
    }
}
