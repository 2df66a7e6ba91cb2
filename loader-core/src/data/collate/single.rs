//! Loading without batches: each item is one converted sample.

use std::{fmt, marker::PhantomData};

use serde::{Deserialize, Serialize};

use super::{Batch, BatchFunction, Collate, CollateError, CollateProblem, Convert, Stack};

/// Converts each sample by its type, see [`Convert`].
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub struct DefaultConvert;

impl<S: Convert> Collate<S> for DefaultConvert {
    type Batch = S::Item;
    type Stack = Single<S, S::Item, Self>;

    const UNBATCHED: bool = true;

    fn stack(&self, _samples: usize) -> Self::Stack {
        Single { convert: *self, item: None, sample: PhantomData }
    }
}

/// Converts each sample with a function, [with parameters](crate::function::ConvertFnWith) or
/// [without](crate::function::ConvertFn).
#[derive(Clone, Serialize, Deserialize)]
pub struct ConvertWith<F>(pub(crate) F);

impl<S, F> Collate<S> for ConvertWith<F>
where
    S: Send + 'static,
    F: BatchFunction<S, Output: Batch>,
{
    type Batch = F::Output;
    type Stack = Single<S, F::Output, Self>;

    const UNBATCHED: bool = true;

    fn stack(&self, _samples: usize) -> Self::Stack {
        Single { convert: self.clone(), item: None, sample: PhantomData }
    }
}

/// The [`Stack`] of a loader without batches, which takes one sample.
pub struct Single<S, B, C> {
    convert: C,
    item: Option<B>,
    sample: PhantomData<fn(S)>,
}

/// Converts one sample to an item.
trait ConvertOne<S> {
    type Item;

    fn convert_one(&self, sample: S) -> Result<Self::Item, CollateError>;
}

impl<S: Convert> ConvertOne<S> for DefaultConvert {
    type Item = S::Item;

    fn convert_one(&self, sample: S) -> Result<S::Item, CollateError> {
        sample.convert()
    }
}

impl<S, F: BatchFunction<S>> ConvertOne<S> for ConvertWith<F> {
    type Item = F::Output;

    fn convert_one(&self, sample: S) -> Result<F::Output, CollateError> {
        self.0.call(sample).map_err(|error| CollateProblem::Custom(error).into())
    }
}

impl<S, B, C: ConvertOne<S, Item = B>> Stack for Single<S, B, C> {
    type Sample = S;
    type Batch = B;

    /// # Panics
    /// Panics if a sample was added before. The sampler of a loader without batches returns one index at a
    /// time.
    fn push(&mut self, sample: S) -> Result<(), CollateError> {
        assert!(self.item.is_none(), "a loader without batches loads one sample at a time");
        self.item = Some(self.convert.convert_one(sample)?);
        Ok(())
    }

    /// # Panics
    /// Panics if no sample was added.
    fn finish(self) -> Result<B, CollateError> {
        Ok(self.item.expect("a loader without batches loads one sample at a time"))
    }
}

impl<F> fmt::Debug for ConvertWith<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConvertWith").finish_non_exhaustive()
    }
}

impl<S, B, C> fmt::Debug for Single<S, B, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Single").field("converted", &self.item.is_some()).finish_non_exhaustive()
    }
}
