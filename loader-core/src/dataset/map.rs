//! A dataset behind a function.

use std::{fmt, marker::PhantomData};

use loader_ipc::ZeroSized;
use serde::{Deserialize, Serialize};

use super::{Dataset, many};
use crate::context::Context;

/// A dataset whose samples pass through a function; made by [`Dataset::map`].
#[derive(Serialize, Deserialize)]
#[serde(bound(serialize = "D: Serialize", deserialize = "D: Deserialize<'de>"))]
pub struct Map<D, F, S> {
    dataset: D,
    function: ZeroSized<F>,
    sample: PhantomData<fn() -> S>,
}

impl<D, F: Copy, S> Map<D, F, S> {
    pub(super) fn new(dataset: D, function: F) -> Self {
        Self { dataset, function: ZeroSized::new(function), sample: PhantomData }
    }
}

impl<D, F, S> Dataset for Map<D, F, S>
where
    D: Dataset,
    S: Send + 'static,
    F: Fn(D::Sample, &mut Context) -> anyhow::Result<S> + Copy + Send + Sync + 'static,
{
    type Sample = S;

    fn len(&self) -> usize {
        self.dataset.len()
    }

    fn get(&self, index: usize, cx: &mut Context) -> anyhow::Result<S> {
        let sample = self.dataset.get(index, cx)?;
        self.function.get()(sample, cx)
    }

    fn get_many(&self, indices: &[usize], cx: &mut Context) -> anyhow::Result<Vec<S>> {
        let Some(samples) = many::ask(&self.dataset, indices, cx)? else {
            return many::decline(self, indices, cx);
        };
        let mapped = samples.into_iter().zip(indices).map(|(sample, &index)| {
            cx.set_index(index);
            self.function.get()(sample, cx)
        });
        mapped.collect()
    }

    fn setup(&mut self, cx: &mut Context) -> anyhow::Result<()> {
        self.dataset.setup(cx)
    }
}

impl<D: fmt::Debug, F, S> fmt::Debug for Map<D, F, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Map").field("dataset", &self.dataset).finish_non_exhaustive()
    }
}
