//! The error of this crate.

use dlpark::{
    dlpack::FromRawError,
    ffi::{DLDataType, DLDevice, DLDeviceType},
    metadata, tensor,
};
use loader_core::{DType, TensorError};

use crate::dtype::name_of;

/// Error returned when a tensor cannot be exported or imported.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// DLPack has no data type for the dtype.
    #[error("DLPack has no data type for {0}; give the field of the sample another type")]
    UnsupportedDType(DType),
    /// The shape cannot be described: a size or a stride does not fit into a signed 64-bit integer.
    #[error("DLPack cannot describe the shape {shape:?}: {source}; change the shape of the sample")]
    Shape {
        /// The shape.
        shape: Vec<usize>,
        /// The error of dlpark.
        source: metadata::Error,
    },
    /// The pointer is null, or the tensor has another major version of DLPack.
    #[error("the managed tensor cannot be taken: {0}; pass a pointer to a managed tensor of DLPack 1")]
    Raw(#[from] FromRawError),
    /// The description of the tensor is invalid.
    #[error("the DLPack tensor is invalid: {0}; correct the library that made it")]
    Invalid(#[from] tensor::Error),
    /// The tensor is not on the CPU.
    #[error("the DLPack tensor is {}", place_and_advice(*.0))]
    Device(DLDevice),
    /// The loader has no dtype for the data type.
    #[error(
        "the loader has no dtype for the DLPack type {}; convert the tensor in the framework that made it",
        name_of(*.0)
    )]
    DTypeNotInLoader(DLDataType),
    /// The tensor is not contiguous.
    #[error(
        "the DLPack tensor of shape {shape:?} has the strides {strides:?}, so it is not contiguous; make a \
         contiguous copy of it first"
    )]
    NotContiguous {
        /// Shape of the tensor.
        shape: Vec<i64>,
        /// Strides of the tensor, in elements.
        strides: Vec<i64>,
    },
    /// There is no memory for the tensor.
    #[error(transparent)]
    Tensor(#[from] TensorError),
}

fn place_and_advice(device: DLDevice) -> String {
    let name = match device.device_type {
        DLDeviceType::CUDAHOST => {
            return "in CUDA's page-locked memory; copy it to ordinary memory first".to_owned();
        }
        DLDeviceType::CUDA => "CUDA",
        DLDeviceType::CUDAMANAGED => "CUDA's managed memory",
        DLDeviceType::METAL => "Metal",
        DLDeviceType::ROCM => "ROCm",
        DLDeviceType::VULKAN => "Vulkan",
        DLDeviceType(kind) => return format!("on a device of type {kind}; copy it to the CPU first"),
    };
    format!("on {name} (device {}); copy it to the CPU first", device.device_id)
}
