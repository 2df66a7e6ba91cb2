//! A row of a tensor as a sample.

use std::{fmt, ops::Deref, sync::Arc};

use crate::{
    collate::{Row, RowStack, Sample},
    tensor::{Element, Tensor},
};

/// One row of a tensor's first dimension, as a view that can be passed on: the sample of a
/// [`TensorDataset`](crate::TensorDataset). It keeps the tensor alive, and dereferences to the row's elements.
///
/// Cloning and making one do not allocate. Of a tensor of rank 1 the row is a single number.
///
/// # Examples
/// ```
/// use loader_core::prelude::*;
///
/// let dataset = TensorDataset::new(Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], [2, 2])?)?;
/// let row = dataset.get(1, &mut Context::new(0))?;
/// assert_eq!(row.shape(), [2]);
/// assert_eq!(row.iter().sum::<f32>(), 7.0);
/// # anyhow::Ok(())
/// ```
pub struct TensorRow<T> {
    tensor: Arc<Tensor<T>>,
    row: usize,
}

impl<T: Element> TensorRow<T> {
    /// Row `row` of `tensor`.
    ///
    /// # Panics
    /// When there is no such row.
    #[inline]
    pub fn new(tensor: Arc<Tensor<T>>, row: usize) -> Self {
        assert!(
            tensor.rank() > 0 && row < tensor.len(),
            "row {row} of a tensor of shape {:?}",
            tensor.shape()
        );
        Self { tensor, row }
    }

    /// Shape of the row: the tensor's without its first dimension.
    #[inline]
    pub fn shape(&self) -> &[usize] {
        &self.tensor.shape()[1..]
    }

    /// The row's elements, row-major.
    #[inline]
    pub fn as_slice(&self) -> &[T] {
        self.tensor.row(self.row)
    }
}

impl<T: Element> Deref for TensorRow<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        self.as_slice()
    }
}

impl<T> Clone for TensorRow<T> {
    fn clone(&self) -> Self {
        Self { tensor: Arc::clone(&self.tensor), row: self.row }
    }
}

impl<T: Element> PartialEq for TensorRow<T> {
    fn eq(&self, other: &Self) -> bool {
        self.shape() == other.shape() && self.as_slice() == other.as_slice()
    }
}

impl<T: Element> fmt::Debug for TensorRow<T> {
    /// Row, shape and elements.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TensorRow<{}>{:?} {:?}", T::DTYPE, self.shape(), self.as_slice())
    }
}

impl<T: Element> Row for TensorRow<T> {
    type Element = T;

    fn shape(&self) -> Vec<usize> {
        self.shape().to_vec()
    }

    #[inline]
    fn has_shape(&self, shape: &[usize]) -> bool {
        self.shape() == shape
    }

    #[inline]
    fn write(&self, row: &mut [T]) {
        row.copy_from_slice(self.as_slice());
    }
}

impl<T: Element> Sample for TensorRow<T> {
    type Batch = Tensor<T>;
    type Stack = RowStack<Self>;

    fn stack(samples: usize) -> RowStack<Self> {
        RowStack::new(samples)
    }
}
