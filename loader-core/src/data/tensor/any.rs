//! Tensors whose dtype is known only at run time.

use std::{fmt, sync::Arc};

use loader_ipc::buffer::Buffer;

use super::{DType, Element, Tensor, TensorError, bytes_of, element_count};

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
    pub(in crate::data) buffer: Arc<Buffer>,
    pub(in crate::data) shape: Vec<usize>,
    pub(in crate::data) dtype: DType,
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

    /// Number of elements: the product of the sizes of all dimensions, and 1 for rank 0.
    pub fn numel(&self) -> usize {
        self.shape.iter().product()
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
    /// Compares dtype, shape and the bytes of the elements: floats bit by bit, and booleans by their bytes.
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

#[cfg(test)]
mod tests {
    use super::*;

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
