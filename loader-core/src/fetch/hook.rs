//! The hook that runs once in each worker before its first sample.

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::context::WorkerInfo;

/// What runs once in each worker, after the dataset's setup and before its first sample.
pub trait WorkerInit: Serialize + DeserializeOwned + Send + Sync + 'static {
    /// Runs it.
    ///
    /// # Errors
    /// Any error fails every batch of the worker.
    fn call(&self, worker: &WorkerInfo) -> anyhow::Result<()>;
}

/// No hook.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct NoWorkerInit;

impl WorkerInit for NoWorkerInit {
    fn call(&self, _worker: &WorkerInfo) -> anyhow::Result<()> {
        Ok(())
    }
}
