//! The error of this package.

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
    #[error("DLPack has no data type for {0}; convert the tensor")]
    NoDataType(DType),
    /// The shape cannot be described: a size or a stride does not fit into 64 bits with a sign.
    #[error("DLPack cannot describe the shape {shape:?}: {source}")]
    Shape {
        /// The shape.
        shape: Vec<usize>,
        /// The error of dlpark.
        source: metadata::Error,
    },
    /// The pointer is null, or the tensor has another major version of DLPack.
    #[error("the managed tensor cannot be taken: {0}")]
    Raw(#[from] FromRawError),
    /// The description of the tensor is invalid.
    #[error("the DLPack tensor is invalid: {0}")]
    Invalid(#[from] tensor::Error),
    /// The tensor is not on the CPU.
    #[error("the DLPack tensor is on {}, not on the CPU; copy it to the CPU first", device_name(*.0))]
    Device(DLDevice),
    /// The loader has no dtype for the data type.
    #[error("the loader has no dtype for the DLPack type {}; convert the tensor first", name_of(*.0))]
    DataType(DLDataType),
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

fn device_name(device: DLDevice) -> String {
    let name = match device.device_type {
        DLDeviceType::CUDA => "CUDA",
        DLDeviceType::CUDAHOST => "CUDA's page-locked memory",
        DLDeviceType::CUDAMANAGED => "CUDA's managed memory",
        DLDeviceType::METAL => "Metal",
        DLDeviceType::ROCM => "ROCm",
        DLDeviceType::VULKAN => "Vulkan",
        DLDeviceType(kind) => return format!("a device of type {kind}"),
    };
    format!("{name} (device {})", device.device_id)
}
