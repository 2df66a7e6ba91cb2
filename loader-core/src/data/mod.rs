//! What runs in the process that loads the samples, and what determines them: datasets, samplers, collation, tensors.

pub mod collate;
pub(crate) mod collector;
pub(crate) mod context;
pub(crate) mod dataset;
pub(crate) mod dataset_memory;
pub(crate) mod fetch;
pub(crate) mod fingerprint;
pub(crate) mod foreign_error;
pub mod function;
pub mod mix;
pub mod pack;
pub(crate) mod panic;
pub(crate) mod random;
pub(crate) mod sample_digest;
pub mod sampler;
pub(crate) mod shared_vec;
pub(crate) mod tensor;
pub(crate) mod torch;
pub(crate) mod tuples;
pub(crate) mod worker_init;
