//! Datasets of tensors in memory.

use std::sync::Arc;

use anyhow::ensure;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::DeserializeOwned};

use super::{ComposeError, Dataset, TensorRow, error::common_length};
use crate::data::{
    context::SampleContext,
    tensor::{Element, Tensor},
    tuples::each_tuple,
};

/// Tensors in memory, one row per sample: PyTorch's `TensorDataset`.
///
/// A dataset of one tensor has its rows ([`TensorRow`]s) as samples. A dataset of a tuple of 1 to 8 tensors
/// with equal first dimensions has tuples of rows as samples. From a tensor of shape `[N, ..S]`, a batch of
/// `B` samples has the shape `[B, ..S]`. A row is a view, whose elements are copied once, into the batch.
///
/// Worker processes share the tensors. `build()` copies them into shared memory once, also with 0 workers,
/// and then drops the dataset that the builder was given. Until then the tensors are in memory twice, and
/// longer if the program keeps a clone.
///
/// # Examples
/// ```
/// use loader_core::prelude::*;
///
/// let images = Tensor::<f32>::zeros([10, 28, 28])?;
/// let labels = Tensor::<u8>::zeros([10])?;
/// let dataset = TensorDataset::new((images, labels))?;
/// let loader = DataLoader::builder(dataset).batch_size(4).build()?;
/// let (images, labels) = loader.iter()?.next().unwrap()?;
/// assert_eq!((images.shape(), labels.shape()), ([4, 28, 28].as_slice(), [4].as_slice()));
/// # anyhow::Ok(())
/// ```
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(bound(serialize = "", deserialize = ""))]
pub struct TensorDataset<T: Tensors> {
    tensors: T::Shared,
    len: usize,
}

impl<T: Tensors> TensorDataset<T> {
    /// Creates a dataset of the rows of `tensors`.
    ///
    /// # Errors
    /// Returns [`ComposeError::LengthsDiffer`] if the first dimensions differ, and [`ComposeError::NoRows`]
    /// if a tensor has rank 0.
    pub fn new(tensors: T) -> Result<Self, ComposeError> {
        let mut lengths = Vec::new();
        for (part, shape) in tensors.shapes() {
            let Some(&len) = shape.first() else { return Err(ComposeError::NoRows { part }) };
            lengths.push((part, len));
        }
        let len = common_length(lengths)?.unwrap_or(0);
        Ok(Self { tensors: tensors.share(), len })
    }

    /// Returns the tensors. The data is shared, not copied.
    pub fn tensors(&self) -> T {
        T::unshare(&self.tensors)
    }
}

impl<T: Tensors> Dataset for TensorDataset<T> {
    type Sample = T::Rows;

    fn len(&self) -> usize {
        self.len
    }

    fn get(&self, index: usize, _cx: &mut SampleContext) -> anyhow::Result<T::Rows> {
        ensure!(index < self.len, "index {index} is out of range: the tensors have {} rows", self.len);
        Ok(T::rows(&self.tensors, index))
    }
}

/// The tensors of a [`TensorDataset`]: one tensor, or a tuple of 1 to 8 tensors.
pub trait Tensors: Send + Sync + 'static + sealed::Sealed {
    /// One row of each tensor.
    type Rows: Send + 'static;

    /// The tensors behind reference counts, so that creating a row does not allocate.
    #[doc(hidden)]
    type Shared: Serialize + DeserializeOwned + std::fmt::Debug + Send + Sync + 'static;

    #[doc(hidden)]
    fn shapes(&self) -> Vec<(String, &[usize])>;

    #[doc(hidden)]
    fn share(self) -> Self::Shared;

    #[doc(hidden)]
    fn unshare(shared: &Self::Shared) -> Self;

    #[doc(hidden)]
    fn rows(shared: &Self::Shared, index: usize) -> Self::Rows;
}

mod sealed {
    pub trait Sealed {}
}

/// A tensor shared with its rows. Its encoding is that of the tensor.
#[doc(hidden)]
#[derive(Debug)]
pub struct Shared<T: Element>(Arc<Tensor<T>>);

impl<T: Element> Clone for Shared<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T: Element> Serialize for Shared<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de, T: Element> Deserialize<'de> for Shared<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self(Arc::new(Tensor::deserialize(deserializer)?)))
    }
}

impl<T: Element> sealed::Sealed for Tensor<T> {}

impl<T: Element> Tensors for Tensor<T> {
    type Rows = TensorRow<T>;
    type Shared = Shared<T>;

