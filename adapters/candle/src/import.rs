//! Tensors of candle as tensors of the loader.

use candle_core::{CpuStorage, Device, Storage};
use loader_core::{AnyTensor, Element, Tensor};

use crate::{Error, Problem};

/// Copies a tensor of candle. A tensor on another device is first copied to the CPU, and one that is not
/// contiguous, such as a transposed one, is first made contiguous. In a worker's collation the result is in
/// the slot of the batch.
///
/// # Errors
/// Returns [`Problem::DTypeNotInLoader`] if the loader does not have the dtype, [`Problem::Candle`] if the tensor
/// cannot be copied from its device, and [`Problem::Tensor`] if there is no memory.
pub fn from_candle(tensor: &candle_core::Tensor) -> Result<AnyTensor, Error> {
    let tensor = tensor.to_device(&Device::Cpu)?.contiguous()?;
    let (storage, layout) = tensor.storage_and_layout();
    let Storage::Cpu(elements) = &*storage else { unreachable!("it was copied to the CPU") };
    let (start, end) = layout.contiguous_offsets().expect("it was made contiguous");
    macro_rules! dtypes {
        ($($dtype:ident),*) => {
            match elements {
                $(CpuStorage::$dtype(elements) => copied(&elements[start..end], tensor.dims()),)*
                _ => Err(Problem::DTypeNotInLoader(tensor.dtype()).into()),
            }
        };
    }
    dtypes!(U8, U32, I16, I32, I64, BF16, F16, F32, F64)
}

fn copied<T: Element>(elements: &[T], shape: &[usize]) -> Result<AnyTensor, Error> {
    Ok(Tensor::from_slice(elements, shape)?.into())
}
