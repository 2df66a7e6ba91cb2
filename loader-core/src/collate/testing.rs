//! What this folder's tests share.

use super::{CollateError, Sample, Stack};

/// A batch of `samples`.
pub(super) fn stack<S: Sample>(samples: impl IntoIterator<Item = S>) -> Result<S::Batch, CollateError> {
    let mut stack = S::stack(4);
    samples.into_iter().try_for_each(|sample| stack.push(sample))?;
    stack.finish()
}
