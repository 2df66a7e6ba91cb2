//! Tensors whose dtype is known only at run time as samples.

use std::ops::Range;

use super::{CollateError, CollateProblem, ContentHash, Sample, Stack};
use crate::data::tensor::{AnyTensor, DType, Rows, Tensor, TensorError, bytes_of};

/// Stacks rows along a new first dimension into an [`AnyTensor`] of shape `[B, ..S]`. The first row decides
/// the dtype and the shape `S`.
///
/// # Examples
/// ```
/// use loader_core::{DType, collate::{AnyStack, Stack}};
///
/// let mut stack = AnyStack::new(2);
/// stack.push_row(DType::U8, &[3], &[1, 2, 3])?;
/// stack.push_row(DType::U8, &[3], &[4, 5, 6])?;
/// let batch = stack.finish()?;
/// assert_eq!((batch.shape(), batch.as_bytes()), ([2, 3].as_slice(), [1, 2, 3, 4, 5, 6].as_slice()));
/// # anyhow::Ok(())
/// ```
#[derive(Debug)]
pub struct AnyStack {
    capacity: usize,
    started: Option<Started>,
}

#[derive(Debug)]
struct Started {
    dtype: DType,
    shape: Vec<usize>,
    /// The bytes of each row.
    rows: Rows<u8>,
}

impl AnyStack {
    /// Starts a batch of at most `samples` rows.
    pub fn new(samples: usize) -> Self {
        Self { capacity: samples, started: None }
    }

    /// Adds a row with the given elements, which are in the byte order of this machine.
    ///
    /// # Errors
    /// Returns [`CollateProblem::MixedDTypes`] or [`CollateProblem::Ragged`] if the row does not fit the
    /// first one, and [`CollateProblem::Tensor`] if `bytes` does not fill the shape or the memory cannot be
    /// allocated.
    ///
    /// # Panics
    /// Panics if the batch has as many rows as it was started for.
    pub fn push_row(&mut self, dtype: DType, shape: &[usize], bytes: &[u8]) -> Result<(), CollateProblem> {
        if bytes_of(dtype, shape) != Some(bytes.len()) {
            let len = bytes.len() / dtype.size();
            return Err(TensorError::WrongLength { len, shape: shape.to_vec() }.into());
        }
        let rows = self.rows(dtype, shape, bytes.len())?;
        rows.reserve(1)?;
        rows.next_row().copy_from_slice(bytes);
        Ok(())
    }

    /// Adds rows of a column. `column` has the elements of all rows of the column, each of them of shape
    /// `shape`, and `ranges` are the numbers of the rows that are added.
    ///
    /// # Errors
    /// As for [`push_row`](Self::push_row), with [`CollateProblem::Tensor`] if `shape` has too many elements.
    ///
    /// # Panics
    /// Panics if `column` does not have these rows, or the batch would have more rows than it was started
    /// for.
    pub fn push_rows(
        &mut self,
        dtype: DType,
        shape: &[usize],
        column: &[u8],
        ranges: impl IntoIterator<Item = Range<usize>>,
    ) -> Result<(), CollateProblem> {
        let too_large = || TensorError::TooLarge { shape: shape.to_vec() };
        let len = bytes_of(dtype, shape).ok_or_else(too_large)?;
        let rows = self.rows(dtype, shape, len)?;
        for range in ranges {
            rows.reserve(range.len())?;
            rows.next_rows(range.len()).copy_from_slice(&column[range.start * len..range.end * len]);
        }
        Ok(())
    }

    /// Returns the rows if they have this dtype and shape, of `len` bytes, and starts them if there are none.
    fn rows(&mut self, dtype: DType, shape: &[usize], len: usize) -> Result<&mut Rows<u8>, CollateProblem> {
        if self.started.is_none() {
            self.start(dtype, shape, Rows::at_most(self.capacity, &[len])?);
        }
        let Some(started) = &mut self.started else { unreachable!("the rows were just started") };
        if started.dtype != dtype {
            return Err(CollateProblem::MixedDTypes { expected: started.dtype, found: dtype });
        }
        // Not `!=`, which calls `memcmp`: for an empty shape, that of glibc takes up to 70 ns on processors with AVX-512.
        if !started.shape.iter().eq(shape) {
            return Err(CollateProblem::Ragged { expected: started.shape.clone(), found: shape.to_vec() });
        }
        Ok(&mut started.rows)
    }

