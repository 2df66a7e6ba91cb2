//! Dense arrays of numbers: what samples and batches are made of.

mod element;
mod rows;
mod serial;

use std::{fmt, sync::Arc};

use loader_ipc::buffer::Buffer;

pub use element::{DType, Element};
pub(crate) use rows::Rows;

/// A dense, row-major array of numbers with a shape of any rank (rank 0 holds one number). Its data is contiguous and starts on
/// a multiple of 64 bytes.
///
/// Cloning is cheap: clones share the data. In a batch from a worker the data lies in shared memory, in a slot that is used
/// again when the last clone of the batch's last tensor is dropped; hold on to a batch for as long as you need it, and no longer.
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

/// What is wrong with the use of a tensor.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TensorError {
    /// The number of elements is not the product of the shape.
    #[error("{len} elements do not fill a tensor of shape {shape:?}")]
    WrongLength {
        /// Number of elements given.
        len: usize,
        /// The shape.
        shape: Vec<usize>,
    },
    /// The shape has more elements than memory has bytes.
    #[error("a tensor of shape {shape:?} is larger than memory")]
    TooLarge {
        /// The shape.
        shape: Vec<usize>,
    },
    /// Other handles on the same data exist in this process.
    #[error("the tensor's data is shared; drop the other handles, or change a copy (`to_owned_tensor`)")]
    Shared,
}

impl<T: Element> Tensor<T> {
    /// A tensor of zeros. Made while a batch is collated in a worker, it lies in shared memory.
    ///
    /// # Errors
    /// [`TensorError::TooLarge`].
    pub fn zeros(shape: impl Into<Vec<usize>>) -> Result<Self, TensorError> {
        Self::make(shape.into(), Buffer::zeroed)
    }

    /// A copy of `elements` with the given shape, row-major.
    ///
    /// # Errors
    /// [`TensorError::WrongLength`] when the product of `shape` is not `elements.len()`.
    pub fn from_slice(elements: &[T], shape: impl Into<Vec<usize>>) -> Result<Self, TensorError> {
        let shape = shape.into();
        if element_count(&shape) != Some(elements.len()) {
            return Err(TensorError::WrongLength { len: elements.len(), shape });
        }
        let mut tensor = Self::make(shape, Buffer::for_overwrite)?;
        tensor.as_mut_slice().expect("a new tensor has no clone").copy_from_slice(elements);
        Ok(tensor)
    }

    /// As [`from_slice`](Self::from_slice), from a vector. The elements are copied, into aligned memory.
    ///
    /// # Errors
    /// As [`from_slice`](Self::from_slice).
    pub fn from_vec(elements: Vec<T>, shape: impl Into<Vec<usize>>) -> Result<Self, TensorError> {
        Self::from_slice(&elements, shape)
    }

    fn make(shape: Vec<usize>, allocate: impl FnOnce(usize) -> Option<Buffer>) -> Result<Self, TensorError> {
        match bytes_of::<T>(&shape).and_then(allocate) {
            Some(buffer) => Ok(Self::over(Arc::new(buffer), shape)),
            None => Err(TensorError::TooLarge { shape }),
        }
    }

    /// `shape` must not need more bytes than `buffer` has.
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

    /// True when the first dimension is 0.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Type of the elements.
    pub fn dtype(&self) -> DType {
        T::DTYPE
    }

    /// All elements, row-major.
    pub fn as_slice(&self) -> &[T] {
        bytemuck::cast_slice(self.as_bytes())
    }

    /// All elements' bytes, in this machine's order.
    pub fn as_bytes(&self) -> &[u8] {
        let bytes = element_count(&self.shape).expect("checked when made") * size_of::<T>();
        &self.buffer.as_bytes()[..bytes]
    }

    /// All elements, for writing. Data that another process reads too is copied to the heap first: a
    /// dataset's tensors in a worker, a tensor that user code in a worker kept after its batch was sent, and
    /// a batch's tensors in the program if the worker kept one of them.
    ///
    /// # Errors
    /// [`TensorError::Shared`] if a clone of this tensor exists in this process.
    pub fn as_mut_slice(&mut self) -> Result<&mut [T], TensorError> {
        let bytes = self.as_bytes().len();
        let buffer = Arc::get_mut(&mut self.buffer).ok_or(TensorError::Shared)?;
        Ok(bytemuck::cast_slice_mut(&mut buffer.as_bytes_mut()[..bytes]))
    }

    /// Row `index` of the first dimension: one sample of a batch.
    ///
    /// # Panics
    /// When there is no such row.
    #[inline] // for each sample of a batch
    pub fn row(&self, index: usize) -> &[T] {
        assert!(index < self.len(), "row {index} of {}", self.len());
        let row = self.row_len() * size_of::<T>();
        bytemuck::cast_slice(&self.buffer.as_bytes()[index * row..(index + 1) * row])
    }

    /// A copy with data of its own on the heap, which does not hold the batch's slot.
    #[must_use]
    pub fn to_owned_tensor(&self) -> Self {
        Self::over(Arc::new(Buffer::copy_of(self.as_bytes())), self.shape.clone())
    }

    /// The same elements with another shape; shares the data.
    ///
    /// # Errors
    /// [`TensorError::WrongLength`] when the number of elements differs.
    pub fn reshape(&self, shape: impl Into<Vec<usize>>) -> Result<Self, TensorError> {
        let shape = shape.into();
        let len = self.as_slice().len();
        if element_count(&shape) != Some(len) {
            return Err(TensorError::WrongLength { len, shape });
        }
        Ok(Self::over(Arc::clone(&self.buffer), shape))
    }

    /// True when the data lies in a slot of shared memory.
    pub fn is_shared_memory(&self) -> bool {
        self.buffer.is_shared()
    }

    /// True when the data lies in page-locked memory, from which a device copies by itself: see
    /// [`pin_memory`](crate::Builder::pin_memory). Always false in a worker.
    pub fn is_pinned(&self) -> bool {
        self.buffer.is_pinned()
    }

    /// Elements in one row of the first dimension.
    #[inline]
    fn row_len(&self) -> usize {
        self.shape.iter().skip(1).product()
    }
}

/// Bytes of a tensor, if memory can be that large.
fn bytes_of<T>(shape: &[usize]) -> Option<usize> {
    let bytes = element_count(shape)?.checked_mul(size_of::<T>())?;
    isize::try_from(bytes).is_ok().then_some(bytes)
}

fn element_count(shape: &[usize]) -> Option<usize> {
    shape.iter().try_fold(1usize, |count, &size| count.checked_mul(size))
}

impl<T: Element> PartialEq for Tensor<T> {
    fn eq(&self, other: &Self) -> bool {
        self.shape == other.shape && self.as_slice() == other.as_slice()
    }
}

impl<T: Element> fmt::Debug for Tensor<T> {
    /// Dtype, shape and the first few elements.
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
    fn shape_and_elements_must_agree() {
        let error = Tensor::from_vec(vec![1u8; 5], [2, 3]).unwrap_err();
        assert_eq!(error.to_string(), "5 elements do not fill a tensor of shape [2, 3]");
        assert!(matches!(Tensor::<f64>::zeros([usize::MAX, 2]), Err(TensorError::TooLarge { .. })));
        assert!(matches!(Tensor::<f64>::zeros([usize::MAX / 8]), Err(TensorError::TooLarge { .. })));
        // More than any machine gives.
        assert!(matches!(Tensor::<u8>::zeros([1 << 62]), Err(TensorError::TooLarge { .. })));
    }

    #[test]
    fn only_the_single_handle_may_change_the_data() {
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
