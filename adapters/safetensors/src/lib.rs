#![doc = include_str!("../README.md")]

use std::borrow::Cow;

use loader_core::{AnyTensor, DType};
use safetensors::Dtype;

/// Error returned when a tensor cannot be written, or not be read again.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// safetensors has no data type for the dtype.
    #[error("safetensors has no dtype {0}; give the field of the sample another type")]
    UnsupportedDType(DType),
    /// The tensor is empty, and the product of the other sizes of its shape overflows. It could be written, but a reader
    /// that multiplies the sizes could not read it.
    #[error(
        "readers of safetensors cannot read the shape {0:?}: the product of its nonzero sizes exceeds {max}; change \
         the shape of the sample",
        max = isize::MAX
    )]
    Shape(Vec<usize>),
}

/// A tensor that `safetensors::serialize` can write.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    tensor: &'a AnyTensor,
    dtype: Dtype,
}

impl<'a> View<'a> {
    /// Borrows `tensor`. `AnyTensor::from` converts a [`Tensor`](loader_core::Tensor) to an [`AnyTensor`] without a
    /// copy.
    ///
    /// # Errors
    /// - [`Error::UnsupportedDType`]: safetensors does not have the dtype. It has every dtype of this version of the
    ///   loader.
    /// - [`Error::Shape`]: readers cannot read the shape of the empty tensor.
    pub fn new(tensor: &'a AnyTensor) -> Result<Self, Error> {
        let dtype = dtype_of(tensor.dtype()).ok_or(Error::UnsupportedDType(tensor.dtype()))?;
        check_shape(tensor.shape())?;
        Ok(Self { tensor, dtype })
    }
}

impl safetensors::View for View<'_> {
    fn dtype(&self) -> Dtype {
        self.dtype
    }

    fn shape(&self) -> &[usize] {
        self.tensor.shape()
    }

    fn data(&self) -> Cow<'_, [u8]> {
        let bytes = self.tensor.as_bytes();
        if self.dtype == Dtype::BOOL && bytes.iter().any(|&byte| byte > 1) {
            return bytes.iter().map(|&byte| u8::from(byte != 0)).collect::<Vec<_>>().into();
        }
        bytes.into()
    }

    fn data_len(&self) -> usize {
        self.tensor.as_bytes().len()
    }
}

/// A reader multiplies the sizes of a shape, in whatever order, and refuses an overflow before it meets the 0.
fn check_shape(shape: &[usize]) -> Result<(), Error> {
    let mut sizes = shape.iter().copied().filter(|&size| size != 0);
    let product = sizes.try_fold(1_usize, usize::checked_mul);
    // PyTorch and NumPy have signed sizes.
    product
        .filter(|&product| isize::try_from(product).is_ok())
        .map(drop)
        .ok_or_else(|| Error::Shape(shape.to_vec()))
}

fn dtype_of(dtype: DType) -> Option<Dtype> {
    Some(match dtype {
        DType::U8 => Dtype::U8,
        DType::I8 => Dtype::I8,
        DType::U16 => Dtype::U16,
        DType::I16 => Dtype::I16,
        DType::U32 => Dtype::U32,
        DType::I32 => Dtype::I32,
        DType::U64 => Dtype::U64,
        DType::I64 => Dtype::I64,
        DType::F16 => Dtype::F16,
        DType::BF16 => Dtype::BF16,
        DType::F32 => Dtype::F32,
        DType::F64 => Dtype::F64,
        DType::Bool => Dtype::BOOL,
        _ => return None,
    })
}
