//! A tensor of a batch, as Python sees it.
#![allow(unsafe_code, reason = "the buffer protocol and DLPack pass raw pointers")]

use std::{
    ffi::{CStr, c_int, c_void},
    ptr,
    sync::{Arc, Mutex, PoisonError},
};

use dlpark::{
    DlpackFlags, Managed, ManagedTensorBase,
    ffi::{DLDevice, DLManagedTensor, DLManagedTensorVersioned},
    metadata::Dynamic,
    python::{DlpackExporter, ExportRequest, export_dlpack},
};
use loader_core::{AnyTensor, DType};
use pyo3::{
    exceptions::{PyBufferError, PyMemoryError, PyTypeError},
    ffi,
    prelude::*,
    types::PyTuple,
};

/// A tensor in a slot of shared memory or on the heap, with a dtype and a shape. Implements the buffer protocol
/// and DLPack: NumPy's arrays and the tensors of frameworks share its bytes and keep them alive. When the last
/// of them is gone, the slot can be used for another batch.
///
/// A buffer has no format for `bfloat16`, so it shows such numbers as `uint16`. DLPack has all dtypes.
#[pyclass(frozen, module = "loader._native")]
#[derive(Debug)]
pub(crate) struct Array {
    tensor: Owned,
    dtype: DType,
    shape: Vec<ffi::Py_ssize_t>,
    strides: Vec<ffi::Py_ssize_t>,
}

/// The tensor, with one owner: nothing else reads it, so Python may write to it. Only [`start`] locks it. DLPack
/// tensors own it without the Python object, because their end must not need the interpreter.
type Owned = Arc<Mutex<AnyTensor>>;

impl Array {
    pub(crate) fn new(tensor: impl Into<AnyTensor>) -> PyResult<Self> {
        let mut tensor: AnyTensor = tensor.into();
        if tensor.as_mut_bytes().is_err() {
            // Two columns of a batch may share their bytes.
            let copy = AnyTensor::from_bytes(tensor.dtype(), tensor.shape(), tensor.as_bytes());
            tensor = copy.map_err(|error| PyMemoryError::new_err(error.to_string()))?;
        }
        if tensor.dtype() == DType::Bool
            && let Ok(bytes) = tensor.as_mut_bytes()
        {
            // Python allows 0 and 1 only.
            bytes.iter_mut().for_each(|byte| *byte = u8::from(*byte != 0));
        }
        let (dtype, shape) = (tensor.dtype(), tensor.shape().to_vec());
        let mut stride = dtype.size();
        let mut strides = vec![0; shape.len()];
        for (size, at) in shape.iter().zip(&mut strides).rev() {
            *at = stride.cast_signed();
            stride *= size;
        }
        let shape = shape.iter().map(|size| size.cast_signed()).collect();
        Ok(Self { tensor: Arc::new(Mutex::new(tensor)), dtype, shape, strides })
    }

    /// Exports the tensor. It is writable, because it has one owner; several exports share its bytes.
    fn export<M: ManagedTensorBase>(&self) -> PyResult<Managed<M>> {
        let refused = |error: &dyn std::fmt::Display| PyBufferError::new_err(error.to_string());
        let data_type = loader_dlpack::data_type_of(self.dtype)
            .ok_or_else(|| PyTypeError::new_err(format!("DLPack has no data type for {}", self.dtype)))?;
        let start: *mut c_void =
            if self.shape.contains(&0) { ptr::null_mut() } else { start(&self.tensor)?.cast() };
        let mut managed = Dynamic::compact(&self.shape[..])
            .initialize_as::<M>(Box::new(Arc::clone(&self.tensor)))
            .map_err(|error| refused(&error))?;
        managed.set_data(start).set_dtype(data_type).set_device(DLDevice::CPU);
        // SAFETY: `start` points to the elements of the tensor that the context owns. They are not moved, and not
        // freed before the context is dropped. The shape, its strides and the dtype are those of the tensor.
        Ok(unsafe { managed.finish() })
    }
}

/// Returns the address of the elements.
fn start(tensor: &Owned) -> PyResult<*mut u8> {
    let mut tensor = tensor.lock().unwrap_or_else(PoisonError::into_inner);
    match tensor.as_mut_bytes() {
        Ok(bytes) => Ok(bytes.as_mut_ptr()),
        Err(error) => Err(PyBufferError::new_err(error.to_string())),
    }
}

