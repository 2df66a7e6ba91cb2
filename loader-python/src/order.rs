//! The order of an epoch, as a Python iterator gives it.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

use loader_core::sampler::{BatchSampler, Epoch};
use pyo3::{
    exceptions::{PyException, PyStopIteration},
    prelude::*,
};

/// The first exception of a Python iterator, which the loader's iterator raises after the last batch before it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Raised(Arc<Mutex<Option<PyErr>>>);

impl Raised {
    pub(crate) fn set(&self, error: PyErr) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
    }

    /// Takes what must reach the program at once, such as `KeyboardInterrupt`: what is no `Exception`.
    pub(crate) fn take_interrupt(&self, py: Python<'_>) -> Option<PyErr> {
        let mut raised = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        raised.take_if(|error| !error.is_instance_of::<PyException>(py))
    }

    pub(crate) fn take(&self) -> Option<PyErr> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Batches of indices from a Python object: its method `begin(epoch)` returns an iterator over lists of indices.
pub(crate) struct PyOrder {
    pub(crate) begin: Py<PyAny>,
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
        let begun = Python::attach(|py| self.begin.call1(py, (epoch.number,)));
        let batches = begun.map_err(|error| self.raised.set(error)).ok();
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

/// The batches of an epoch.
struct Batches {
    /// `None` after the end or an exception.
    batches: Option<Py<PyAny>>,
    raised: Raised,
}

impl Batches {
    /// Takes a batch from the Python generator. With `is_left_out`, the list is empty; not for the first batch.
    fn take(&mut self, is_left_out: bool) -> Option<Vec<usize>> {
        let batches = self.batches.as_ref()?;
        let take = |py: Python<'_>| match is_left_out {
            true => batches.call_method1(py, "send", (true,)),
            false => batches.call_method0(py, "__next__"),
        };
        let next = Python::attach(|py| match take(py) {
            Ok(indices) => indices.extract::<Vec<usize>>(py).map(Some),
            Err(error) if error.is_instance_of::<PyStopIteration>(py) => Ok(None),
            Err(error) => Err(error),
        });
        let next = next.unwrap_or_else(|error| {
            self.raised.set(error);
            None
        });
        if next.is_none() {
            self.batches = None;
        }
        next
    }
}

impl Iterator for Batches {
    type Item = Vec<usize>;

    fn next(&mut self) -> Option<Vec<usize>> {
        self.take(false)
    }

    /// A resumed loader leaves out the batches that the program has got, after the first batch of the epoch.
    fn nth(&mut self, count: usize) -> Option<Vec<usize>> {
        for _ in 0..count {
            self.take(true)?;
        }
        self.next()
    }
}
