//! Dense arrays of numbers.

mod any;
mod bytes;
mod element;
mod rows;
mod serial;

use std::{fmt, sync::Arc};

use loader_ipc::buffer::Buffer;

pub use any::AnyTensor;
pub use bytes::BytesArray;
pub use element::{Bool, DType, Element};
pub use rows::BatchRows;
pub(crate) use rows::Rows;

/// A dense, row-major array of numbers with a shape of any rank; a tensor of rank 0 contains one number. The
/// data is contiguous and aligned to 64 bytes.
///
/// Cloning is cheap: clones share the data. The data of a batch from a worker is in a slot of shared memory.
/// The loader reuses the slot when all tensors of the batch and all their clones have been dropped, so drop a
/// batch as soon as you no longer need it.
///
/// # Examples
/// ```
/// use loader_core::Tensor;
///
/// let mut tensor = Tensor::from_vec(vec![1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0], [2, 3])?;
/// assert_eq!(tensor.shape(), [2, 3]);
/// assert_eq!(tensor.row(1), [4.0, 5.0, 6.0]);
/// tensor.as_mut_slice()?[0] = 10.0;
/// assert_eq!(tensor.as_slice()[0], 10.0);
/// # Ok::<(), loader_core::TensorError>(())
/// ```
#[derive(Clone)]
pub struct Tensor<T> {
    buffer: Arc<Buffer>,
    shape: Vec<usize>,
    element: std::marker::PhantomData<T>,
}

/// Error returned by the methods of [`Tensor`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TensorError {
    /// The number of elements is not the product of the shape.
    #[error("{len} elements do not fill a tensor of shape {shape:?}")]
    WrongLength {
        /// Number of elements.
        len: usize,
        /// The shape.
        shape: Vec<usize>,
    },
    /// Memory for the shape cannot be allocated.
    #[error("cannot allocate memory for a tensor of shape {shape:?}")]
    TooLarge {
        /// The shape.
        shape: Vec<usize>,
    },
    /// The elements have another type than the one that was asked for.
    #[error("the tensor has elements of type {found}, not {expected}")]
    WrongDType {
        /// The type that was asked for.
        expected: DType,
        /// The type of the elements.
        found: DType,
    },
    /// Another tensor in this process shares the data.
    #[error("the tensor's data is shared; drop its clones, or change a copy (`to_owned_tensor`)")]
    Shared,
}

impl<T: Element> Tensor<T> {
    /// Creates a tensor of zeros, in shared memory if a worker is collating a batch.
    ///
    /// # Errors
    /// Returns [`TensorError::TooLarge`] if the memory cannot be allocated.
    pub fn zeros(shape: impl Into<Vec<usize>>) -> Result<Self, TensorError> {
        Self::make(shape.into(), Buffer::zeroed)
    }

    /// Creates a tensor for a caller that writes every element. Until then its elements have any values, because
    /// reused memory keeps its old content. It is in shared memory if a worker is collating a batch.
    ///
    /// # Errors
    /// As for [`zeros`](Self::zeros).
    #[doc(hidden)]
    pub fn for_overwrite(shape: impl Into<Vec<usize>>) -> Result<Self, TensorError> {
        Self::make(shape.into(), Buffer::for_overwrite)
    }

    /// Creates a tensor with the given shape from a copy of `elements`, which are in row-major order. It is
    /// in shared memory if a worker is collating a batch.
    ///
    /// # Errors
    /// Returns [`TensorError::WrongLength`] if the product of `shape` is not `elements.len()`, and
    /// [`TensorError::TooLarge`] if the memory cannot be allocated.
    pub fn from_slice(elements: &[T], shape: impl Into<Vec<usize>>) -> Result<Self, TensorError> {
        let shape = shape.into();
        if element_count(&shape) != Some(elements.len()) {
            return Err(TensorError::WrongLength { len: elements.len(), shape });
        }
        let mut tensor = Self::make(shape, Buffer::for_overwrite)?;
        tensor.as_mut_slice().expect("a new tensor has no clone").copy_from_slice(elements);
        Ok(tensor)
    }

