//! A batch of Python objects, and how it travels from a worker to main.

use std::fmt;

use loader_core::Tensor;
use pyo3::{buffer::PyBuffer, exceptions::PyValueError, prelude::*, types::PyList};
use serde::{Deserialize, Serialize};

use crate::{batch::AnyBatch, memory::Memory};

/// A batch: what the collation function returned.
#[derive(Serialize, Deserialize)]
pub(crate) enum PyBatch {
    /// From a worker: a pickle, and the bytes of the arrays that the pickle refers to by position.
    Pickled {
        /// The pickle.
        pickle: Tensor<u8>,
        /// The bytes of the arrays, each in the slot.
        arrays: Vec<Tensor<u8>>,
    },
    /// Without workers: the object itself, which never leaves its process.
    #[serde(skip)]
    Object(Py<PyAny>),
}

impl fmt::Debug for PyBatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pickled { .. } => "Pickled",
            Self::Object(_) => "Object",
        })
    }
}

impl PyBatch {
    /// Makes a batch of a pickle and of objects with the buffer protocol. A [`Memory`] is taken without a copy;
    /// the bytes of other objects are copied, once.
    pub(crate) fn from_pickle(pickle: &[u8], buffers: Vec<Bound<'_, PyAny>>) -> PyResult<Self> {
        let arrays = buffers.into_iter().map(bytes_of).collect::<PyResult<_>>()?;
        Ok(Self::Pickled { pickle: copied(pickle)?, arrays })
    }
}

impl AnyBatch for PyBatch {
    fn into_object(
        self: Box<Self>,
        convert: &Bound<'_, PyAny>,
        kept: &mut Option<Box<dyn AnyBatch>>,
    ) -> PyResult<Py<PyAny>> {
        let py = convert.py();
        match *self {
            Self::Object(object) => Ok(object),
            Self::Pickled { pickle, arrays } => {
                let memories = PyList::empty(py);
                for array in arrays {
                    memories.append(Memory::new(array))?;
                }
                let pickle = Py::new(py, Memory::new(pickle))?;
                Box::new(ReceivedBatch { pickle, arrays: memories.unbind() }).into_object(convert, kept)
            }
        }
    }
}

/// A batch from a worker, as `convert` is called with it: the memory of the pickle, and the list of the arrays' memory.
/// The arrays of the object are views of its slot.
struct ReceivedBatch {
    pickle: Py<Memory>,
    arrays: Py<PyList>,
}

impl AnyBatch for ReceivedBatch {
    fn into_object(
        self: Box<Self>,
        convert: &Bound<'_, PyAny>,
        kept: &mut Option<Box<dyn AnyBatch>>,
    ) -> PyResult<Py<PyAny>> {
        let made = convert.call1((&self.pickle, &self.arrays));
        if made.is_err() {
            *kept = Some(self);
        }
        made.map(Bound::unbind)
    }
}

fn bytes_of(object: Bound<'_, PyAny>) -> PyResult<Tensor<u8>> {
    if let Ok(memory) = object.cast::<Memory>() {
        return memory.get().take();
    }
    let buffer = PyBuffer::<u8>::get(&object)?;
    let mut bytes = Tensor::<u8>::for_overwrite([buffer.len_bytes()])
        .map_err(|error| PyValueError::new_err(error.to_string()))?;
    let target = bytes.as_mut_slice().map_err(|error| PyValueError::new_err(error.to_string()))?;
    buffer.copy_to_slice(object.py(), target)?;
    Ok(bytes)
}

fn copied(bytes: &[u8]) -> PyResult<Tensor<u8>> {
    Tensor::from_slice(bytes, [bytes.len()]).map_err(|error| PyValueError::new_err(error.to_string()))
}
