//! Batches and samples of Rust datasets, as Python objects.
//!
//! A batch of images is a list of the images and the labels, and a batch of records is a dict of its columns, as
//! PyTorch's collation returns them. Each tensor becomes an [`Array`], which the Python function `convert` turns
//! into a tensor of a framework.

use loader_core::{AnyTensor, BytesArray, DType, Element, Tensor, collate::Batch};
use loader_data::{Column, Columns, Record, Scalar, Value};
use pyo3::{
    exceptions::PyMemoryError,
    prelude::*,
    types::{PyBytes, PyDict, PyList},
};
use serde::{Deserialize, Serialize};

use crate::{array::Array, batch::IntoObject};

/// The batch of a loader without automatic batching: one sample.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Single<S>(S);

/// Makes a batch of one sample. The collation function for a loader without automatic batching.
pub(crate) fn single<S: Batch>(samples: Vec<S>) -> anyhow::Result<Single<S>> {
    let mut samples = samples.into_iter();
    match (samples.next(), samples.next()) {
        (Some(sample), None) => Ok(Single(sample)),
        _ => anyhow::bail!("a batch without automatic batching has one sample"),
    }
}

impl<S: IntoObject> IntoObject for Single<S> {
    fn into_object(self, convert: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        self.0.into_object(convert)
    }
}

/// A batch of images. The labels are `int64`, as in PyTorch.
impl<P: Element> IntoObject for (Tensor<P>, Tensor<u32>) {
    fn into_object(self, convert: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        let labels: Vec<i64> = self.1.as_slice().iter().map(|&label| label.into()).collect();
        let batch = [array(convert, self.0)?, integers(convert, labels)?];
        Ok(PyList::new(convert.py(), batch)?.into_any().unbind())
    }
}

/// A sample of an image folder.
impl<P: Element> IntoObject for (Tensor<P>, u32) {
    fn into_object(self, convert: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        Ok((array(convert, self.0)?, self.1).into_pyobject(convert.py())?.into_any().unbind())
    }
}

impl IntoObject for Columns {
    fn into_object(self, convert: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        let dict = PyDict::new(convert.py());
        for (name, column) in self {
            dict.set_item(&*name, column.into_object(convert)?)?;
        }
        Ok(dict.into_any().unbind())
    }
}

impl IntoObject for Column {
    fn into_object(self, convert: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        let py = convert.py();
        match self {
            Self::Tensor(tensor) => array(convert, tensor),
            Self::Padded { values, lengths } => {
                let lengths = lengths.as_slice().iter().map(|length| length.cast_signed()).collect();
                let padded = (array(convert, values)?, integers(convert, lengths)?);
                py.import("loader._rust._rust_dataset")?.getattr("Padded")?.call1(padded).map(Bound::unbind)
            }
            Self::Texts(texts) => Ok(PyList::new(py, texts)?.into_any().unbind()),
            Self::Bytes(bytes) => list_of(py, &bytes),
            Self::Columns(columns) => columns.into_object(convert),
            Self::Values(values) => values.into_object(convert),
            other => Err(unknown(format!("{other:?}"))),
        }
    }
}

impl IntoObject for Record {
    fn into_object(self, convert: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        let dict = PyDict::new(convert.py());
        for (name, value) in self {
            dict.set_item(&*name, value.into_object(convert)?)?;
        }
        Ok(dict.into_any().unbind())
    }
}

impl IntoObject for Vec<Value> {
    fn into_object(self, convert: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        let items = self.into_iter().map(|value| value.into_object(convert)).collect::<PyResult<Vec<_>>>()?;
        Ok(PyList::new(convert.py(), items)?.into_any().unbind())
    }
}

impl IntoObject for Value {
    fn into_object(self, convert: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        let py = convert.py();
        Ok(match self {
            Self::Null => py.None(),
            Self::Bool(value) => value.into_pyobject(py)?.to_owned().into_any().unbind(),
            Self::Number(number) => number_object(py, number)?,
            Self::Text(text) => text.into_pyobject(py)?.into_any().unbind(),
            Self::Bytes(bytes) => PyBytes::new(py, &bytes).into_any().unbind(),
            Self::Tensor(tensor) | Self::Ragged(tensor, _) => return array(convert, tensor),
            Self::List(list) => return list.into_object(convert),
            Self::Record(record) => return record.into_object(convert),
            other => return Err(unknown(format!("{other:?}"))),
        })
    }
}

fn number_object(py: Python<'_>, number: Scalar) -> PyResult<Py<PyAny>> {
    let int = |dtype| number.convert(dtype);
    Ok(match (int(DType::I64), int(DType::U64)) {
        (Some(int), _) => int.get::<i64>().into_pyobject(py)?.unbind(),
        (None, Some(int)) => int.get::<u64>().into_pyobject(py)?.unbind(),
        // `f64` represents every number that is not an integer exactly.
        (None, None) => number.convert(DType::F64).and_then(Scalar::get::<f64>).into_pyobject(py)?.unbind(),
    })
}

fn array(convert: &Bound<'_, PyAny>, tensor: impl Into<AnyTensor>) -> PyResult<Py<PyAny>> {
    Ok(convert.call1((Array::new(tensor)?,))?.unbind())
}

fn integers(convert: &Bound<'_, PyAny>, integers: Vec<i64>) -> PyResult<Py<PyAny>> {
    let len = integers.len();
    let tensor =
        Tensor::from_vec(integers, [len]).map_err(|error| PyMemoryError::new_err(error.to_string()))?;
    array(convert, tensor)
}

fn list_of(py: Python<'_>, bytes: &BytesArray) -> PyResult<Py<PyAny>> {
    Ok(PyList::new(py, bytes.iter().map(|bytes| PyBytes::new(py, bytes)))?.into_any().unbind())
}

fn unknown(what: String) -> PyErr {
    pyo3::exceptions::PyTypeError::new_err(format!("Python has no object for {what}"))
}
