//! The order of an epoch, as a Python iterator gives it.

use std::{
    fmt,
    panic::resume_unwind,
    sync::{Mutex, PoisonError},
};

use loader_core::sampler::{BatchSampler, Epoch};
use pyo3::{
    PyTraverseError, PyVisit,
    exceptions::{PyException, PyStopIteration},
    prelude::*,
    types::{PyInt, PyList},
};

use crate::held::{Held, Latest};

/// The first exception that a sampler or a signal handler has raised, until the loader's iterator raises it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Raised(Held);

impl Raised {
    /// Keeps an exception, unless there is an earlier one.
    pub(crate) fn set(&self, py: Python<'_>, error: PyErr) {
        self.0.set_first(py, error.into_value(py).into_any());
    }

    /// Takes what must reach the program at once, such as `KeyboardInterrupt`: what is no `Exception`.
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
}

/// The Python objects of an order, which its engine shows to Python's garbage collector.
#[derive(Debug, Clone, Default)]
pub(crate) struct OrderObjects {
    begin: Held,
    batches: Latest,
}

impl OrderObjects {
    pub(crate) fn new(begin: Option<Py<PyAny>>) -> Self {
        Self { begin: begin.map(Held::new).unwrap_or_default(), batches: Latest::default() }
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
            let Some(begin) = self.objects.begin.get(py) else { return Ok(Held::default()) };
            let begun = begin.call1((epoch.number,)).map_err(|error| self.raised.set(py, error))?;
            let batches = Held::new(begun.unbind());
            self.objects.batches.set(py, &batches);
            Ok(batches)
        });
        let batches = batches.unwrap_or_else(|()| has_raised());
        Box::new(Batches { batches, raised: self.raised.clone() })
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

/// Tells the engine that the sampler has failed, without a message on standard error.
fn has_raised() -> ! {
    resume_unwind(Box::new("the sampler has raised an exception"))
}

/// The batches of an epoch.
struct Batches {
    /// The generator; nothing after its end or an exception.
    batches: Held,
    raised: Raised,
}

impl Batches {
    /// Draws a batch from the generator. With `is_left_out`, the list is empty; not for the first batch.
    ///
    /// # Panics
    /// If the generator raises an exception, which `raised` has then: for the engine, an end would be the end of the
    /// epoch.
    fn draw(&self, is_left_out: bool) -> Option<Vec<usize>> {
        let drawn = Python::attach(|py| {
            let Some(batches) = self.batches.get(py) else { return Ok(None) };
            let taken = match is_left_out {
                true => batches.call_method1("send", (true,)),
                false => batches.call_method0("__next__"),
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

impl Drop for Batches {
    fn drop(&mut self) {
        let _: Option<()> = Python::try_attach(|py| self.batches.clear(py));
    }
}

impl Iterator for Batches {
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

/// The indices of a batch, made by [`plain_numbers`]. Only [`Batches`] reads it, so that it reads each Python integer
/// once.
#[pyclass(frozen, module = "loader._native")]
#[derive(Debug)]
pub(crate) struct Numbers(Mutex<Vec<usize>>);

#[pymethods]
impl Numbers {
    /// Returns a copy of the indices, before [`Batches`] has read them.
    fn tolist(&self) -> Vec<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Returns the elements of a list if all of them are plain integers from 0 and below `end`.
#[pyfunction]
pub(crate) fn plain_numbers(keys: &Bound<'_, PyList>, end: usize) -> Option<Numbers> {
    let plain = |key: Bound<'_, PyAny>| match key.is_exact_instance_of::<PyInt>() {
        true => key.extract().ok().filter(|&number: &usize| number < end),
        false => None,
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
