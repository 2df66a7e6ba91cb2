//! The error of this crate.

use loader_core::{DType, TensorError};

/// Error returned when a batch or a tensor cannot be converted.
#[derive(Debug, thiserror::Error)]
#[error("{}{problem}", field_prefix(field))]
pub struct Error {
    /// Path to the field of the batch, outermost name first; empty for the batch itself.
    pub field: Vec<String>,
    /// What is wrong with the field.
    #[source]
    pub problem: Problem,
}

/// Reason for an [`Error`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// candle does not have the dtype.
    #[error(
        "candle has no dtype {0}; convert the tensor with `to_candle_as` or the field with \
         `#[sample(candle = \"i64\")]`, or give the field of the sample another type"
    )]
    UnsupportedDType(DType),
    /// A value does not fit into the dtype that was asked for.
    #[error(
        "element {position} is {value}, which does not fit into {}; ask `to_candle_as` for another dtype",
        dtype.as_str()
    )]
    OutOfRange {
        /// Position of the element in the tensor, row-major, from 0.
        position: usize,
        /// The element.
        value: i128,
        /// The dtype that was asked for.
        dtype: candle_core::DType,
    },
    /// There is no conversion of integers to the dtype.
    #[error("integers are not converted to {}; convert to a float, then use candle's `to_dtype`", .0.as_str())]
    NoConversion(candle_core::DType),
    /// candle cannot represent the shape: the product of its nonzero sizes overflows.
    #[error(
        "candle cannot represent the shape {0:?}: the product of its nonzero sizes exceeds {max}; change the shape \
         of the sample",
        max = usize::MAX
    )]
    Shape(Vec<usize>),
    /// The loader does not have the dtype of a candle tensor.
    #[error("the loader has no dtype {}; convert the tensor with candle's `to_dtype`", .0.as_str())]
    DTypeNotInLoader(candle_core::DType),
    /// candle could not make or copy a tensor.
    #[error(transparent)]
    Candle(#[from] candle_core::Error),
    /// There is no memory for a tensor of the loader.
    #[error(transparent)]
    Tensor(#[from] TensorError),
}

impl Error {
    /// Adds `field` to the front of the path that the message shows.
    #[must_use]
    pub fn in_field(mut self, field: impl Into<String>) -> Self {
        self.field.insert(0, field.into());
        self
    }
}

impl<P: Into<Problem>> From<P> for Error {
    fn from(problem: P) -> Self {
        Self { field: Vec::new(), problem: problem.into() }
    }
}

fn field_prefix(field: &[String]) -> String {
    if field.is_empty() { String::new() } else { format!("field `{}`: ", field.join(".")) }
}
