//! Conversion to another dtype.

use candle_core::{DType, Device, WithDType};
use half::{bf16, f16};
use loader_core::{AnyTensor, Bool, Element, Tensor};

use crate::{
    Error, Problem, ToCandle,
    tensor::{candle_dtype, check_shape},
};

/// Tensors that become tensors of candle with another dtype.
pub trait ToCandleAs {
    /// Copies the tensor to `device` and converts its elements to `dtype`. Booleans become 0 and 1. An
    /// integer must fit; one that becomes a float is rounded. Floats are converted as candle's `to_dtype`
    /// does: a float that becomes an integer loses its fraction and is limited to the integer's range.
    ///
    /// # Errors
    /// Returns [`Problem::OutOfRange`] if an integer does not fit, [`Problem::NoConversion`] if `dtype` is one of
    /// candle's 4-, 6- and 8-bit floats and the elements are integers or booleans, and the errors of
    /// [`to_candle`](ToCandle::to_candle).
    fn to_candle_as(&self, dtype: DType, device: &Device) -> Result<candle_core::Tensor, Error>;
}

impl<T: Element> ToCandleAs for Tensor<T> {
    fn to_candle_as(&self, dtype: DType, device: &Device) -> Result<candle_core::Tensor, Error> {
        AnyTensor::from(self.clone()).to_candle_as(dtype, device)
    }
}

impl ToCandleAs for AnyTensor {
    fn to_candle_as(&self, dtype: DType, device: &Device) -> Result<candle_core::Tensor, Error> {
        macro_rules! integers {
            ($($integer:ident $element:ty),*) => {
                match self.dtype() {
                    own if candle_dtype(own) == Some(dtype) => self.to_candle(device),
                    $(
                        loader_core::DType::$integer => {
                            let elements = self.as_slice::<$element>().expect("it has this dtype");
                            let integers = elements.iter().map(|&element| i128::from(element));
                            Ok(converted(integers, self.shape(), dtype, device)?)
                        }
                    )*
                    loader_core::DType::Bool => {
                        let elements = self.as_slice::<Bool>().expect("it has this dtype");
                        let integers = elements.iter().map(|element| i128::from(element.get()));
                        Ok(converted(integers, self.shape(), dtype, device)?)
                    }
                    _ => Ok(self.to_candle(device)?.to_dtype(dtype)?),
                }
            };
        }
        integers!(U8 u8, I8 i8, U16 u16, I16 i16, U32 u32, I32 i32, U64 u64, I64 i64)
    }
}

fn converted(
    integers: impl ExactSizeIterator<Item = i128>,
    shape: &[usize],
    dtype: DType,
    device: &Device,
) -> Result<candle_core::Tensor, Problem> {
    let to = Conversion { integers, shape, dtype, device };
    match dtype {
        DType::U8 => to.with(|value| u8::try_from(value).ok()),
        DType::U32 => to.with(|value| u32::try_from(value).ok()),
        DType::I16 => to.with(|value| i16::try_from(value).ok()),
        DType::I32 => to.with(|value| i32::try_from(value).ok()),
        DType::I64 => to.with(|value| i64::try_from(value).ok()),
        DType::F16 => to.with(|value| Some(f16::from_f64(value as f64)).filter(|float| float.is_finite())),
        DType::BF16 => to.with(|value| Some(bf16::from_f64(value as f64))),
        DType::F32 => to.with(|value| Some(value as f32)),
        DType::F64 => to.with(|value| Some(value as f64)),
        _ => Err(Problem::NoConversion(dtype)),
    }
}

struct Conversion<'a, I> {
    integers: I,
    shape: &'a [usize],
    dtype: DType,
    device: &'a Device,
}

impl<I: ExactSizeIterator<Item = i128>> Conversion<'_, I> {
    /// Makes the tensor of the elements that `convert` returns; `None` means that the integer does not fit.
    fn with<D: WithDType>(self, convert: impl Fn(i128) -> Option<D>) -> Result<candle_core::Tensor, Problem> {
        check_shape(self.shape)?;
        let mut elements = Vec::with_capacity(self.integers.len());
        for (position, value) in self.integers.enumerate() {
            let out_of_range = || Problem::OutOfRange { position, value, dtype: self.dtype };
            elements.push(convert(value).ok_or_else(out_of_range)?);
        }
        Ok(candle_core::Tensor::from_vec(elements, self.shape, self.device)?)
    }
}
