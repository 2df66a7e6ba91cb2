//! Arrays in files: NumPy, safetensors, IDX and CIFAR. A row of the dataset is one entry of the first
//! dimension of each array.
//!
//! Each format has one function, which reads the header of a file and returns the [`Array`]s in it: name,
//! dtype, shape and where the elements are. The rest is the same for all formats.

mod array;
mod cifar;
mod dataset;
mod field;
mod formats;
mod idx;
mod npy;
mod npz;
mod options;
mod safetensors;

use array::{Array, Elements};
pub use dataset::Arrays;
pub use options::{ArrayFormat, ArraysOptions};
