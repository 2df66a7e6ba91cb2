//! The types of the functions that a program gives to datasets and builders. A program writes them where it
//! names the type of a dataset or a builder that has a function.
//!
//! The functions run in the process that loads the samples. They are function pointers. The compiler converts
//! a closure without captures to a function pointer, and refuses any other closure at the line where the user
//! passes it. A function gets the values that it needs as parameters, which the loader sends to the workers
//! with the dataset.

use std::{any::type_name, fmt, sync::Arc};

use loader_ipc::{
    entry::{
        Owned, OwnedMut, Shared, SharedMut, SharedOwned, SharedOwnedMut, SharedShared, SharedSharedMut,
        Signature,
    },
    function::Function,
};
use serde::{
    Deserialize, Deserializer, Serialize, Serializer, de::DeserializeOwned, de::Error as _, ser::Error as _,
};

pub use crate::data::collate::{BatchFunction, custom::HashFn};

use crate::data::{
    collate::{CollateWith, ConvertWith},
    context::{SampleContext, WorkerInfo},
    worker_init::WorkerInit,
};

/// A function given to [`Dataset::map`](crate::Dataset::map): from `A` to `S`.
pub type MapFn<A, S> = Function<OwnedMut<A, SampleContext, anyhow::Result<S>>>;
/// A function given to [`Dataset::map_with`](crate::Dataset::map_with), with its parameters.
pub type MapFnWith<P, A, S> = WithParams<P, SharedOwnedMut<P, A, SampleContext, anyhow::Result<S>>>;
/// A function given to [`IterableDataset::filter`](crate::IterableDataset::filter).
pub type FilterFn<A> = Function<SharedMut<A, SampleContext, anyhow::Result<bool>>>;
/// A function given to [`IterableDataset::filter_with`](crate::IterableDataset::filter_with), with its
/// parameters.
pub type FilterFnWith<P, A> = WithParams<P, SharedSharedMut<P, A, SampleContext, anyhow::Result<bool>>>;
/// A function given to [`IterableDataset::length_batches`](crate::IterableDataset::length_batches).
pub type LengthFn<A> = Function<Shared<A, usize>>;
/// A function given to [`Builder::collate`](crate::Builder::collate): from a `Vec` of samples `S` to a batch
/// `B`.
pub type CollateFn<S, B> = CollateWith<BatchFn<Vec<S>, B>>;
/// A function given to [`Builder::collate_with`](crate::Builder::collate_with), with its parameters.
pub type CollateFnWith<P, S, B> = CollateWith<BatchFnWith<P, Vec<S>, B>>;
/// A function given to [`Builder::convert`](crate::Builder::convert): from a sample of type `S` to an item
/// `B`.
pub type ConvertFn<S, B> = ConvertWith<BatchFn<S, B>>;
/// A function given to [`Builder::convert_with`](crate::Builder::convert_with), with its parameters.
pub type ConvertFnWith<P, S, B> = ConvertWith<BatchFnWith<P, S, B>>;
/// A function given to [`Builder::worker_init`](crate::Builder::worker_init).
pub type WorkerInitFn = Function<Shared<WorkerInfo, anyhow::Result<()>>>;
/// A function given to [`Builder::worker_init_with`](crate::Builder::worker_init_with), with its parameters.
pub type WorkerInitFnWith<P> = WithParams<P, SharedShared<P, WorkerInfo, anyhow::Result<()>>>;

type BatchFn<A, B> = Function<Owned<A, anyhow::Result<B>>>;
type BatchFnWith<P, A, B> = WithParams<P, SharedOwned<P, A, anyhow::Result<B>>>;

/// Parameters of a function: any serde type that threads can share.
pub trait Params: Serialize + DeserializeOwned + Send + Sync + 'static {}

impl<P: Serialize + DeserializeOwned + Send + Sync + 'static> Params for P {}

/// A function together with its parameters, which it gets by reference.
pub struct WithParams<P, G: Signature> {
    params: Arc<P>,
    function: Function<G>,
}

