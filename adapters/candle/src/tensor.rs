//! Tensors of the loader as tensors of candle.

use candle_core::Device;
use loader_core::{AnyTensor, DType, Element, Tensor};

use crate::{Error, Problem};

/// Batches and tensors that become tensors of candle.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be converted to candle",
    note = "implement `loader_candle::ToCandle` for it, or put `#[sample(candle)]` on the struct of the sample"
)]
pub trait ToCandle {
    /// The batch with tensors of candle.
    type Candle;

    /// Copies the tensors of the batch to `device`, with the same dtypes, and clones what is not a tensor.
    ///
    /// After each tensor in page-locked memory the method waits for the device, so that the batch may be dropped.
    ///
    /// # Errors
    /// Returns [`Problem::UnsupportedDType`] if candle does not have the dtype of a tensor, [`Problem::Shape`] if it
    /// cannot represent the shape of an empty tensor, and [`Problem::Candle`] if the device has no memory.
    fn to_candle(&self, device: &Device) -> Result<Self::Candle, Error>;
}

impl<T: Element> ToCandle for Tensor<T> {
    type Candle = candle_core::Tensor;

    fn to_candle(&self, device: &Device) -> Result<candle_core::Tensor, Error> {
        AnyTensor::from(self.clone()).to_candle(device)
    }
}

impl ToCandle for AnyTensor {
    type Candle = candle_core::Tensor;

    fn to_candle(&self, device: &Device) -> Result<candle_core::Tensor, Error> {
        Ok(copied(self, device)?)
    }
}

/// Copies the elements. The loader's tensors are aligned; elements that are not, `from_raw_buffer` copies twice.
fn copied(tensor: &AnyTensor, device: &Device) -> Result<candle_core::Tensor, Problem> {
    let dtype = candle_dtype(tensor.dtype()).ok_or_else(|| Problem::UnsupportedDType(tensor.dtype()))?;
    check_shape(tensor.shape())?;
    let copy = candle_core::Tensor::from_raw_buffer(tensor.as_bytes(), dtype, tensor.shape(), device);
    // candle only starts the copy, and may fail after that. The driver reads page-locked memory afterwards, and the
    // slot may be reused when the caller drops the batch. From other memory it has read everything already.
    if tensor.is_pinned()
        && let Err(error) = device.synchronize()
    {
        // The device may still read the slot.
        std::mem::forget(tensor.clone());
        return Err(error.into());
    }
    Ok(copy?)
}

/// candle multiplies the sizes of a shape, from the last one on, without a check.
pub(crate) fn check_shape(shape: &[usize]) -> Result<(), Problem> {
    let sizes = shape.iter().filter(|&&size| size != 0);
    let product = sizes.copied().try_fold(1_usize, usize::checked_mul);
    product.map(|_| ()).ok_or_else(|| Problem::Shape(shape.to_vec()))
}

/// Returns the dtype of candle, or `None` if it has none.
pub(crate) fn candle_dtype(dtype: DType) -> Option<candle_core::DType> {
    Some(match dtype {
        DType::U8 => candle_core::DType::U8,
        DType::U32 => candle_core::DType::U32,
        DType::I16 => candle_core::DType::I16,
        DType::I32 => candle_core::DType::I32,
        DType::I64 => candle_core::DType::I64,
        DType::F16 => candle_core::DType::F16,
        DType::BF16 => candle_core::DType::BF16,
        DType::F32 => candle_core::DType::F32,
        DType::F64 => candle_core::DType::F64,
        _ => return None,
    })
}