#[pymethods]
impl Array {
    /// The size of each dimension.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.shape)
    }

    /// The name of the dtype, such as `float32`.
    #[getter]
    fn dtype(&self) -> String {
        self.dtype.to_string()
    }

    fn __len__(&self) -> PyResult<usize> {
        let len =
            self.shape.first().ok_or_else(|| PyTypeError::new_err("an array of rank 0 has no length"))?;
        Ok(len.cast_unsigned())
    }

    fn __repr__(&self) -> String {
        format!("Array(shape={:?}, dtype={})", self.shape, self.dtype)
    }

    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<&Bound<'py, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(u32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Py<PyAny>> {
        export_dlpack(self, py, ExportRequest::parse(stream, max_version, dl_device, copy)?)
    }

    fn __dlpack_device__(&self) -> (u32, i32) {
        (DLDevice::CPU.device_type.0, DLDevice::CPU.device_id)
    }

    /// Shows the elements to Python, for reading and writing.
    ///
    /// # Safety
    /// Python calls it with a valid `view`.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let array = slf.get();
        let is_fortran = flags & ffi::PyBUF_F_CONTIGUOUS == ffi::PyBUF_F_CONTIGUOUS
            && flags & ffi::PyBUF_ANY_CONTIGUOUS != ffi::PyBUF_ANY_CONTIGUOUS;
        if is_fortran && array.shape.len() > 1 {
            return Err(PyBufferError::new_err("the array is contiguous by rows, not by columns"));
        }
        let start = start(&array.tensor)?;
        let Some(format) = format_of(array.dtype) else {
            return Err(PyBufferError::new_err(format!("a buffer has no format for {}", array.dtype)));
        };
        let has = |flag: c_int| flags & flag == flag;
        let filled = ffi::Py_buffer {
            buf: start.cast(),
            len: array.shape.iter().product::<ffi::Py_ssize_t>() * array.dtype.size().cast_signed(),
            itemsize: array.dtype.size().cast_signed(),
            readonly: 0,
            ndim: c_int::try_from(array.shape.len()).unwrap_or(c_int::MAX),
            format: if has(ffi::PyBUF_FORMAT) { format.as_ptr().cast_mut() } else { ptr::null_mut() },
            shape: if has(ffi::PyBUF_ND) { array.shape.as_ptr().cast_mut() } else { ptr::null_mut() },
            strides: if has(ffi::PyBUF_STRIDES) {
                array.strides.as_ptr().cast_mut()
            } else {
                ptr::null_mut()
            },
            suboffsets: ptr::null_mut(),
            internal: ptr::null_mut(),
            // The view keeps this object alive, and with it all that the view points to.
            obj: slf.into_ptr(),
        };
        // SAFETY: `view` is valid, as this method's contract says.
        unsafe { view.write(filled) };
        Ok(())
    }
}

impl DlpackExporter for Array {
    fn device(&self) -> DLDevice {
        DLDevice::CPU
    }

    fn flags(&self) -> DlpackFlags {
        DlpackFlags::empty()
    }

    fn prepare_export(&self, _py: Python<'_>, _request: &ExportRequest<'_>) -> PyResult<()> {
        Ok(())
    }

    fn export_legacy(&self, _py: Python<'_>) -> PyResult<Managed<DLManagedTensor>> {
        self.export()
    }

    fn export_versioned(&self, _py: Python<'_>) -> PyResult<Managed<DLManagedTensorVersioned>> {
        self.export()
    }
}

/// Returns the format of an element in the syntax of Python's module `struct`; `None` if there is none.
fn format_of(dtype: DType) -> Option<&'static CStr> {
    Some(match dtype {
        DType::U8 => c"B",
        DType::I8 => c"b",
        DType::U16 | DType::BF16 => c"H",
        DType::I16 => c"h",
        DType::U32 => c"I",
        DType::I32 => c"i",
        DType::U64 => c"Q",
        DType::I64 => c"q",
        DType::F16 => c"e",
        DType::F32 => c"f",
        DType::F64 => c"d",
        DType::Bool => c"?",
        _ => return None,
    })
}
