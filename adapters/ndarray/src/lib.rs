#![doc = include_str!("../README.md")]
//!
//! A view cannot outlive its tensor:
//! ```compile_fail,E0597
//! use loader_ndarray::TensorExt;
//! let view = {
//!     let batch = loader::Tensor::from_vec(vec![1_u8], [1]).unwrap();
//!     batch.view().unwrap()
//! };
//! println!("{view}");
//! ```

use loader_core::{AnyTensor, DType, Element, Tensor, TensorError};
use ndarray::{ArrayBase, ArrayD, ArrayView, ArrayViewD, ArrayViewMutD, Data, Dimension, IxDyn, ShapeError};

/// Error returned by the methods of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The tensor has another number of dimensions.
    #[error(
        "a tensor of shape {shape:?} has {} dimensions, not {expected}; use `view`, or reshape the tensor",
        shape.len()
    )]
    WrongRank {
        /// The number of dimensions that was asked for.
        expected: usize,
        /// Shape of the tensor.
        shape: Vec<usize>,
    },
    /// ndarray does not support the shape: the product of its nonzero sizes exceeds `isize::MAX`.
    #[error("ndarray does not support the shape {shape:?}: {source}; change the shape of the sample")]
    Shape {
        /// Shape of the tensor.
        shape: Vec<usize>,
        /// The error of ndarray.
        source: ShapeError,
    },
    /// The elements have another type, the tensor has a clone, or there is no memory for a tensor.
    #[error(transparent)]
    Tensor(#[from] TensorError),
}

/// Views a [`Tensor`] as an array.
pub trait TensorExt<T: Element> {
    /// Returns the tensor as an array, without a copy.
    ///
    /// # Errors
    /// Returns [`Error::Shape`] if ndarray does not support the shape.
    fn view(&self) -> Result<ArrayViewD<'_, T>, Error>;

    /// Returns the tensor as an array with a fixed number of dimensions, such as `Ix2`, without a copy.
    ///
    /// # Errors
    /// Returns [`Error::WrongRank`] if the tensor has another number of dimensions, and [`Error::Shape`] if
    /// ndarray does not support the shape.
    fn view_as<D: Dimension>(&self) -> Result<ArrayView<'_, T, D>, Error>;

    /// Returns the tensor as an array for writing. What [`Tensor::as_mut_slice`] says about copies holds here.
    ///
    /// # Errors
    /// Returns [`TensorError::Shared`] if the tensor has a clone, and [`Error::Shape`] if ndarray does not
    /// support the shape.
    fn view_mut(&mut self) -> Result<ArrayViewMutD<'_, T>, Error>;

    /// Copies the tensor into an array with its own memory, which does not hold the slot of the batch.
    ///
    /// # Errors
    /// Returns [`Error::Shape`] if ndarray does not support the shape.
    fn to_array(&self) -> Result<ArrayD<T>, Error> {
        Ok(self.view()?.into_owned())
    }
}

impl<T: Element> TensorExt<T> for Tensor<T> {
    fn view(&self) -> Result<ArrayViewD<'_, T>, Error> {
        array_view(self.shape(), self.as_slice())
    }

    fn view_as<D: Dimension>(&self) -> Result<ArrayView<'_, T, D>, Error> {
        let wrong_rank = |_| Error::WrongRank {
            expected: D::NDIM.unwrap_or_else(|| self.rank()),
            shape: self.shape().to_vec(),
        };
        self.view()?.into_dimensionality().map_err(wrong_rank)
    }

    fn view_mut(&mut self) -> Result<ArrayViewMutD<'_, T>, Error> {
        let shape = self.shape().to_vec();
        let elements = self.as_mut_slice()?;
        ArrayViewMutD::from_shape(IxDyn(&shape), elements).map_err(|source| Error::Shape { shape, source })
    }
}

/// Views an [`AnyTensor`] as an array. [`AnyTensor::downcast`] returns a [`Tensor`] with all methods of [`TensorExt`].
pub trait AnyTensorExt {
    /// Returns the tensor as an array, without a copy.
    ///
    /// # Errors
    /// Returns [`TensorError::WrongDType`] if the elements are not of type `T`, and [`Error::Shape`] if ndarray
    /// does not support the shape.
    fn view<T: Element>(&self) -> Result<ArrayViewD<'_, T>, Error>;
}

impl AnyTensorExt for AnyTensor {
    fn view<T: Element>(&self) -> Result<ArrayViewD<'_, T>, Error> {
        let found: DType = self.dtype();
        let elements = self.as_slice().ok_or(TensorError::WrongDType { expected: T::DTYPE, found })?;
        array_view(self.shape(), elements)
    }
}

/// `elements` has exactly the length of the shape. This matters: ndarray also accepts a longer slice.
fn array_view<'a, T>(shape: &[usize], elements: &'a [T]) -> Result<ArrayViewD<'a, T>, Error> {
    ArrayViewD::from_shape(IxDyn(shape), elements)
        .map_err(|source| Error::Shape { shape: shape.to_vec(), source })
}

/// Copies arrays and their views into tensors.
pub trait ArrayExt<T: Element> {
    /// Copies the array into a tensor, row-major, whatever the layout of the array. The tensor is in shared
    /// memory if a worker is collating a batch.
    ///
    /// # Errors
    /// Returns [`TensorError::TooLarge`] if the memory cannot be allocated.
    fn to_tensor(&self) -> Result<Tensor<T>, TensorError>;
}

impl<T: Element, S: Data<Elem = T>, D: Dimension> ArrayExt<T> for ArrayBase<S, D> {
    fn to_tensor(&self) -> Result<Tensor<T>, TensorError> {
        if let Some(elements) = self.as_slice() {
            return Tensor::from_slice(elements, self.shape());
        }
        let mut tensor = Tensor::zeros(self.shape())?;
        let places = tensor.as_mut_slice()?;
        for (place, &element) in places.iter_mut().zip(self) {
            *place = element;
        }
        Ok(tensor)
    }
}
