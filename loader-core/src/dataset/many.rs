//! Asking for several samples at once, also through datasets made of others.
//!
//! Whether a dataset has a [`get_many`](Dataset::get_many) of its own is found out by calling it: the default one declines while it
//! is being probed. The one who asks remembers that it declined, so what a sample looks like must not depend on the way it came: a dataset
//! draws from the generator of the sample's index in both, and a function around it from that of its own layer.

use std::fmt;

use anyhow::Context as _;

use super::Dataset;
use crate::context::Context;

/// The samples `indices`, if the dataset can load several at once.
///
/// # Errors
/// The dataset's own, and when it returns more or fewer samples than it was asked for.
pub(crate) fn ask<D: Dataset>(
    dataset: &D,
    indices: &[usize],
    cx: &mut Context,
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

/// What [`Dataset::get_many`] does where there is none: declines if it is being probed, else loads one by one.
pub(super) fn decline<D: Dataset>(
    dataset: &D,
    indices: &[usize],
    cx: &mut Context,
) -> anyhow::Result<Vec<D::Sample>> {
    if cx.is_probing::<D>() {
        cx.decline_many();
        return Ok(Vec::new());
    }
    one_by_one(dataset, indices, cx)
}

/// The samples `indices`, each on its own.
pub(super) fn one_by_one<D: Dataset>(
    dataset: &D,
    indices: &[usize],
    cx: &mut Context,
) -> anyhow::Result<Vec<D::Sample>> {
    let load = |&index| {
        cx.set_index(index);
        dataset.get(index, cx).with_context(|| AtSample(cx.index()))
    };
    indices.iter().map(load).collect()
}

/// Index of the sample that is to blame for an error, if it was loaded on its own after all.
pub(crate) fn blamed(error: &anyhow::Error) -> Option<usize> {
    error.downcast_ref().map(|&AtSample(index)| index)
}

/// Which sample failed, in the outermost dataset.
#[derive(Debug)]
struct AtSample(usize);

impl fmt::Display for AtSample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sample {}", self.0)
    }
}
