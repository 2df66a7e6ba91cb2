//! Loading several samples with one call, also in datasets that are made of other datasets.
//!
//! Whether a dataset overrides [`get_many`](Dataset::get_many) is only known after a call: the default
//! implementation declines while the caller probes. The caller remembers that it declined and calls
//! [`get`](Dataset::get) from then on, so a sample must not depend on which of the two methods loaded it. In
//! both, a dataset draws from the generator of the sample's index, and a function around it from the
//! generator of its own layer.

use std::fmt;

use anyhow::Context;

use super::Dataset;
use crate::data::context::SampleContext;

/// Returns the samples `indices` if the dataset has a `get_many` of its own, and `None` otherwise.
///
/// # Errors
/// Returns the errors of the dataset, and an error if the number of samples differs from the number of
/// indices.
pub(crate) fn try_get_many<D: Dataset>(
    dataset: &D,
    indices: &[usize],
    cx: &mut SampleContext,
) -> anyhow::Result<Option<Vec<D::Sample>>> {
    let (samples, declined) = cx.probe_many::<D, _>(|cx| dataset.get_many(indices, cx));
    if declined {
        return Ok(None);
    }
    let samples = samples?;
    let (wanted, found) = (indices.len(), samples.len());
    anyhow::ensure!(wanted == found, "get_many was asked for {wanted} samples and returned {found}");
    Ok(Some(samples))
}

/// Default implementation of [`Dataset::get_many`]: declines if the caller probes, and loads the samples one
/// by one otherwise.
pub fn decline<D: Dataset>(
    dataset: &D,
    indices: &[usize],
    cx: &mut SampleContext,
) -> anyhow::Result<Vec<D::Sample>> {
    if cx.is_probing::<D>() {
        cx.decline_many();
        return Ok(Vec::new());
    }
    one_by_one(dataset, indices, cx)
}

/// Returns the samples `indices`, each loaded with [`Dataset::get`].
pub(super) fn one_by_one<D: Dataset>(
    dataset: &D,
    indices: &[usize],
    cx: &mut SampleContext,
) -> anyhow::Result<Vec<D::Sample>> {
    let load = |&index| {
        cx.set_index(index);
        // If a subset fails, the context has the index of the subset's inner dataset afterwards.
        let at = cx.index();
        dataset.get(index, cx).with_context(|| AtSample(at))
    };
    indices.iter().map(load).collect()
}

/// Returns the index of the sample that caused `error`, if [`one_by_one`] loaded it.
pub(crate) fn failed_index(error: &anyhow::Error) -> Option<usize> {
    error.downcast_ref().map(|&AtSample(index)| index)
}

/// Replaces the index in `error` by the one that `moved` returns for it, if [`one_by_one`] loaded the sample that
/// failed.
pub(super) fn move_failed(error: &mut anyhow::Error, moved: impl FnOnce(usize) -> Option<usize>) {
    if let Some(AtSample(index)) = error.downcast_mut()
        && let Some(outer) = moved(*index)
    {
        *index = outer;
    }
}

/// Error context: index of the failed sample in the outermost dataset.
#[derive(Debug)]
struct AtSample(usize);

impl fmt::Display for AtSample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sample {}", self.0)
    }
}
