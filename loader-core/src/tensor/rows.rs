//! A tensor that is written row by row. It has no clones yet, so writing a row does not have to check for
//! clones.

use std::{marker::PhantomData, sync::Arc};

use loader_ipc::buffer::Buffer;

use super::{Element, Tensor, TensorError, bytes_of};

/// A tensor that is written row by row.
#[derive(Debug)]
pub(crate) struct Rows<T> {
    buffer: Buffer,
    /// Maximum number of rows, then the shape of a row.
    shape: Vec<usize>,
    row_bytes: usize,
    /// Number of rows written so far.
    len: usize,
    element: PhantomData<T>,
}

impl<T: Element> Rows<T> {
    /// Allocates memory for at most `capacity` rows of the shape `row`.
    ///
    /// # Errors
    /// Returns [`TensorError::TooLarge`] if the memory cannot be allocated.
    pub(crate) fn new(capacity: usize, row: &[usize]) -> Result<Self, TensorError> {
        let shape: Vec<usize> = [&[capacity], row].concat();
        let Some(buffer) = bytes_of(T::DTYPE, &shape).and_then(Buffer::for_overwrite) else {
            return Err(TensorError::TooLarge { shape });
        };
        let row_bytes = row.iter().product::<usize>() * size_of::<T>();
        Ok(Self { buffer, shape, row_bytes, len: 0, element: PhantomData })
    }

    /// Shape of a row.
    #[inline]
    pub(crate) fn shape(&self) -> &[usize] {
        &self.shape[1..]
    }

    /// Returns the next row for writing. Its previous content is arbitrary.
    ///
    /// # Panics
    /// Panics if `capacity` rows have been written.
    #[inline]
    pub(crate) fn next_row(&mut self) -> &mut [T] {
        self.next_rows(1)
    }

    /// Returns the next `count` rows for writing, as [`next_row`](Self::next_row) does.
    #[inline]
    pub(crate) fn next_rows(&mut self, count: usize) -> &mut [T] {
        assert!(count <= self.shape[0] - self.len, "the batch has more samples than it was started for");
        let rows = self.len * self.row_bytes..(self.len + count) * self.row_bytes;
        self.len += count;
        bytemuck::cast_slice_mut(&mut self.buffer.as_bytes_mut()[rows])
    }

    /// Returns the tensor of the rows written so far.
    pub(crate) fn finish(mut self) -> Tensor<T> {
        self.shape[0] = self.len;
        Tensor::over(Arc::new(self.buffer), self.shape)
    }
}
