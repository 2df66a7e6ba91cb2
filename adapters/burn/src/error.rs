//! The errors of this crate.

use std::{error::Error as StdError, ops::Range, sync::Arc};

use burn_core::tensor::{DType as BurnDType, Device, ExecutionError};
use loader_core::{DType, TensorError};

/// An error of the conversion between tensors, or of a [`BurnLoader`](crate::BurnLoader). Burn gets it as the
/// source of a `DatasetError`.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The tensor has another rank than the burn tensor that was asked for.
    #[error(
        "a tensor of rank {found} (shape {shape:?}) is not a burn tensor of rank {expected}; ask for rank {found}, \
         or reshape the tensor"
    )]
    WrongRank {
        /// Rank that was asked for.
        expected: usize,
        /// Rank of the tensor.
        found: usize,
        /// Shape of the tensor.
        shape: Vec<usize>,
    },
    /// The elements are not of the kind of the burn tensor that was asked for.
    #[error(
        "a tensor of {dtype} is not a burn tensor of kind {kind}; ask for the kind of its elements, and convert it \
         with burn (`float()`, `int()`, `bool()`)"
    )]
    WrongKind {
        /// Kind that was asked for: `Float`, `Int` or `Bool`.
        kind: &'static str,
        /// Type of the elements.
        dtype: DType,
    },
    /// An element of a tensor of `u8` that was to become a `Bool` tensor is neither 0 nor 1.
    #[error("element {position} is {value}, and a Bool tensor has only 0 and 1")]
    NotBool {
        /// Position of the element in the tensor, row-major, from 0.
        position: usize,
        /// The element.
        value: u8,
    },
    /// The device has no tensors with elements of this type.
    #[error(
        "{device:?} has no tensors of {dtype}; convert the samples in the dataset, for example with `map`, or use \
         another backend"
    )]
    UnsupportedDType {
        /// Type of the elements.
        dtype: DType,
        /// The device.
        device: Box<Device>,
    },
    /// The burn tensor has elements of another type than the tensor that was asked for.
    #[error("the burn tensor has elements of type {found:?}, not {expected}; convert it with burn (`cast`)")]
    WrongDType {
        /// Type that was asked for.
        expected: DType,
        /// Type of the elements.
        found: BurnDType,
    },
    /// A tensor of the loader cannot have elements of this type.
    #[error(
        "a tensor of the loader cannot have elements of type {found:?}; convert it with burn (`cast`, `dequantize`)"
    )]
    UnknownDType {
        /// Type of the elements.
        found: BurnDType,
    },
    /// Burn cannot read the tensor from its device.
    #[error("burn cannot read the tensor: {0}")]
    Read(Box<dyn StdError + Send + Sync>),
    /// A tensor of the loader cannot be made.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// A field of a batch cannot be converted.
    #[error("field `{field}`: {source}")]
    Field {
        /// Name of the field, its position in a list or a tuple struct, or its key in a map.
        field: String,
        /// What is wrong with it.
        source: Box<Self>,
    },
    /// The function that a [`BurnLoader`](crate::BurnLoader) got for converting batches failed.
    #[error("the batch cannot be converted: {0}")]
    Convert(#[source] Box<dyn StdError + Send + Sync>),
    /// The function that builds the loader of some of the items failed.
    #[error("the loader of the items {items:?} cannot be built: {source}")]
    Build {
        /// The items.
        items: Range<usize>,
        /// Its error.
        source: Arc<dyn StdError + Send + Sync>,
    },
    /// The function that builds the loader of some of the items has built one that loads others.
    #[error(
        "the loader for the items {items:?} has {found:?} samples; load these items only, for example with \
         `Subset::new(dataset, items)`"
    )]
    WrongItems {
        /// The items.
        items: Range<usize>,
        /// Number of samples of the loader's dataset; `None` if it is not known.
        found: Option<usize>,
    },
    /// Burn asked for some of the items of a loader that cannot be split.
    #[error("the loader cannot be split among devices; make it with `BurnLoader::splittable`")]
    NotSplittable,
    /// Burn asked for items that the loader does not have.
    #[error("the items {items:?} are out of range: the loader has {len}")]
    OutOfRange {
        /// The items.
        items: Range<usize>,
        /// Number of items of the loader.
        len: usize,
    },
}

impl Error {
    /// Returns the error of a batch that has this one in its field `field`.
    #[must_use]
    pub fn in_field(self, field: impl Into<String>) -> Self {
        Self::Field { field: field.into(), source: Box::new(self) }
    }
}

impl From<ExecutionError> for Error {
    fn from(error: ExecutionError) -> Self {
        Self::Read(Box::new(error))
    }
}
