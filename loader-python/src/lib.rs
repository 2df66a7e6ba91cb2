//! The extension module `loader._native`: connects the Python package `loader` with the engine, `loader-core`.
//!
//! The Python code of the package has PyTorch's interface: arguments, samplers, collation, pickling. This crate has what
//! the engine needs of it. A batch takes this way:
//!
//! 1. `order` takes the batches of indices from a Python generator. Indices stand for the sampler's keys.
//! 2. `engine` is the loader, which sends the indices to workers as tasks. `worker` has the entries of workers and of
//!    their template.
//! 3. In the worker, `python_dataset` calls the user's dataset and collation function, which `opened` holds.
//!    `rust_dataset` has the datasets of `loader-data`, which load without Python code.
//! 4. `python_batch` is a pickle and the bytes of the arrays that it refers to. `memory` shows such bytes to Python: in
//!    the worker, collation writes them into the slot.
//! 5. In main, `iterator` returns the batches, and `state` has the class of the engine's state. `batch`, `python_batch`
//!    and `rust_batch` make Python objects of the batches, which share the memory of the slot: as `memory`, and as `array`
//!    for tensors of Rust datasets.
//!
//! Around it, `errors` turns exceptions into the engine's errors and back, `raised` keeps an exception until the iterator
//! raises it, `warnings` keeps the engine's warnings until then, and `shared_object` holds Python objects where Python's
//! garbage collector does not look.

mod array;
mod batch;
mod engine;
mod errors;
mod iterator;
mod memory;
mod opened;
mod order;
mod python_batch;
mod python_dataset;
mod raised;
mod rust_batch;
mod rust_dataset;
mod shared_object;
mod state;
mod warnings;
mod worker;

use pyo3::prelude::*;

#[pymodule]
mod _native {
    #[pymodule_export]
    use super::{
        array::Array,
        engine::{Engine, Observers},
        iterator::BatchIterator,
        memory::{Memory, allocate},
        order::{Numbers, plain_numbers},
        rust_dataset::RustDataset,
        state::EngineState,
        warnings::printable,
        worker::{ForkedTemplate, Template, launchers_variables, open_closed_streams, serve, start_template},
    };
    use pyo3::prelude::*;

    #[pymodule_init]
    fn init(_module: &Bound<'_, PyModule>) -> PyResult<()> {
        // A loader may fork workers from this process.
        loader_core::internal::note_all();
        Ok(())
    }
}
