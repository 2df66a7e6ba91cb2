#![doc = include_str!("../README.md")]

use std::borrow::Cow;

use loader_core::{AnyTensor, DType};
use safetensors::Dtype;

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
    /// # Panics
    /// Panics if safetensors does not have the dtype. It has every dtype of this version of the loader.
    pub fn new(tensor: &'a AnyTensor) -> Self {
        let dtype = dtype_of(tensor.dtype());
        Self { tensor, dtype: dtype.unwrap_or_else(|| panic!("safetensors has no dtype {}", tensor.dtype())) }
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

#[cfg(test)]
mod tests {
    use safetensors::{SafeTensors, View as _};

    use super::*;

    #[test]
    fn every_dtype_is_written_as_it_is_and_lent_without_a_copy() {
        for &dtype in DType::ALL {
            let limit = if dtype == DType::Bool { 2 } else { 256 };
            let bytes: Vec<u8> = (0..6 * dtype.size()).map(|n| (n % limit) as u8).collect();
            let tensor = AnyTensor::from_bytes(dtype, [2, 3], &bytes).unwrap();
            let view = View::new(&tensor);
            assert_eq!(view.data().as_ptr(), tensor.as_bytes().as_ptr());
            let written = safetensors::serialize([("x", view)], None).unwrap();
            let read = SafeTensors::deserialize(&written).unwrap();
            let read = read.tensor("x").unwrap();
            assert_eq!((read.shape(), read.data()), ([2, 3].as_slice(), &bytes[..]));
            assert_eq!(Some(read.dtype()), dtype_of(dtype));
        }
    }

    #[test]
    fn invalid_truth_values_are_written_as_true() {
        let tensor = AnyTensor::from_bytes(DType::Bool, [3], &[0, 1, 7]).unwrap();
        let written = safetensors::serialize([("x", View::new(&tensor))], None).unwrap();
        assert_eq!(SafeTensors::deserialize(&written).unwrap().tensor("x").unwrap().data(), [0, 1, 1]);
    }
}
