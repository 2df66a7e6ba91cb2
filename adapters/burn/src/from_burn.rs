//! Burn tensors as tensors of the loader.

use burn_core::tensor::{
    BoolStore, DType as BurnDType, Tensor as BurnTensor, TensorData,
    kind::{Basic, Kind},
};
use loader_core::{AnyTensor, DType, Element, Tensor};

use crate::Error;

/// A tensor of the loader that can be made of a burn tensor: a [`Tensor`] or an [`AnyTensor`].
pub trait FromBurn: Sized {
    /// Copies the elements of a burn tensor, which keep their type. A `Bool` tensor becomes a tensor of
    /// [`loader_core::Bool`].
    ///
    /// The elements are copied once. Before that, burn makes a copy of its own if `tensor` shares its memory
    /// with a clone, if it is a view that is not contiguous, or if it is on another device. The new tensor is
    /// in shared memory if a worker is collating a batch.
    ///
    /// # Errors
    /// - [`Error::WrongDType`]: the elements are not those of the [`Tensor`].
    /// - [`Error::DTypeNotInLoader`]: the burn tensor is quantised.
    /// - [`Error::Read`]: burn cannot read the tensor.
    /// - [`Error::Tensor`]: memory cannot be allocated.
    ///
    /// # Examples
    /// ```
    /// use burn_core::tensor::{Device, Tensor};
    /// use loader_burn::FromBurn;
    ///
    /// let logits = Tensor::<2>::from_floats([[0.5, 1.5]], &Device::default());
    /// let logits = loader_core::Tensor::<f32>::from_burn(logits)?;
    /// assert_eq!((logits.shape(), logits.row(0)), ([1, 2].as_slice(), [0.5, 1.5].as_slice()));
    /// # anyhow::Ok(())
    /// ```
    fn from_burn<const D: usize, K: Basic>(tensor: BurnTensor<D, K>) -> Result<Self, Error>;
}

impl FromBurn for AnyTensor {
    fn from_burn<const D: usize, K: Basic>(tensor: BurnTensor<D, K>) -> Result<Self, Error> {
        let (data, dtype) = read(tensor)?;
        Ok(Self::from_bytes(dtype, data.shape().to_vec(), data.as_bytes())?)
    }
}

impl<T: Element> FromBurn for Tensor<T> {
    fn from_burn<const D: usize, K: Basic>(tensor: BurnTensor<D, K>) -> Result<Self, Error> {
        let (data, dtype) = read(tensor)?;
        if dtype != T::DTYPE {
            return Err(Error::WrongDType { expected: T::DTYPE, found: data.dtype() });
        }
        Ok(AnyTensor::from_bytes(dtype, data.shape().to_vec(), data.as_bytes())?.downcast()?)
    }
}

/// Reads a burn tensor. Returns it with the loader's name of its elements.
fn read<const D: usize, K: Basic>(tensor: BurnTensor<D, K>) -> Result<(TensorData, DType), Error> {
    let mut data = tensor.try_into_data()?;
    if K::KIND == Kind::Bool {
        data = data
            .try_cast(BurnDType::Bool(BoolStore::Native))
            .map_err(|error| Error::Read(Box::new(error)))?;
    }
    let dtype = match data.dtype() {
        BurnDType::Bool(BoolStore::Native) => DType::Bool,
        BurnDType::F16 => DType::F16,
        BurnDType::BF16 => DType::BF16,
        BurnDType::F32 => DType::F32,
        BurnDType::F64 => DType::F64,
        BurnDType::U8 => DType::U8,
        BurnDType::I8 => DType::I8,
        BurnDType::U16 => DType::U16,
        BurnDType::I16 => DType::I16,
        BurnDType::U32 => DType::U32,
        BurnDType::I32 => DType::I32,
        BurnDType::U64 => DType::U64,
        BurnDType::I64 => DType::I64,
        found => return Err(Error::DTypeNotInLoader(found)),
    };
    Ok((data, dtype))
}
