//! Page-locks memory, so that a device can copy from it while the program runs.
//!
//! A [`Pinner`] registers memory with the CUDA driver, without moving it. This needs no copy and no thread,
//! unlike PyTorch's pinning. The loader's main process registers each slot once, when it maps the slot. The
//! driver is loaded at run time, behind the feature `cuda`. Without the feature, [`Pinner::open`] always
//! fails.
//!
//! This crate does not own memory: the caller promises to keep a registered range mapped, so
//! [`Pinner::register`] is `unsafe`. The `unsafe` code of this crate is in two files:
//!
//! | file | safe interface | invariant |
//! |---|---|---|
//! | `pinner.rs` | [`Pinner`], [`Registration`] | only the process that opened the driver calls it, and the driver stays open while memory is registered |
//! | `driver.rs` | `Driver` | calls have the types of cuda.h, and restore the thread's context |
//!
//! # Examples
//! ```
//! use std::{
//!     alloc::{Layout, alloc_zeroed, dealloc},
//!     ptr::NonNull,
//! };
//!
//! use loader_pinning::Pinner;
//!
//! // The memory consists of whole pages, because the driver registers pages.
//! let layout = Layout::from_size_align(1 << 20, 4096)?;
//! // SAFETY: the size is not 0.
//! let start = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or("no memory")?;
//! let mut can_free = true;
//! match Pinner::open() {
//!     Ok(pinner) => {
//!         // SAFETY: the memory is freed only if it is not registered any more.
//!         if let Some(registration) = unsafe { pinner.register(start, layout.size()) } {
//!             // ... copy to the device ...
//!             can_free = registration.end();
//!         }
//!     }
//!     Err(error) => eprintln!("copies will be slower: {error}"),
//! }
//! if can_free {
//!     // SAFETY: allocated above with this layout.
//!     unsafe { dealloc(start.as_ptr(), layout) };
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![allow(unsafe_code)]

#[cfg(feature = "cuda")]
mod driver;
#[cfg(not(feature = "cuda"))]
#[path = "no_driver.rs"]
mod driver;
mod pinner;

use std::fmt;

pub use pinner::{Pinner, Registration};

/// Reasons why memory is not page-locked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PinError {
    /// The program was built without the feature `cuda`.
    #[error("this program was built without the feature `cuda` of process-loader; build it with the feature")]
    NotBuilt,
    /// The driver is not installed, or cannot be loaded.
    #[error(
        "there is no CUDA driver ({0}); install NVIDIA's driver, or make its libcuda.so.1 visible in the container"
    )]
    NoDriver(String),
    /// The driver has no function of this name.
    #[error("the CUDA driver has no function {0}; install a driver for CUDA 11 or newer")]
    OldDriver(&'static str),
    /// The driver sees no device.
    #[error("the CUDA driver sees no device; look at `nvidia-smi` and CUDA_VISIBLE_DEVICES")]
    NoDevice,
    /// A function of the driver failed.
    #[error("{call} failed: {error}{advice}", advice = .error.advice())]
    CallFailed {
        /// Name of the function.
        call: &'static str,
        /// The error that it returned.
        error: DriverError,
    },
    /// The driver was opened before this process was forked.
    #[error(
        "the CUDA driver was opened before this process was forked and does not work here; build the loader after the fork"
    )]
    Forked,
}

/// An error of the CUDA driver.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DriverError {
    /// The number in cuda.h.
    pub code: i32,
    /// The name in cuda.h, if the driver knows it.
    pub name: Option<String>,
}

// The constants are those of cuda.h.
impl DriverError {
    pub(crate) const OUT_OF_MEMORY: i32 = 2;
    #[cfg_attr(not(feature = "cuda"), expect(dead_code))]
    pub(crate) const DEINITIALIZED: i32 = 4;
    #[cfg_attr(not(feature = "cuda"), expect(dead_code))]
    pub(crate) const NO_DEVICE: i32 = 100;

    fn advice(&self) -> &'static str {
        match self.code {
            Self::OUT_OF_MEMORY => {
                "; raise the limit on locked memory (`ulimit -l`), or lower prefetch_factor or num_workers"
            }
            _ => "",
        }
    }
}

impl fmt::Display for DriverError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            Some(name) => f.write_str(name),
            None => write!(f, "error {}", self.code),
        }
    }
}