    /// Creates a tensor from a vector. It copies the elements into aligned memory, as
    /// [`from_slice`](Self::from_slice) does.
    ///
    /// # Errors
    /// As for [`from_slice`](Self::from_slice).
    pub fn from_vec(elements: Vec<T>, shape: impl Into<Vec<usize>>) -> Result<Self, TensorError> {
        Self::from_slice(&elements, shape)
    }

    fn make(shape: Vec<usize>, allocate: impl FnOnce(usize) -> Option<Buffer>) -> Result<Self, TensorError> {
        match bytes_of(T::DTYPE, &shape).and_then(allocate) {
            Some(buffer) => Ok(Self::over(Arc::new(buffer), shape)),
            None => Err(TensorError::TooLarge { shape }),
        }
    }

    /// Creates a tensor that has the data of `buffer`, which must have at least as many bytes as `shape`
    /// needs.
    fn over(buffer: Arc<Buffer>, shape: Vec<usize>) -> Self {
        Self { buffer, shape, element: std::marker::PhantomData }
    }

    /// Size of each dimension.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Number of dimensions.
    pub fn rank(&self) -> usize {
        self.shape.len()
    }

    /// Size of the first dimension (the number of samples in a batch); 1 for rank 0.
    pub fn len(&self) -> usize {
        self.shape.first().copied().unwrap_or(1)
    }

    /// Number of elements: the product of the sizes of all dimensions, and 1 for rank 0.
    ///
    /// # Examples
    /// ```
    /// use loader_core::Tensor;
    ///
    /// let tensor = Tensor::<f32>::zeros([8, 3, 2])?;
    /// assert_eq!((tensor.len(), tensor.numel()), (8, 48));
    /// # Ok::<(), loader_core::TensorError>(())
    /// ```
    pub fn numel(&self) -> usize {
        self.shape.iter().product()
    }

    /// True if the size of the first dimension is 0.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Type of the elements.
    pub fn dtype(&self) -> DType {
        T::DTYPE
    }

    /// Returns all elements, row-major.
    pub fn as_slice(&self) -> &[T] {
        bytemuck::cast_slice(self.as_bytes())
    }

    /// Returns the bytes of all elements, in the byte order of this machine.
    pub fn as_bytes(&self) -> &[u8] {
        let bytes =
            element_count(&self.shape).expect("the constructor has checked the shape") * size_of::<T>();
        &self.buffer.as_bytes()[..bytes]
    }

    /// Returns all elements for writing. Data that another process reads too is first copied to the heap: the
    /// tensors of a dataset in a worker, a tensor that user code in a worker keeps after its batch was sent,
    /// and the tensors of a batch in the program if the worker has kept one of them.
    ///
    /// # Errors
    /// Returns [`TensorError::Shared`] if a clone of this tensor exists in this process.
    pub fn as_mut_slice(&mut self) -> Result<&mut [T], TensorError> {
        let bytes = self.as_bytes().len();
        let buffer = Arc::get_mut(&mut self.buffer).ok_or(TensorError::Shared)?;
        Ok(bytemuck::cast_slice_mut(&mut buffer.as_bytes_mut()[..bytes]))
    }

    /// Returns row `index` of the first dimension: one sample of a batch.
    ///
    /// # Panics
    /// Panics if `index` is not below [`len`](Self::len).
    #[inline] // called for each sample of a batch
    pub fn row(&self, index: usize) -> &[T] {
        assert!(index < self.len(), "row {index} is out of range: the tensor has {} rows", self.len());
        let row = self.row_len() * size_of::<T>();
        bytemuck::cast_slice(&self.buffer.as_bytes()[index * row..(index + 1) * row])
    }

