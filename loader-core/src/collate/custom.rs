//! Collation by a function of the user's.

use std::{fmt, marker::PhantomData};

use loader_ipc::ZeroSized;
use serde::{Deserialize, Serialize};

use super::{Batch, Collate, CollateError, CollateProblem, MOST_RESERVED, Stack};

/// Collates by a function that captures nothing.
#[derive(Serialize, Deserialize)]
#[serde(bound = "")]
pub struct CollateWith<F, B> {
    function: ZeroSized<F>,
    batch: PhantomData<fn() -> B>,
}

impl<F: Copy, B> CollateWith<F, B> {
    pub(crate) fn new(function: F) -> Self {
        Self { function: ZeroSized::new(function), batch: PhantomData }
    }
}

impl<S, F, B> Collate<S> for CollateWith<F, B>
where
    S: Send + 'static,
    F: Fn(Vec<S>) -> anyhow::Result<B> + Copy + Send + Sync + 'static,
    B: Batch,
{
    type Batch = B;
    type Stack = Collected<S, F, B>;

    fn stack(&self, samples: usize) -> Collected<S, F, B> {
        Collected {
            samples: Vec::with_capacity(samples.min(MOST_RESERVED)),
            function: self.function,
            batch: PhantomData,
        }
    }
}

/// The samples of a batch, waiting for the function.
pub struct Collected<S, F, B> {
    samples: Vec<S>,
    function: ZeroSized<F>,
    batch: PhantomData<fn() -> B>,
}

impl<S, F, B> Stack for Collected<S, F, B>
where
    F: Fn(Vec<S>) -> anyhow::Result<B> + Copy,
{
    type Sample = S;
    type Batch = B;

    fn push(&mut self, sample: S) -> Result<(), CollateError> {
        self.samples.push(sample);
        Ok(())
    }

    fn makes_tensors(&self) -> bool {
        false
    }

    fn finish(self) -> Result<B, CollateError> {
        self.function.get()(self.samples).map_err(|error| CollateProblem::Custom(error).into())
    }
}

impl<F, B> fmt::Debug for CollateWith<F, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CollateWith").finish_non_exhaustive()
    }
}

impl<S, F, B> fmt::Debug for Collected<S, F, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Collected").field("samples", &self.samples.len()).finish_non_exhaustive()
    }
}
