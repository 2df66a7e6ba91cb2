//! The error of this package.

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
        "candle has no dtype {0}; convert the tensor with `to_candle_as`, or give the field of the sample another type"
    )]
    NoDType(DType),
    /// A value does not fit into the dtype that was asked for.
    #[error("element {index} is {value}, which does not fit into {}; ask `to_candle_as` for another dtype", dtype.as_str())]
    OutOfRange {
        /// Position of the element, row-major.
        index: usize,
        /// The element.
        value: i128,
        /// The dtype that was asked for.
        dtype: candle_core::DType,
    },
    /// There is no conversion of integers to the dtype.
    #[error("integers are not converted to {}; convert to a float, then use candle's `to_dtype`", .0.as_str())]
    NoConversion(candle_core::DType),
    /// candle does not support the shape: the product of its sizes without the zeros is too large.
    #[error("candle does not support the shape {0:?}; its sizes are too large")]
    Shape(Vec<usize>),
    /// The loader does not have the dtype of a candle tensor.
    #[error("the loader has no dtype {}; convert the tensor with candle's `to_dtype`", .0.as_str())]
    NotInLoader(candle_core::DType),
    /// candle could not make or copy a tensor.
    #[error(transparent)]
    Candle(#[from] candle_core::Error),
    /// There is no memory for a tensor of the loader.
    #[error(transparent)]
    Tensor(#[from] TensorError),
}

impl Error {
    /// Returns the same error for a batch that contains this one in its field `name`.
    #[must_use]
    pub fn in_field(mut self, name: impl Into<String>) -> Self {
        self.field.insert(0, name.into());
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
