//! What batches of Python objects and of Rust datasets have in common: both become Python objects in main.

use std::fmt;

use pyo3::prelude::*;

/// What becomes a Python object.
pub(crate) trait IntoObject: Send + 'static {
    /// Returns the object. `convert` is called with each tensor.
    fn into_object(self, convert: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>>;
}

/// A batch of any type.
pub(crate) trait AnyBatch: Send + 'static {
    /// Returns the object. If `convert` raises an exception, sets `kept` to the batch, if the type can keep it.
    fn into_object(
        self: Box<Self>,
        convert: &Bound<'_, PyAny>,
        kept: &mut Option<Box<dyn AnyBatch>>,
    ) -> PyResult<Py<PyAny>>;
}

/// A batch that is gone if `convert` raises an exception.
impl<B: IntoObject> AnyBatch for B {
    fn into_object(
        self: Box<Self>,
        convert: &Bound<'_, PyAny>,
        _kept: &mut Option<Box<dyn AnyBatch>>,
    ) -> PyResult<Py<PyAny>> {
        IntoObject::into_object(*self, convert)
    }
}

impl fmt::Debug for dyn AnyBatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AnyBatch")
    }
}

/// A batch that is a Python object already.
impl AnyBatch for Py<PyAny> {
    fn into_object(
        self: Box<Self>,
        _convert: &Bound<'_, PyAny>,
        _kept: &mut Option<Box<dyn AnyBatch>>,
    ) -> PyResult<Py<PyAny>> {
        Ok(*self)
    }
}
