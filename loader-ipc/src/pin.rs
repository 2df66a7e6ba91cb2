//! Page-locked memory: what a device copies from by itself, while the program goes on.
//!
//! A slot is registered with the CUDA driver where it lies, once, when this process maps it. No copy and no thread is needed, which is
//! what PyTorch's pinning costs.
//!
//! Two ways were weighed. A crate of its own for the driver would keep its calls apart, but a registration must end before its mapping
//! does, so the `unsafe` half of the promise would stay here, and be split. A feature of this crate won: `sys/driver.rs` has the calls,
//! `sys/mapping.rs` the one place where a registered range is unmapped.
//!
//! Two ways to call the driver were tried. `cudarc` declares all of it; but its features choose one version of CUDA, and a program in
//! which two crates choose differently does not compile (263 errors), nor may one load the driver while another links it. A library
//! must not choose for its users' candle or burn. The twelve calls that are needed have not changed since CUDA 11, so they are
//! declared here and looked up in the driver by `libloading`, as `cudarc` does it. It also makes a missing call an error instead
//! of a panic.

use std::fmt;

pub use crate::sys::Pinner;

/// Why memory is not page-locked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PinError {
    /// The calls are not in this program.
    #[error("this program was built without the feature `cuda` of loader-core; build it with the feature")]
    NotBuilt,
    /// The driver is not installed, or cannot be loaded.
    #[error(
        "there is no CUDA driver ({0}); install NVIDIA's driver, or make its libcuda.so.1 visible in the container"
    )]
    NoDriver(String),
    /// The driver lacks a call.
    #[error("the CUDA driver has no {0}; install one of CUDA 11 or newer")]
    OldDriver(&'static str),
    /// The driver sees no device.
    #[error("the CUDA driver sees no device; look at `nvidia-smi` and CUDA_VISIBLE_DEVICES")]
    NoDevice,
    /// A call failed.
    #[error("{call} failed: {error}{advice}", advice = .error.advice())]
    Refused {
        /// The call's name.
        call: &'static str,
        /// What the driver said.
        error: DriverError,
    },
    /// The driver was opened before this process was forked.
    #[error(
        "this process was forked from the one that opened the CUDA driver, which does not work there; build the loader behind the fork"
    )]
    Forked,
}

/// What the driver said.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DriverError {
    /// The number in cuda.h.
    pub code: i32,
    /// Its name, if the driver knows it.
    pub name: Option<String>,
}

/// Of cuda.h.
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
