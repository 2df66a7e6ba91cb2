//! Errors of datasets that are made of other datasets or of tensors.

/// Error returned when datasets or tensors cannot be combined.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ComposeError {
    /// There are no parts.
    #[error("{whole} needs at least one dataset; check the list or the pattern that selects the datasets")]
    NoParts {
        /// Name of the combination: `a stack` or `a concatenation`.
        whole: &'static str,
    },
    /// The parts have different lengths.
    #[error(
        "{part} has {found} samples and {first} has {expected}; cut them to the same length, or check that they belong together"
    )]
    LengthsDiffer {
        /// Name of the first part.
        first: String,
        /// Its number of samples.
        expected: usize,
        /// Name of the part that differs.
        part: String,
        /// Its number of samples.
        found: usize,
    },
    /// A tensor has rank 0, so it has no rows that could be samples.
    #[error("{part} is a single number, without a first dimension; reshape it to [1]")]
    NoRows {
        /// Name of the tensor.
        part: String,
    },
    /// The total number of samples exceeds `usize::MAX`.
    #[error("the datasets together have more than {} samples", usize::MAX)]
    TooLong,
}

/// Checks that all parts have the same length, and returns it; `None` if there are no parts.
pub(super) fn common_length(
    parts: impl IntoIterator<Item = (String, usize)>,
) -> Result<Option<usize>, ComposeError> {
    let mut parts = parts.into_iter();
    let Some((first, expected)) = parts.next() else { return Ok(None) };
    match parts.find(|&(_, len)| len != expected) {
        Some((part, found)) => Err(ComposeError::LengthsDiffer { first, expected, part, found }),
        None => Ok(Some(expected)),
    }
}