    fn start(&mut self, dtype: DType, shape: &[usize], rows: Rows<u8>) {
        self.started = Some(Started { dtype, shape: shape.to_vec(), rows });
    }
}

impl Stack for AnyStack {
    type Sample = AnyTensor;
    type Batch = AnyTensor;

    fn push(&mut self, sample: AnyTensor) -> Result<(), CollateError> {
        let AnyTensor { buffer, shape, dtype } = &sample;
        let bytes = sample.as_bytes();
        if self.started.is_none()
            && let Some(rows) = Rows::of_batch(self.capacity, &[bytes.len()], buffer)
        {
            self.start(*dtype, shape, rows);
        }
        let rows = self.rows(*dtype, shape, bytes.len())?;
        if !rows.add_in_place(buffer) {
            rows.reserve(1).map_err(CollateProblem::from)?;
            rows.next_row().copy_from_slice(bytes);
        }
        Ok(())
    }

    fn makes_tensors(&self) -> bool {
        self.started.is_none()
    }

    /// Finishes the batch. A batch without rows is a tensor of `u8` with the shape `[0]`.
    fn finish(self) -> Result<AnyTensor, CollateError> {
        let Some(Started { dtype, shape, rows }) = self.started else {
            return Ok(Tensor::<u8>::zeros([0]).map_err(CollateProblem::from)?.into());
        };
        let bytes = AnyTensor::from(rows.finish());
        let shape = [&[bytes.len()], &shape[..]].concat();
        Ok(AnyTensor { shape, dtype, ..bytes })
    }
}

impl Sample for AnyTensor {
    type Batch = Self;
    type Stack = AnyStack;

    fn stack(samples: usize) -> AnyStack {
        AnyStack::new(samples)
    }

    fn hash_content(&self, hash: &mut ContentHash) {
        hash.tensor(self.dtype, &self.shape, self.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_of_another_dtype_or_shape_is_refused() {
        let mut stack = AnyStack::new(4);
        stack.push_row(DType::I16, &[2], &[0; 4]).unwrap();
        let dtype = stack.push_row(DType::U16, &[2], &[0; 4]).unwrap_err();
        assert!(matches!(dtype, CollateProblem::MixedDTypes { expected: DType::I16, found: DType::U16 }));
        let shape = stack.push_row(DType::I16, &[1, 2], &[0; 4]).unwrap_err();
        assert!(matches!(shape, CollateProblem::Ragged { .. }));
        let other = stack.push_rows(DType::I16, &[1], &[0; 4], std::iter::once(0..2)).unwrap_err();
        assert!(matches!(other, CollateProblem::Ragged { .. }));
        let short = stack.push_row(DType::I16, &[2], &[0; 3]).unwrap_err();
        assert!(matches!(short, CollateProblem::Tensor(TensorError::WrongLength { len: 1, .. })));
        assert_eq!(stack.finish().unwrap().shape(), [1, 2]);
    }

    #[test]
    fn rows_of_a_column_are_added_in_the_order_of_the_ranges() {
        let column: Vec<u8> = (0..20).collect();
        let mut stack = AnyStack::new(6);
        stack.push_rows(DType::U8, &[2], &column, [8..10, 0..1]).unwrap();
        stack.push_row(DType::U8, &[2], &[98, 99]).unwrap();
        stack.push_rows(DType::U8, &[2], &column, std::iter::once(3..5)).unwrap();
        let batch = stack.finish().unwrap();
        assert_eq!((batch.dtype(), batch.shape()), (DType::U8, [6, 2].as_slice()));
        assert_eq!(batch.as_bytes(), [16, 17, 18, 19, 0, 1, 98, 99, 6, 7, 8, 9]);
    }
}
