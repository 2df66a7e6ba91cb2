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
    #[error(
        "element {position} is {value}; a `Bool` tensor has only 0 and 1: use `to_burn_as::<D, Int>` and compare with \
         burn"
    )]
    NotBool {
        /// Position of the element in the tensor, row-major, from 0.
        position: usize,
        /// The element.
        value: u8,
    },
    /// The tensor is empty, and the product of the other sizes of its shape overflows in burn.
    #[error(
        "burn cannot represent the shape {0:?}: the product of its nonzero sizes exceeds {max}; change the shape of \
         the sample",
        max = usize::MAX
    )]
    Shape(Vec<usize>),
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
    #[error("the loader has no dtype {0:?}; convert the tensor with burn (`cast`, `dequantize`)")]
    DTypeNotInLoader(BurnDType),
    /// Burn cannot read the tensor from its device.
    #[error("burn cannot read the tensor from its device: {0}")]
    Read(Box<dyn StdError + Send + Sync>),
    /// A tensor of the loader cannot be made.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// A field of a batch cannot be converted.
    #[error("field `{field}`: {source}")]
    Field {
        /// Path to the field, outermost name first, with points between the names. A name is that of a field, a
        /// position in a list or a tuple struct, or a key of a map.
        field: String,
        /// What is wrong with it.
        source: Box<Self>,
    },
    /// The function that a [`BurnLoader`](crate::BurnLoader) got for converting batches failed.
    #[error("the conversion failed on batch {number}: {source}")]
    Convert {
        /// Number of the batch in the epoch, from 0.
        number: u64,
        /// Its error.
        source: Box<dyn StdError + Send + Sync>,
    },
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
        "`build` was called for the items {items:?}, but its loader has {} (expected {}); load only these items, for \
         example with `Subset::new(dataset, items)`",
        samples(*found),
        items.len()
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
    #[error(
        "burn asked for the items {items:?} of a loader with {len}; give `BurnLoader::splittable` the length of the \
         whole dataset"
    )]
    OutOfRange {
        /// The items.
        items: Range<usize>,
        /// Number of items of the loader.
        len: usize,
    },
}

impl Error {
    /// Adds `field` to the front of the path that the message shows.
    #[must_use]
    pub fn in_field(self, field: impl Into<String>) -> Self {
        let field = field.into();
        match self {
            Self::Field { field: inner, source } => Self::Field { field: format!("{field}.{inner}"), source },
            error => Self::Field { field, source: Box::new(error) },
        }
    }
}

fn samples(number: Option<usize>) -> String {
    number.map_or_else(|| "an unknown number of samples".to_owned(), |number| format!("{number} samples"))
}

impl From<ExecutionError> for Error {
    fn from(error: ExecutionError) -> Self {
        Self::Read(Box::new(error))
    }
}