    /// Copies the data to the heap. The copy does not keep the slot of the batch in use.
    #[must_use]
    pub fn to_owned_tensor(&self) -> Self {
        Self::over(Arc::new(Buffer::copy_of(self.as_bytes())), self.shape.clone())
    }

    /// Returns a tensor with the same elements and another shape, which shares the data.
    ///
    /// # Errors
    /// Returns [`TensorError::WrongLength`] if the number of elements differs.
    pub fn reshape(&self, shape: impl Into<Vec<usize>>) -> Result<Self, TensorError> {
        let shape = shape.into();
        let len = self.as_slice().len();
        if element_count(&shape) != Some(len) {
            return Err(TensorError::WrongLength { len, shape });
        }
        Ok(Self::over(Arc::clone(&self.buffer), shape))
    }

    /// True if the data is in a slot of shared memory.
    pub fn is_shared_memory(&self) -> bool {
        self.buffer.is_shared()
    }

    /// True if the data is in page-locked memory, from which a device can copy asynchronously; see
    /// [`pin_memory`](crate::Builder::pin_memory). Always false in a worker.
    pub fn is_pinned(&self) -> bool {
        self.buffer.is_pinned()
    }

    pub(crate) fn buffer(&self) -> &Buffer {
        &self.buffer
    }

    /// Number of elements in one row of the first dimension.
    #[inline]
    fn row_len(&self) -> usize {
        self.shape.iter().skip(1).product()
    }
}

/// Returns the number of bytes of a tensor; `None` if it exceeds `isize::MAX`.
pub(crate) fn bytes_of(dtype: DType, shape: &[usize]) -> Option<usize> {
    let bytes = element_count(shape)?.checked_mul(dtype.size())?;
    isize::try_from(bytes).is_ok().then_some(bytes)
}

/// Returns the product of `shape`; `None` if it overflows.
fn element_count(shape: &[usize]) -> Option<usize> {
    shape.iter().try_fold(1usize, |count, &size| count.checked_mul(size))
}

impl<T: Element> PartialEq for Tensor<T> {
    fn eq(&self, other: &Self) -> bool {
        self.shape == other.shape && self.as_slice() == other.as_slice()
    }
}

impl<T: Element> fmt::Debug for Tensor<T> {
    /// Writes the dtype, the shape and the first elements.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 8;
        let elements = self.as_slice();
        write!(f, "Tensor<{}>{:?} ", T::DTYPE, self.shape)?;
        let mut list = f.debug_list();
        list.entries(elements.iter().take(SHOWN));
        if elements.len() > SHOWN { list.finish_non_exhaustive() } else { list.finish() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shape_must_fit_the_elements_and_memory() {
        let error = Tensor::from_vec(vec![1u8; 5], [2, 3]).unwrap_err();
        assert_eq!(error.to_string(), "5 elements do not fill a tensor of shape [2, 3]");
        assert!(matches!(Tensor::<f64>::zeros([usize::MAX, 2]), Err(TensorError::TooLarge { .. })));
        assert!(matches!(Tensor::<f64>::zeros([usize::MAX / 8]), Err(TensorError::TooLarge { .. })));
        // More memory than any machine has.
        assert!(matches!(Tensor::<u8>::zeros([1 << 62]), Err(TensorError::TooLarge { .. })));
    }

    #[test]
    fn data_with_clones_cannot_be_changed() {
        let mut tensor = Tensor::<i32>::zeros([2]).unwrap();
        let clone = tensor.clone();
        assert_eq!(tensor.as_mut_slice(), Err(TensorError::Shared));
        drop(clone);
        tensor.as_mut_slice().unwrap()[1] = 5;
        assert_eq!(tensor.as_slice(), [0, 5]);
    }

    #[test]
    fn a_rank_0_tensor_holds_one_number() {
        let tensor = Tensor::from_vec(vec![7u64], []).unwrap();
        assert_eq!((tensor.len(), tensor.as_slice()), (1, [7].as_slice()));
    }
}
