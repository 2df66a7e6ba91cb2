#![doc = include_str!("../README.md")]
// DLPack passes raw pointers between libraries, so making and reading its tensors needs unsafe code. It is in
// `export.rs` and `import.rs`.
#![allow(unsafe_code)]

mod dtype;
mod error;
mod export;
mod import;

pub use dlpark::{self, ffi::DLManagedTensorVersioned, versioned::Dlpack};
pub use dtype::{data_type_of, dtype_of};
pub use error::Error;
pub use export::IntoDlpack;
pub use import::{from_dlpack, from_raw};
