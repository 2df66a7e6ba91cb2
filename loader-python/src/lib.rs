//! The extension module `loader._native`: connects the Python package `loader` with the loader's engine.
//!
//! The package's Python code has PyTorch's interface: arguments, samplers, collation, pickling. This module
//! has what the engine needs of it: a dataset whose samples are Python objects, an order that a Python
//! iterator gives, batches whose arrays are in shared memory, and the entries of workers and of their template.
//! `rust_dataset` has the datasets of `loader-data`, which workers load without Python code.

mod array;
mod batch;
mod dataset;
mod engine;
mod errors;
mod held;
mod iterator;
mod memory;
mod objects;
mod order;
mod rust_dataset;
mod worker;

use pyo3::prelude::*;

#[pymodule]
mod _native {
    #[pymodule_export]
    use super::{
        array::Array,
        engine::Engine,
        iterator::BatchIterator,
        memory::{Memory, allocate},
        order::{Numbers, plain_numbers},
        rust_dataset::RustDataset,
        worker::{Template, serve, start_template},
    };
}
