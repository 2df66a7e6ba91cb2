//! A tensor in the making, row by row: nobody else can have a handle on it yet, so a row costs no look at who has.

use std::{marker::PhantomData, sync::Arc};

use loader_ipc::buffer::Buffer;

use super::{Element, Tensor, TensorError, bytes_of};

/// The rows written so far of a tensor that has room for some more.
#[derive(Debug)]
pub(crate) struct Rows<T> {
    buffer: Buffer,
    /// Most rows, then the shape of one.
    shape: Vec<usize>,
    row_bytes: usize,
    /// Rows written so far.
    len: usize,
    element: PhantomData<T>,
}

impl<T: Element> Rows<T> {
    /// No rows yet, of at most `capacity`, each of the shape `row`.
    pub(crate) fn new(capacity: usize, row: &[usize]) -> Result<Self, TensorError> {
        let shape: Vec<usize> = [&[capacity], row].concat();
        let Some(buffer) = bytes_of::<T>(&shape).and_then(Buffer::for_overwrite) else {
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

    /// The next row, with any content.
    ///
    /// # Panics
    /// When there is no room for one more.
    #[inline]
    pub(crate) fn next_row(&mut self) -> &mut [T] {
        assert!(self.len < self.shape[0], "more samples than the batch was started for");
        let row = self.len * self.row_bytes..(self.len + 1) * self.row_bytes;
        self.len += 1;
        bytemuck::cast_slice_mut(&mut self.buffer.as_bytes_mut()[row])
    }

    /// The tensor of the rows so far.
    pub(crate) fn finish(mut self) -> Tensor<T> {
        self.shape[0] = self.len;
        Tensor::over(Arc::new(self.buffer), self.shape)
    }
}
