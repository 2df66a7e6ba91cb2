//! A data loader for training loops.

extern crate self as loader_core;

pub mod collate;
mod context;
mod dataset;
mod random;
pub mod sampler;
mod shared_vec;
mod tensor;

pub use collate::Sample;
pub use context::{Context, WorkerInfo};
pub use dataset::{Dataset, Map};
pub use shared_vec::{SharedVec, SharedVecError};
pub use tensor::{DType, Element, Tensor, TensorError};
