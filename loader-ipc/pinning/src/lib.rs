//! Page-locked memory, from which a device copies while the program goes on.
//!
//! Main registers a slot with the CUDA driver in place, once, when it maps the slot. This needs no copy and
//! no thread, unlike PyTorch's pinning.
//!
//! The driver's calls are in `sys/driver.rs`, behind the feature `cuda`. Alternative considered: a separate
//! crate. Rejected because a registration must end before its memory is unmapped, and the `unsafe` code that
//! guarantees this would be split between two crates.
//!
//! `libloading` looks the twelve calls up in the driver; they have not changed since CUDA 11, and a missing
//! call is an error. Alternative considered: the crate `cudarc`, which declares all calls. Rejected because
//! its features select one version of CUDA: a program in which two crates select different versions does not
//! compile (263 errors), and one crate must not load the driver while another links it. A library must not
//! choose for its users' candle or burn. With `cudarc`, a missing call is a panic.

use std::fmt;

pub use crate::sys::Pinner;

/// Reasons why memory is not page-locked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PinError {
    /// The program was built without the feature `cuda`.
    #[error("this program was built without the feature `cuda` of loader-core; build it with the feature")]
    NotBuilt,
    /// The driver is not installed, or cannot be loaded.
    #[error(
        "there is no CUDA driver ({0}); install NVIDIA's driver, or make its libcuda.so.1 visible in the container"
    )]
    NoDriver(String),
    /// The driver lacks a call.
    #[error("the CUDA driver has no {0}; install a driver for CUDA 11 or newer")]
    OldDriver(&'static str),
    /// The driver sees no device.
    #[error("the CUDA driver sees no device; look at `nvidia-smi` and CUDA_VISIBLE_DEVICES")]
    NoDevice,
    /// A call failed.
    #[error("{call} failed: {error}{advice}", advice = .error.advice())]
    Refused {
        /// Name of the call.
        call: &'static str,
        /// The driver's error.
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
