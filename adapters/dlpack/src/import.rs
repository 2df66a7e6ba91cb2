//! Copies DLPack tensors into tensors of the loader.

use std::slice;

use dlpark::{
    Managed, ManagedTensorBase, TensorRef,
    ffi::{DLDevice, DLDeviceType},
};
use loader_core::AnyTensor;

use crate::{Error, dtype_of};

/// Copies a DLPack tensor on the CPU into a tensor of the loader.
///
/// # Errors
/// - [`Error::Device`]: the tensor is not in ordinary memory of the CPU.
/// - [`Error::NotContiguous`]: the tensor is not contiguous.
/// - [`Error::DTypeNotInLoader`]: the loader does not have the data type.
/// - [`Error::Invalid`]: the description of the tensor is invalid.
/// - [`Error::Tensor`]: there is no memory for the copy.
///
/// # Safety
/// If the tensor has elements, and is on the CPU, its data pointer with the byte offset must point to as many
/// initialized elements of its data type as its shape says, and nothing may write them during the call.
pub unsafe fn from_dlpack<M: ManagedTensorBase>(managed: &Managed<M>) -> Result<AnyTensor, Error> {
    let tensor = managed.validate()?;
    let DLDevice { device_type, .. } = tensor.device();
    if device_type != DLDeviceType::CPU {
        return Err(Error::Device(tensor.device()));
    }
    let dtype = dtype_of(tensor.dtype()).ok_or(Error::DTypeNotInLoader(tensor.dtype()))?;
    if let Some(strides) = tensor.strides().filter(|strides| !is_contiguous(tensor.shape(), strides)) {
        return Err(Error::NotContiguous { shape: tensor.shape().to_vec(), strides: strides.to_vec() });
    }
    let shape: Vec<usize> = tensor.shape().iter().map(|&size| size as usize).collect(); // `validate`: not negative
    // SAFETY: the caller says that the data pointer with the byte offset is valid.
    let data = unsafe { data_of(&tensor) }?;
    Ok(AnyTensor::from_bytes(dtype, shape, data)?)
}

/// Takes a managed tensor, copies it as [`from_dlpack`] does, and calls its deleter, even if there is an error.
///
/// # Errors
/// As for [`from_dlpack`], and if the pointer is null or the tensor has another major version of DLPack.
///
/// # Safety
/// `managed` must be null or point to an initialized managed tensor that the caller owns, with a shape and
/// strides that are readable and unchanged during the call, and a deleter that may be called once. The
/// conditions of [`from_dlpack`] hold for its data.
pub unsafe fn from_raw<M: ManagedTensorBase>(managed: *mut M) -> Result<AnyTensor, Error> {
    // SAFETY: the caller says that the managed tensor is valid and gives it away.
    let managed = unsafe { Managed::from_raw(managed) }?;
    // SAFETY: the caller says that its data is valid.
    unsafe { from_dlpack(&managed) }
}

/// Returns the bytes of a contiguous tensor on the CPU.
///
/// # Safety
/// As for [`from_dlpack`].
unsafe fn data_of<'a>(tensor: &TensorRef<'a>) -> Result<&'a [u8], Error> {
    // SAFETY: the caller says that the data pointer with the byte offset is valid.
    let data = unsafe { tensor.offset_bytes_ptr() }?;
    // SAFETY: the caller says that the elements are initialized and not written, and bytes need no alignment.
    // Without elements, the pointer is not null, and the length is 0.
    Ok(unsafe { slice::from_raw_parts(data, tensor.num_bytes()) })
}

/// True if the strides are those of a row-major tensor. The stride of a dimension of size 1 has no meaning, and
/// those of a tensor without elements have none either.
fn is_contiguous(shape: &[i64], strides: &[i64]) -> bool {
    let mut expected = 1_i64;
    shape.contains(&0)
        || shape.iter().zip(strides).rev().all(|(&size, &stride)| {
            let fits = size == 1 || stride == expected;
            expected = expected.saturating_mul(size);
            fits
        })
}
