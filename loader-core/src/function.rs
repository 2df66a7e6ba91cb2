//! Functions of the user's that run where samples are loaded.
//!
//! They are function pointers: a closure that captures nothing becomes one by itself, and the compiler
//! refuses any other at the line where it is given. A function gets the values that it needs as parameters,
//! which are sent with the dataset.

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

use crate::{
    collate::{CollateWith, ConvertWith},
    context::{Context, WorkerInfo},
    fetch::WorkerInit,
};

/// A function given to [`Dataset::map`](crate::Dataset::map): from `A` to `S`.
pub type MapFn<A, S> = Function<OwnedMut<A, Context, anyhow::Result<S>>>;
/// A function given to [`Dataset::map_with`](crate::Dataset::map_with), with its parameters.
pub type MapFnWith<P, A, S> = WithParams<P, SharedOwnedMut<P, A, Context, anyhow::Result<S>>>;
/// A function given to [`IterableDataset::filter`](crate::IterableDataset::filter).
pub type FilterFn<A> = Function<SharedMut<A, Context, anyhow::Result<bool>>>;
/// The same with parameters.
pub type FilterFnWith<P, A> = WithParams<P, SharedSharedMut<P, A, Context, anyhow::Result<bool>>>;
/// A function given to [`Builder::collate`](crate::Builder::collate): from samples of type `S` to a batch `B`.
pub type CollateFn<S, B> = CollateWith<BatchFn<Vec<S>, B>>;
/// The same with parameters.
pub type CollateFnWith<P, S, B> = CollateWith<BatchFnWith<P, Vec<S>, B>>;
/// A function given to [`Builder::convert`](crate::Builder::convert): from a sample of type `S` to an item `B`.
pub type ConvertFn<S, B> = ConvertWith<BatchFn<S, B>>;
/// The same with parameters.
pub type ConvertFnWith<P, S, B> = ConvertWith<BatchFnWith<P, S, B>>;
/// A function given to [`Builder::worker_init`](crate::Builder::worker_init).
pub type WorkerInitFn = Function<Shared<WorkerInfo, anyhow::Result<()>>>;
/// The same with parameters.
pub type WorkerInitFnWith<P> = WithParams<P, SharedShared<P, WorkerInfo, anyhow::Result<()>>>;

type BatchFn<A, B> = Function<Owned<A, anyhow::Result<B>>>;
type BatchFnWith<P, A, B> = WithParams<P, SharedOwned<P, A, anyhow::Result<B>>>;

/// Types that can be the parameters of a function: any serde type that threads can share.
pub trait Params: Serialize + DeserializeOwned + Send + Sync + 'static {}

impl<P: Serialize + DeserializeOwned + Send + Sync + 'static> Params for P {}

/// A function and the parameters that it is given by reference.
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
            .map_err(|error| S::Error::custom(unsendable::<P>(error)))
    }
}

impl<'de, P: DeserializeOwned, G: Signature> Deserialize<'de> for WithParams<P, G> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let parts = <(P, Function<G>)>::deserialize(deserializer);
        let (params, function) = parts.map_err(|error| D::Error::custom(unsendable::<P>(error)))?;
        Ok(Self { params: Arc::new(params), function })
    }
}

fn unsendable<P>(error: impl fmt::Display) -> String {
    format!("a function's parameters of type `{}`: {error}", type_name::<P>())
}

impl<P, G: Signature> fmt::Debug for WithParams<P, G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WithParams").finish_non_exhaustive()
    }
}

/// A function that samples of type `A` pass through, with or without parameters.
pub trait MapFunction<A>: Clone + Serialize + DeserializeOwned + Send + Sync + 'static {
    /// The type that a sample is turned into.
    type Output: Send + 'static;

    /// Calls it.
    ///
    /// # Errors
    /// The function's own.
    fn call(&self, sample: A, cx: &mut Context) -> anyhow::Result<Self::Output>;
}

impl<A: 'static, S: Send + 'static> MapFunction<A> for MapFn<A, S> {
    type Output = S;

    fn call(&self, sample: A, cx: &mut Context) -> anyhow::Result<S> {
        self.get()(sample, cx)
    }
}

impl<P: Params, A: 'static, S: Send + 'static> MapFunction<A> for MapFnWith<P, A, S> {
    type Output = S;

    fn call(&self, sample: A, cx: &mut Context) -> anyhow::Result<S> {
        self.function.get()(&self.params, sample, cx)
    }
}

/// A function that decides which samples of type `A` stay, with or without parameters.
pub trait FilterFunction<A>: Clone + Serialize + DeserializeOwned + Send + Sync + 'static {
    /// Calls it.
    ///
    /// # Errors
    /// The function's own.
    fn call(&self, sample: &A, cx: &mut Context) -> anyhow::Result<bool>;
}

impl<A: 'static> FilterFunction<A> for FilterFn<A> {
    fn call(&self, sample: &A, cx: &mut Context) -> anyhow::Result<bool> {
        self.get()(sample, cx)
    }
}

impl<P: Params, A: 'static> FilterFunction<A> for FilterFnWith<P, A> {
    fn call(&self, sample: &A, cx: &mut Context) -> anyhow::Result<bool> {
        self.function.get()(&self.params, sample, cx)
    }
}

/// A function that makes a batch of a `Vec` of samples, or an item of one sample, with or without parameters.
pub trait BatchFunction<A>: Clone + Serialize + DeserializeOwned + Send + Sync + 'static {
    /// The batch or the item.
    type Output;

    /// Calls it.
    ///
    /// # Errors
    /// The function's own.
    fn call(&self, samples: A) -> anyhow::Result<Self::Output>;
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
