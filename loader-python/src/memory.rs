//! Memory of a batch, as Python's buffer protocol shows it to NumPy and PyTorch.
#![allow(unsafe_code, reason = "the buffer protocol passes raw pointers")]

use std::{
    ffi::c_int,
    sync::{Mutex, PoisonError},
};

use loader_core::Tensor;
use pyo3::{
    exceptions::{PyBufferError, PyMemoryError},
    ffi,
    prelude::*,
};

/// Bytes of a batch, in a slot of shared memory or on the heap. Implements the buffer protocol: arrays and
/// tensors that Python makes of it share its bytes and keep it alive. When the last of them is gone, the slot
/// can be used for another batch.
#[pyclass(frozen, module = "loader._native")]
#[derive(Debug)]
pub(crate) struct Memory {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// `None` once the bytes were taken for a batch.
    bytes: Option<Tensor<u8>>,
    /// Number of buffers that Python holds.
    exports: usize,
    is_read_only: bool,
}

impl Memory {
    pub(crate) fn new(bytes: Tensor<u8>) -> Self {
        Self { state: Mutex::new(State { bytes: Some(bytes), exports: 0, is_read_only: false }) }
    }

    /// Bytes that Python must not change, such as those that all workers share.
    pub(crate) fn read_only(bytes: Tensor<u8>) -> Self {
        Self { state: Mutex::new(State { bytes: Some(bytes), exports: 0, is_read_only: true }) }
    }

    /// Takes the bytes, without a copy if nothing in Python refers to them any more, and otherwise as a copy.
    pub(crate) fn take(&self) -> PyResult<Tensor<u8>> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let is_free = state.exports == 0;
        let bytes =
            if is_free { state.bytes.take() } else { state.bytes.as_ref().map(Tensor::to_owned_tensor) };
        bytes.ok_or_else(sent_away)
    }
}

/// The bytes were taken for a batch.
fn sent_away() -> PyErr {
    PyBufferError::new_err("these bytes belong to a batch that was sent; copy them before collate_fn returns")
}

#[pymethods]
impl Memory {
    fn __len__(&self) -> usize {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.bytes.as_ref().map_or(0, Tensor::len)
    }

    /// Shows the bytes to Python, for reading and writing.
    ///
    /// # Safety
    /// Python calls it with a valid `view`.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let mut state = slf.get().state.lock().unwrap_or_else(PoisonError::into_inner);
        let is_read_only = state.is_read_only;
        let Some(bytes) = &mut state.bytes else {
            return Err(sent_away());
        };
        let len = bytes.len().cast_signed();
        let start = if is_read_only {
            bytes.as_slice().as_ptr().cast_mut()
        } else {
            match bytes.as_mut_slice() {
                Ok(bytes) => bytes.as_mut_ptr(),
                Err(_) => return Err(PyBufferError::new_err("the memory has another owner")),
            }
        };
        // SAFETY: `view` is valid, as this method's contract says. The bytes stay at this address until they are
        // taken or dropped: `take` leaves them while `exports` counts this view, and the view holds a reference
        // to this object. Python writes to them only if the view is not read-only.
        let filled = unsafe {
            ffi::PyBuffer_FillInfo(view, slf.as_ptr(), start.cast(), len, is_read_only.into(), flags)
        };
        if filled != 0 {
            return Err(PyErr::fetch(slf.py()));
        }
        state.exports += 1;
        Ok(())
    }

    /// Notes that Python has released a view.
    ///
    /// # Safety
    /// Python calls it once for each view.
    unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).exports -= 1;
    }
}

/// Allocates `size` bytes for an array of the batch that this thread collates: in a worker in the slot of
/// the batch, and in main on the heap. Their initial content is arbitrary.
#[pyfunction]
pub(crate) fn allocate(size: usize) -> PyResult<Memory> {
    match Tensor::for_overwrite([size]) {
        Ok(bytes) => Ok(Memory::new(bytes)),
        Err(error) => Err(PyMemoryError::new_err(error.to_string())),
    }
}
