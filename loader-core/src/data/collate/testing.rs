//! Helpers for the tests of this module.

use super::{CollateError, Sample, Stack};

/// Collates `samples`.
pub(super) fn stack<S: Sample>(samples: impl IntoIterator<Item = S>) -> Result<S::Batch, CollateError> {
    let mut stack = S::stack(4);
    samples.into_iter().try_for_each(|sample| stack.push(sample))?;
    stack.finish()
}
