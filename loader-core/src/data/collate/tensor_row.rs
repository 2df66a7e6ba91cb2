//! Rows of a tensor as samples.

use std::{fmt, ops::Deref, sync::Arc};

use super::{ContentHash, Row, RowStack, Sample, rows::hash_row};
use crate::data::tensor::{Element, Tensor};

/// An owned view of one row of a tensor's first dimension: the sample of a
/// [`TensorDataset`](crate::TensorDataset). It keeps the tensor alive and dereferences to the row's elements.
///
/// A row of a tensor of shape `[N, ..S]` has the shape `S`; a row of a tensor of rank 1 is a single number.
/// Creating and cloning a `TensorRow` do not allocate.
///
/// # Examples
/// ```
/// use loader_core::prelude::*;
///
/// let dataset = TensorDataset::new(Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], [2, 2])?)?;
/// let row = dataset.get(1, &mut SampleContext::new(0))?;
/// assert_eq!(row.shape(), [2]);
/// assert_eq!(row.iter().sum::<f32>(), 7.0);
/// # anyhow::Ok(())
/// ```
pub struct TensorRow<T> {
    tensor: Arc<Tensor<T>>,
    row: usize,
}

impl<T: Element> TensorRow<T> {
    /// Creates a view of row `row` of `tensor`.
    ///
    /// # Panics
    /// Panics if the tensor has rank 0 or at most `row` rows.
    #[inline]
    pub fn new(tensor: Arc<Tensor<T>>, row: usize) -> Self {
        assert!(
            tensor.rank() > 0 && row < tensor.len(),
            "a tensor of shape {:?} has no row {row}",
            tensor.shape()
        );
        Self { tensor, row }
    }

    /// Shape of the row: the tensor's shape without its first dimension.
    #[inline]
    pub fn shape(&self) -> &[usize] {
        &self.tensor.shape()[1..]
    }

    /// Elements of the row, row-major.
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
    /// Writes the dtype, the shape and the elements.
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

    fn hash_content(&self, hash: &mut ContentHash) {
        hash_row(self, hash);
    }
}
