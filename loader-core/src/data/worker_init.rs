//! The function that runs once in each worker before its first sample.

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::data::context::WorkerInfo;

/// A function that runs once in each worker, after the dataset's `setup` and before the worker's first
/// sample.
pub trait WorkerInit: Serialize + DeserializeOwned + Send + Sync + 'static {
    /// Runs the function.
    ///
    /// # Errors
    /// Any error. Every batch of the worker then fails with [`Error::OpenFailed`](crate::Error::OpenFailed).
    fn call(&self, worker: &WorkerInfo) -> anyhow::Result<()>;
}

/// The default [`WorkerInit`], which does nothing.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct NoWorkerInit;

impl WorkerInit for NoWorkerInit {
    fn call(&self, _worker: &WorkerInfo) -> anyhow::Result<()> {
        Ok(())
    }
}
