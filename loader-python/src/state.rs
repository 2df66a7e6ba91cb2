//! The class of the Python package for the state of an engine.

use loader_core::State;
use pyo3::{exceptions::PyValueError, prelude::*, types::PyBytes};

/// The state of an engine. Its text is JSON, which is a part of the states of `DataLoader` and `RustLoader`.
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

    /// True if no sample of an iterable dataset was returned. The state then has no snapshot.
    #[getter]
    fn is_before_first_sample(&self) -> bool {
        self.0.is_before_first_sample()
    }

    /// Number of the first batch of a map-style dataset that was not returned.
    #[getter]
    fn first_unreturned_batch(&self) -> u64 {
        self.0.first_unreturned_batch()
    }

    /// True if the engine knew that the sampler has no further batch.
    #[getter]
    fn is_at_end(&self) -> bool {
        self.0.is_at_end()
    }

    /// Returns the last snapshot of each shard of an iterable Python dataset: a pickle, or `None` if the shard has none.
    fn snapshots<'py>(&self, py: Python<'py>) -> PyResult<Vec<Option<Bound<'py, PyBytes>>>> {
        let snapshots: Vec<Option<Vec<u8>>> =
            self.0.snapshots().map_err(|error| PyValueError::new_err(error.to_string()))?;
        Ok(snapshots.into_iter().map(|snapshot| snapshot.map(|bytes| PyBytes::new(py, &bytes))).collect())
    }
}
