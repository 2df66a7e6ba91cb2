//! Gives the data of tensors to DLPack tensors.

use std::{ffi::c_void, ptr};

use dlpark::{DlpackFlags, ffi::DLDevice, metadata::Dynamic, versioned::Dlpack};
use loader_core::{AnyTensor, DType, Element, Tensor};

use crate::{Error, data_type_of};

/// Tensors that are converted to DLPack tensors.
pub trait IntoDlpack {
    /// Returns a DLPack tensor on the CPU that owns the data, with strides.
    ///
    /// `into_dlpack` takes the tensor. To keep it, export a clone: both then share the data, and the DLPack tensor
    /// is flagged read-only. A tensor without elements has a null pointer.
    ///
    /// The data is not copied, with two exceptions: data that another process may still read, as for
    /// [`Tensor::as_mut_slice`], and truth values that are neither 0 nor 1, which DLPack does not allow: the copy
    /// has 1 in their place.
    ///
    /// # Errors
    /// - [`Error::UnsupportedDType`]: DLPack has no data type for the dtype. It has one for every dtype of this
    ///   version.
    /// - [`Error::Shape`]: DLPack cannot describe the shape.
    /// - [`Error::Tensor`]: there is no memory for a copy of truth values.
    fn into_dlpack(self) -> Result<Dlpack, Error>;
}

impl<T: Element> IntoDlpack for Tensor<T> {
    fn into_dlpack(self) -> Result<Dlpack, Error> {
        AnyTensor::from(self).into_dlpack()
    }
}

impl IntoDlpack for AnyTensor {
    fn into_dlpack(mut self) -> Result<Dlpack, Error> {
        let data_type = data_type_of(self.dtype()).ok_or(Error::UnsupportedDType(self.dtype()))?;
        let shape = self.shape().to_vec();
        if self.dtype() == DType::Bool && self.as_bytes().iter().any(|&byte| byte > 1) {
            let valid: Vec<u8> = self.as_bytes().iter().map(|&byte| u8::from(byte != 0)).collect();
            self = Self::from_bytes(DType::Bool, shape.clone(), &valid)?;
        }
        let is_empty = self.as_bytes().is_empty();
        let (data, flags) = match self.as_mut_bytes() {
            Ok(bytes) => (bytes.as_mut_ptr(), DlpackFlags::empty()),
            Err(_) => (self.as_bytes().as_ptr().cast_mut(), DlpackFlags::READ_ONLY),
        };
        let data = if is_empty { ptr::null_mut() } else { data.cast::<c_void>() };
        let mut managed = Dynamic::compact(&shape[..])
            .initialize(Box::new(self))
            .map_err(|source| Error::Shape { shape, source })?;
        managed.set_data(data).set_dtype(data_type).set_device(DLDevice::CPU).set_flags(flags)?;
        // SAFETY: `data` points to the elements of the tensor that the context owns. They are not moved, and are
        // not freed before the context is dropped. The shape, its strides and the dtype are those of the tensor,
        // and it is writable only if no other tensor shares its elements.
        Ok(unsafe { managed.finish() })
    }
}
