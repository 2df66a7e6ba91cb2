//! What is wrong with the parts that a dataset is put together from.

/// Why datasets or tensors do not go together.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ComposeError {
    /// There are no parts.
    #[error(
        "{whole} of nothing: give it at least one dataset; check the list or the pattern it was made from"
    )]
    NoParts {
        /// What was to be made.
        whole: &'static str,
    },
    /// The parts are not equally long.
    #[error(
        "{part} has {found} samples and {first} has {expected}; cut them to one length, or check that they belong together"
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
    /// A tensor has no first dimension to number samples by.
    #[error("{part} is a single number, without a first dimension; reshape it to [1]")]
    NoRows {
        /// Name of the tensor.
        part: String,
    },
    /// The samples cannot be counted.
    #[error("the datasets have more than {} samples together", usize::MAX)]
    TooLong,
}

/// Checks that all parts are as long as the first, and gives that length.
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
