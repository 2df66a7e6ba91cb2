//! Loading without batches: each item is one sample, converted.

use std::{fmt, marker::PhantomData};

use loader_ipc::ZeroSized;
use serde::{Deserialize, Serialize};

use super::{Batch, Collate, CollateError, CollateProblem, Convert, Stack};

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

/// Converts each sample by a function that captures nothing.
#[derive(Serialize, Deserialize)]
#[serde(bound = "")]
pub struct ConvertWith<F, B> {
    function: ZeroSized<F>,
    item: PhantomData<fn() -> B>,
}

impl<F: Copy, B> ConvertWith<F, B> {
    pub(crate) fn new(function: F) -> Self {
        Self { function: ZeroSized::new(function), item: PhantomData }
    }
}

impl<S, F, B> Collate<S> for ConvertWith<F, B>
where
    S: Send + 'static,
    F: Fn(S) -> anyhow::Result<B> + Copy + Send + Sync + 'static,
    B: Batch,
{
    type Batch = B;
    type Stack = Single<S, B, Self>;

    const UNBATCHED: bool = true;

    fn stack(&self, _samples: usize) -> Self::Stack {
        let convert = Self { function: self.function, item: PhantomData };
        Single { convert, item: None, sample: PhantomData }
    }
}

/// The one sample of an item.
pub struct Single<S, B, C> {
    convert: C,
    item: Option<B>,
    sample: PhantomData<fn(S)>,
}

/// How one sample becomes an item.
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

impl<S, F: Fn(S) -> anyhow::Result<B> + Copy, B> ConvertOne<S> for ConvertWith<F, B> {
    type Item = B;

    fn convert_one(&self, sample: S) -> Result<B, CollateError> {
        self.function.get()(sample).map_err(|error| CollateProblem::Custom(error).into())
    }
}

impl<S, B, C: ConvertOne<S, Item = B>> Stack for Single<S, B, C> {
    type Sample = S;
    type Batch = B;

    /// # Panics
    /// When there is a sample already: such a loader's sampler gives one index at a time.
    fn push(&mut self, sample: S) -> Result<(), CollateError> {
        assert!(self.item.is_none(), "a loader without batches loads one sample at a time");
        self.item = Some(self.convert.convert_one(sample)?);
        Ok(())
    }

    /// # Panics
    /// When there is no sample.
    fn finish(self) -> Result<B, CollateError> {
        Ok(self.item.expect("a loader without batches loads one sample at a time"))
    }
}

impl<F, B> fmt::Debug for ConvertWith<F, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConvertWith").finish_non_exhaustive()
    }
}

impl<S, B, C> fmt::Debug for Single<S, B, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Single").field("converted", &self.item.is_some()).finish_non_exhaustive()
    }
}