    fn shapes(&self) -> Vec<(String, &[usize])> {
        vec![("the tensor".to_owned(), self.shape())]
    }

    fn share(self) -> Shared<T> {
        Shared(Arc::new(self))
    }

    fn unshare(shared: &Shared<T>) -> Self {
        Self::clone(&shared.0)
    }

    #[inline]
    fn rows(shared: &Shared<T>, index: usize) -> TensorRow<T> {
        TensorRow::new(Arc::clone(&shared.0), index)
    }
}

macro_rules! tensors {
    ($($name:ident $position:tt),*) => {
        impl<$($name: Element),*> sealed::Sealed for ($(Tensor<$name>,)*) {}

        impl<$($name: Element),*> Tensors for ($(Tensor<$name>,)*) {
            type Rows = ($(TensorRow<$name>,)*);
            type Shared = ($(Shared<$name>,)*);

            fn shapes(&self) -> Vec<(String, &[usize])> {
                vec![$((format!("tensor {}", $position), self.$position.shape())),*]
            }

            fn share(self) -> Self::Shared {
                ($(self.$position.share(),)*)
            }

            fn unshare(shared: &Self::Shared) -> Self {
                ($(Tensor::unshare(&shared.$position),)*)
            }

            #[inline]
            fn rows(shared: &Self::Shared, index: usize) -> Self::Rows {
                ($(Tensor::rows(&shared.$position, index),)*)
            }
        }
    };
}

each_tuple!(tensors);

#[cfg(test)]
mod tests {
    use loader_ipc::attach;

    use super::*;

    fn numbers<const N: usize>(numbers: [i32; N]) -> Tensor<i32> {
        Tensor::from_slice(&numbers, [N]).unwrap()
    }

    #[test]
    fn first_dimensions_must_be_equal() {
        let error = TensorDataset::new((numbers([1, 2]), numbers([3, 4]), numbers([5]))).unwrap_err();
        assert!(error.to_string().starts_with("tensor 2 has 1 samples and tensor 0 has 2"), "{error}");
        let error = TensorDataset::new((Tensor::from_slice(&[1u8], []).unwrap(),)).unwrap_err();
        assert_eq!(error, ComposeError::NoRows { part: "tensor 0".into() });
    }

    // PyTorch: 10, 11, 12, 13, 14, D04
    #[test]
    fn samples_are_rows() {
        let grid = Tensor::from_vec((0..12u8).collect(), [3, 2, 2]).unwrap();
        let dataset = TensorDataset::new((grid.clone(), numbers([7, 8, 9]))).unwrap();
        let mut cx = SampleContext::new(0);
        let (row, number) = dataset.get(1, &mut cx).unwrap();
        assert_eq!((&*row, row.shape()), ([4, 5, 6, 7].as_slice(), [2, 2].as_slice()));
        assert_eq!((&*number, number.shape()), ([8].as_slice(), [].as_slice()));
        let error = dataset.get(3, &mut cx).unwrap_err();
        assert_eq!(error.to_string(), "index 3 is out of range: the tensors have 3 rows");
        assert_eq!(dataset.tensors().0.as_bytes().as_ptr(), grid.as_bytes().as_ptr());
        let (numbers, again) = (numbers([7, 8, 9]), grid.clone());
        let four = TensorDataset::new((grid.clone(), numbers.clone(), numbers, again)).unwrap();
        let (a, b, c, d) = four.get(2, &mut cx).unwrap();
        assert!(a == d && b == c && four.len() == 3);
        assert_eq!(&*TensorDataset::new(grid).unwrap().get(2, &mut cx).unwrap(), [8, 9, 10, 11]);
    }

    #[test]
    fn a_dataset_of_tensors_without_rows_is_empty() {
        let dataset = TensorDataset::new((Tensor::<f32>::zeros([0, 3]).unwrap(), numbers([]))).unwrap();
        assert!(dataset.is_empty());
    }

    // PyTorch: 92
    #[test]
    fn a_worker_reads_the_tensors_from_the_attached_memory() {
        let dataset = TensorDataset::new((numbers([1, 2, 3]),)).unwrap();
        let (bytes, attached) = attach::encode(&dataset).unwrap();
        let memory = Arc::clone(&attached.memories[0]);
        let copy: TensorDataset<(Tensor<i32>,)> = attach::decode(&bytes, attached).unwrap();
        let (row,) = copy.get(2, &mut SampleContext::new(0)).unwrap();
        assert_eq!(*row, [3]);
        assert!(memory.bytes().as_ptr_range().contains(&row.as_ptr().cast()), "no copy");
    }
}
