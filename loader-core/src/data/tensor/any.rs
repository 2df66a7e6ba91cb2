//! Tensors whose dtype is known only at run time.
//!
//! This module and `collate` import each other: an [`AnyTensor`] can be a sample, and collation makes
//! tensors.

use std::{fmt, ops::Range, sync::Arc};

use loader_ipc::buffer::Buffer;

use super::{DType, Element, Rows, Tensor, TensorError, bytes_of, element_count};
use crate::data::collate::{CollateError, CollateProblem, ContentHash, Sample, Stack};

/// A [`Tensor`] whose dtype is known only at run time: dense, row-major, contiguous and aligned to 64 bytes.
///
/// Datasets whose columns come from a file or a config return it. [`downcast`](Self::downcast) and
/// [`as_slice`](Self::as_slice) give typed access. Cloning is cheap: clones share the data.
///
/// # Examples
/// ```
/// use loader_core::{AnyTensor, DType, Tensor};
///
/// let any = AnyTensor::from(Tensor::from_slice(&[1.5_f32, 2.5], [2])?);
/// assert_eq!((any.dtype(), any.shape()), (DType::F32, [2].as_slice()));
/// assert_eq!(any.as_slice::<f32>(), Some([1.5, 2.5].as_slice()));
/// assert_eq!(any.as_slice::<f64>(), None);
///
/// let tensor: Tensor<f32> = any.downcast()?;
/// assert_eq!(tensor.row(1), [2.5]);
/// # Ok::<(), loader_core::TensorError>(())
/// ```
#[derive(Clone)]
pub struct AnyTensor {
    pub(super) buffer: Arc<Buffer>,
    pub(super) shape: Vec<usize>,
    pub(super) dtype: DType,
}

impl AnyTensor {
    /// Creates a tensor from a copy of `bytes`, the row-major elements in the byte order of this machine. It
    /// is in shared memory if a worker is collating a batch.
    ///
    /// # Errors
    /// Returns [`TensorError::WrongLength`] if `bytes` does not fill the shape, and [`TensorError::TooLarge`]
    /// if the memory cannot be allocated.
    pub fn from_bytes(dtype: DType, shape: impl Into<Vec<usize>>, bytes: &[u8]) -> Result<Self, TensorError> {
        let shape = shape.into();
        if bytes_of(dtype, &shape) != Some(bytes.len()) {
            return Err(TensorError::WrongLength { len: bytes.len() / dtype.size(), shape });
        }
        let Some(mut buffer) = Buffer::for_overwrite(bytes.len()) else {
            return Err(TensorError::TooLarge { shape });
        };
        buffer.as_bytes_mut()[..bytes.len()].copy_from_slice(bytes);
        Ok(Self { buffer: Arc::new(buffer), shape, dtype })
    }

    /// Type of the elements.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Size of each dimension.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Size of the first dimension (the number of samples in a batch); 1 for rank 0.
    pub fn len(&self) -> usize {
        self.shape.first().copied().unwrap_or(1)
    }

    /// True if the size of the first dimension is 0.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the bytes of all elements, in the byte order of this machine.
    pub fn as_bytes(&self) -> &[u8] {
        let elements = element_count(&self.shape).expect("the constructor has checked the shape");
        &self.buffer.as_bytes()[..elements * self.dtype.size()]
    }

    /// Returns the bytes of all elements for writing. What [`Tensor::as_mut_slice`] says about copies holds
    /// here too.
    ///
    /// # Errors
    /// Returns [`TensorError::Shared`] if a clone of this tensor exists in this process.
    pub fn as_mut_bytes(&mut self) -> Result<&mut [u8], TensorError> {
        let bytes = self.as_bytes().len();
        let buffer = Arc::get_mut(&mut self.buffer).ok_or(TensorError::Shared)?;
        Ok(&mut buffer.as_bytes_mut()[..bytes])
    }

    /// Returns all elements, row-major, or `None` if they are not of type `T`.
    pub fn as_slice<T: Element>(&self) -> Option<&[T]> {
        (self.dtype == T::DTYPE).then(|| bytemuck::cast_slice(self.as_bytes()))
    }

    /// Returns the same tensor with its type. The data is shared, not copied.
    ///
    /// # Errors
    /// Returns [`TensorError::WrongDType`](TensorError::WrongDType) if the elements are not of type `T`.
    pub fn downcast<T: Element>(self) -> Result<Tensor<T>, TensorError> {
        if self.dtype != T::DTYPE {
            return Err(TensorError::WrongDType { expected: T::DTYPE, found: self.dtype });
        }
        Ok(Tensor::over(self.buffer, self.shape))
    }

    /// True if the data is in a slot of shared memory.
    pub fn is_shared_memory(&self) -> bool {
        self.buffer.is_shared()
    }

    /// True if the data is in page-locked memory; see [`Tensor::is_pinned`].
    pub fn is_pinned(&self) -> bool {
        self.buffer.is_pinned()
    }
}

impl<T: Element> From<Tensor<T>> for AnyTensor {
    fn from(tensor: Tensor<T>) -> Self {
        Self { buffer: tensor.buffer, shape: tensor.shape, dtype: T::DTYPE }
    }
}

impl PartialEq for AnyTensor {
    /// Compares dtype, shape and the bytes of the elements: floats bit by bit, and truth values by their bytes.
    fn eq(&self, other: &Self) -> bool {
        self.dtype == other.dtype && self.shape == other.shape && self.as_bytes() == other.as_bytes()
    }
}

impl fmt::Debug for AnyTensor {
    /// Writes the dtype, the shape and the first elements.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        macro_rules! with_type {
            ($($dtype:ident => $element:ty),*) => {
                match self.dtype {
                    $(DType::$dtype => Tensor::<$element>::over(Arc::clone(&self.buffer), self.shape.clone()).fmt(f),)*
                }
            };
        }
        with_type!(
            U8 => u8, I8 => i8, U16 => u16, I16 => i16, U32 => u32, I32 => i32, U64 => u64, I64 => i64,
            F16 => half::f16, BF16 => half::bf16, F32 => f32, F64 => f64, Bool => super::Bool
        )
    }
}

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
        let bytes = rows.finish();
        let shape = [&[bytes.len()], &shape[..]].concat();
        Ok(AnyTensor { buffer: bytes.buffer, shape, dtype })
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

    #[test]
    fn bytes_are_written_unless_a_clone_shares_them() {
        let mut tensor = AnyTensor::from_bytes(DType::I16, [2], &[1, 2, 3, 4]).unwrap();
        let clone = tensor.clone();
        assert_eq!(tensor.as_mut_bytes(), Err(TensorError::Shared));
        drop(clone);
        tensor.as_mut_bytes().unwrap()[3] = 9;
        assert_eq!(tensor.as_bytes(), [1, 2, 3, 9]);
    }

    #[test]
    fn a_tensor_keeps_its_dtype_through_json() {
        let tensor = AnyTensor::from(Tensor::from_slice(&[1i16, -2], [2]).unwrap());
        let json = serde_json::to_string(&tensor).unwrap();
        assert_eq!(serde_json::from_str::<AnyTensor>(&json).unwrap(), tensor);
        let wrong = tensor.downcast::<u16>().unwrap_err();
        assert_eq!(wrong, TensorError::WrongDType { expected: DType::U16, found: DType::I16 });
    }
}