impl<P, G: Signature> WithParams<P, G> {
    pub(crate) fn new(params: P, function: G::Pointer) -> Self {
        Self { params: Arc::new(params), function: Function::new(function) }
    }
}

impl<P, G: Signature> Clone for WithParams<P, G> {
    fn clone(&self) -> Self {
        Self { params: Arc::clone(&self.params), function: self.function }
    }
}

impl<P: Serialize, G: Signature> Serialize for WithParams<P, G> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        (&*self.params, &self.function)
            .serialize(serializer)
            .map_err(|error| S::Error::custom(parameters_error::<P>(error)))
    }
}

impl<'de, P: DeserializeOwned, G: Signature> Deserialize<'de> for WithParams<P, G> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let parts = <(P, Function<G>)>::deserialize(deserializer);
        let (params, function) = parts.map_err(|error| D::Error::custom(parameters_error::<P>(error)))?;
        Ok(Self { params: Arc::new(params), function })
    }
}

fn parameters_error<P>(error: impl fmt::Display) -> String {
    format!("a function's parameters of type `{}`: {error}", type_name::<P>())
}

impl<P, G: Signature> fmt::Debug for WithParams<P, G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WithParams").finish_non_exhaustive()
    }
}

/// A function that converts samples of type `A`, with or without parameters.
pub trait MapFunction<A>: Clone + Serialize + DeserializeOwned + Send + Sync + 'static {
    /// The converted sample.
    type Output: Send + 'static;

    /// Calls the function.
    ///
    /// # Errors
    /// Returns the error of the function.
    fn call(&self, sample: A, cx: &mut SampleContext) -> anyhow::Result<Self::Output>;
}

impl<A: 'static, S: Send + 'static> MapFunction<A> for MapFn<A, S> {
    type Output = S;

    fn call(&self, sample: A, cx: &mut SampleContext) -> anyhow::Result<S> {
        self.get()(sample, cx)
    }
}

impl<P: Params, A: 'static, S: Send + 'static> MapFunction<A> for MapFnWith<P, A, S> {
    type Output = S;

    fn call(&self, sample: A, cx: &mut SampleContext) -> anyhow::Result<S> {
        self.function.get()(&self.params, sample, cx)
    }
}

/// A function that returns true for the samples of type `A` to keep, with or without parameters.
pub trait FilterFunction<A>: Clone + Serialize + DeserializeOwned + Send + Sync + 'static {
    /// Calls the function.
    ///
    /// # Errors
    /// Returns the error of the function.
    fn call(&self, sample: &A, cx: &mut SampleContext) -> anyhow::Result<bool>;
}

impl<A: 'static> FilterFunction<A> for FilterFn<A> {
    fn call(&self, sample: &A, cx: &mut SampleContext) -> anyhow::Result<bool> {
        self.get()(sample, cx)
    }
}

impl<P: Params, A: 'static> FilterFunction<A> for FilterFnWith<P, A> {
    fn call(&self, sample: &A, cx: &mut SampleContext) -> anyhow::Result<bool> {
        self.function.get()(&self.params, sample, cx)
    }
}

impl<A: 'static, B: 'static> BatchFunction<A> for BatchFn<A, B> {
    type Output = B;

    fn call(&self, samples: A) -> anyhow::Result<B> {
        self.get()(samples)
    }
}

impl<P: Params, A: 'static, B: 'static> BatchFunction<A> for BatchFnWith<P, A, B> {
    type Output = B;

    fn call(&self, samples: A) -> anyhow::Result<B> {
        self.function.get()(&self.params, samples)
    }
}

impl WorkerInit for WorkerInitFn {
    fn call(&self, worker: &WorkerInfo) -> anyhow::Result<()> {
        self.get()(worker)
    }
}

impl<P: Params> WorkerInit for WorkerInitFnWith<P> {
    fn call(&self, worker: &WorkerInfo) -> anyhow::Result<()> {
        self.function.get()(&self.params, worker)
    }
}
