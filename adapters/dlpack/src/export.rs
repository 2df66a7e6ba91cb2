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
    /// The data is not copied, with three exceptions:
    /// - data in page-locked memory ([`Tensor::is_pinned`]), from which a device could still read after the deleter
    ///   has freed it. [`into_dlpack_pinned`](Self::into_dlpack_pinned) does not copy it;
    /// - data that another process may still read, as for [`Tensor::as_mut_slice`];
    /// - booleans that are neither 0 nor 1, which DLPack does not allow: the copy has 1 in their place.
    ///
    /// # Errors
    /// - [`Error::UnsupportedDType`]: DLPack has no data type for the dtype. It has one for every dtype of this
    ///   version.
    /// - [`Error::Shape`]: DLPack cannot describe the shape.
    /// - [`Error::Tensor`]: there is no memory for a copy.
    fn into_dlpack(self) -> Result<Dlpack, Error>;

    /// Returns a DLPack tensor as [`into_dlpack`](Self::into_dlpack) does, but does not copy data in page-locked
    /// memory.
    ///
    /// # Errors
    /// The errors of [`into_dlpack`](Self::into_dlpack).
    ///
    /// # Safety
    /// A copy to a device from page-locked memory, such as that of `to("cuda", non_blocking=True)` in PyTorch, reads
    /// the memory after the call that started it. If the data is in page-locked memory, the caller must keep it until
    /// each such copy has ended: it synchronizes the device, or waits for an event recorded after the copy, before the
    /// last owner of the data is dropped. The owners are the DLPack tensor, on whichever side, and the clones of this
    /// tensor. To keep the data, hold a clone. Otherwise a worker writes the next batch while the device copies.
    unsafe fn into_dlpack_pinned(self) -> Result<Dlpack, Error>;
}

impl<T: Element> IntoDlpack for Tensor<T> {
    fn into_dlpack(self) -> Result<Dlpack, Error> {
        AnyTensor::from(self).into_dlpack()
    }

    unsafe fn into_dlpack_pinned(self) -> Result<Dlpack, Error> {
        // SAFETY: the caller makes the promise that the method requires.
        unsafe { AnyTensor::from(self).into_dlpack_pinned() }
    }
}

impl IntoDlpack for AnyTensor {
    fn into_dlpack(self) -> Result<Dlpack, Error> {
        if self.is_pinned() {
            return export(Self::from_bytes(self.dtype(), self.shape(), self.as_bytes())?);
        }
        export(self)
    }

    unsafe fn into_dlpack_pinned(self) -> Result<Dlpack, Error> {
        export(self)
    }
}

/// Gives the data to a DLPack tensor, in whatever memory it is.
fn export(mut tensor: AnyTensor) -> Result<Dlpack, Error> {
    let data_type = data_type_of(tensor.dtype()).ok_or(Error::UnsupportedDType(tensor.dtype()))?;
    let shape = tensor.shape().to_vec();
    if tensor.dtype() == DType::Bool && tensor.as_bytes().iter().any(|&byte| byte > 1) {
        let valid: Vec<u8> = tensor.as_bytes().iter().map(|&byte| u8::from(byte != 0)).collect();
        tensor = AnyTensor::from_bytes(DType::Bool, shape.clone(), &valid)?;
    }
    let is_empty = tensor.as_bytes().is_empty();
    let (data, flags) = match tensor.as_mut_bytes() {
        Ok(bytes) => (bytes.as_mut_ptr(), DlpackFlags::empty()),
        Err(_) => (tensor.as_bytes().as_ptr().cast_mut(), DlpackFlags::READ_ONLY),
    };
    let data = if is_empty { ptr::null_mut() } else { data.cast::<c_void>() };
    let mut managed = Dynamic::compact(&shape[..])
        .initialize(Box::new(tensor))
        .map_err(|source| Error::Shape { shape, source })?;
    managed.set_data(data).set_dtype(data_type).set_device(DLDevice::CPU).set_flags(flags)?;
    // SAFETY: `data` points to the elements of the tensor that the context owns. They are not moved, and are
    // not freed before the context is dropped. The shape, its strides and the dtype are those of the tensor,
    // and it is writable only if no other tensor shares its elements.
    Ok(unsafe { managed.finish() })
}
