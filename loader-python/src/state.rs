//! The state of an engine, in the words of the Python package.

use loader_core::State;
use pyo3::{exceptions::PyValueError, prelude::*, types::PyBytes};

/// The position in an epoch. The text of it is JSON, which the states of the package's loaders have.
#[pyclass(frozen)]
#[derive(Debug)]
pub(crate) struct EngineState(pub(crate) State);

#[pymethods]
impl EngineState {
    /// Reads the text of a state. Raises `ValueError` if it is none, or was damaged or edited.
    #[new]
    fn new(text: &str) -> PyResult<Self> {
        let state = serde_json::from_str(text);
        state.map(Self).map_err(|error| PyValueError::new_err(format!("this state cannot be used: {error}")))
    }

    fn __str__(&self) -> String {
        serde_json::to_string(&self.0).expect("a state has text keys only")
    }

    /// Number of the epoch.
    #[getter]
    fn epoch(&self) -> u64 {
        self.0.epoch()
    }

    /// True if no batch of the epoch was returned.
    #[getter]
    fn is_at_start(&self) -> bool {
        self.0.is_at_start()
    }

    /// True if no sample of an iterable dataset was returned. The state then has no position of the dataset.
    #[getter]
    fn has_no_samples(&self) -> bool {
        self.0.has_no_samples()
    }

    /// Number of the first batch of a map-style dataset that was not returned.
    #[getter]
    fn first_unreturned(&self) -> u64 {
        self.0.first_unreturned()
    }

    /// True if it was known that the sampler has no further batch.
    #[getter]
    fn is_at_end(&self) -> bool {
        self.0.is_at_end()
    }

    /// Returns the position of an iterable Python dataset in each shard: a pickle, or `None` at the shard's beginning.
    fn positions<'py>(&self, py: Python<'py>) -> PyResult<Vec<Option<Bound<'py, PyBytes>>>> {
        let positions: Vec<Option<Vec<u8>>> =
            self.0.snapshots().map_err(|error| PyValueError::new_err(error.to_string()))?;
        Ok(positions.into_iter().map(|position| position.map(|bytes| PyBytes::new(py, &bytes))).collect())
    }
}
