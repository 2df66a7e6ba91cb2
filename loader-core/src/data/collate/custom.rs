//! Collation with a function of the user.

use std::fmt;

use loader_ipc::{entry::SharedMut, function::Function};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::{Batch, Collate, CollateError, CollateProblem, ContentHash, MAX_RESERVED, Stack};

/// Collates with a function, [with parameters](crate::function::CollateFnWith) or
/// [without](crate::function::CollateFn).
#[derive(Serialize, Deserialize)]
pub struct CollateWith<F>(pub(crate) F);

impl<S, F> Collate<S> for CollateWith<F>
where
    S: Send + 'static,
    F: BatchFunction<Vec<S>, Output: Batch>,
{
    type Batch = F::Output;
    type Stack = Collected<S, F>;

    fn stack(&self, samples: usize) -> Collected<S, F> {
        Collected { samples: Vec::with_capacity(samples.min(MAX_RESERVED)), function: self.0.clone() }
    }
}

/// A function that converts a `Vec` of samples to a batch, or one sample to an item, with or without
/// parameters.
pub trait BatchFunction<A>: Clone + Serialize + DeserializeOwned + Send + Sync + 'static {
    /// The batch or the item.
    type Output;

    /// Calls the function.
    ///
    /// # Errors
    /// Returns the error of the function.
    fn call(&self, samples: A) -> anyhow::Result<Self::Output>;
}

/// Collects the samples of a batch, then calls the function.
pub struct Collected<S, F> {
    samples: Vec<S>,
    function: F,
}

impl<S, F: BatchFunction<Vec<S>>> Stack for Collected<S, F> {
    type Sample = S;
    type Batch = F::Output;

    fn push(&mut self, sample: S) -> Result<(), CollateError> {
        self.samples.push(sample);
        Ok(())
    }

    fn makes_tensors(&self) -> bool {
        false
    }

    fn finish(self) -> Result<F::Output, CollateError> {
        self.function.call(self.samples).map_err(|error| CollateProblem::Custom(error).into())
    }
}

/// A function given to [`Builder::digest_with`](crate::Builder::digest_with).
pub type HashFn<S> = Function<SharedMut<S, ContentHash, ()>>;

/// Collates as `C` does, and hashes the content of each sample with a function; see
/// [`digest_with`](crate::Builder::digest_with).
#[derive(Serialize, Deserialize)]
#[serde(bound = "C: Serialize + DeserializeOwned")]
pub struct HashWith<C, S: 'static> {
    pub(crate) collate: C,
    pub(crate) hash: HashFn<S>,
}

impl<S: Send + 'static, C: Collate<S>> Collate<S> for HashWith<C, S> {
    type Batch = C::Batch;
    type Stack = C::Stack;

    const UNBATCHED: bool = C::UNBATCHED;
    const BY_TYPE: bool = C::BY_TYPE;
    const HASHES_SAMPLES: bool = true;

    fn stack(&self, samples: usize) -> C::Stack {
        self.collate.stack(samples)
    }

    fn hash_content(&self, sample: &S, hash: &mut ContentHash) {
        self.hash.get()(sample, hash);
    }
}

impl<C, S> fmt::Debug for HashWith<C, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HashWith").finish_non_exhaustive()
    }
}

impl<F> fmt::Debug for CollateWith<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CollateWith").finish_non_exhaustive()
    }
}

impl<S, F> fmt::Debug for Collected<S, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Collected").field("samples", &self.samples.len()).finish_non_exhaustive()
    }
}
