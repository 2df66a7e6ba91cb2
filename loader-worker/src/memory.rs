//! Limits the memory of this process.

use loader_ipc::process;
use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Ratio of the hard limit to the limit at which main replaces a worker. The worker checks the lower limit
/// only after a batch, so that a single batch may exceed it.
const HARD_LIMIT_FACTOR: u64 = 2;

/// The limit of the memory that this process allocates from now on. A worker that a template has forked shares the
/// template's memory with it, and did not allocate that.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MemoryLimit {
    limit: u64,
    /// Private memory in bytes when the limit was set.
    before: u64,
}

impl MemoryLimit {
    /// Limits what this process allocates from now on to a multiple of `limit`: an allocation beyond it fails and ends
    /// this process, before the machine runs out of memory.
    pub(crate) fn set(limit: u64) -> Self {
        let this = std::process::id();
        let data = process::data_memory(this).unwrap_or(0);
        let hard = limit.saturating_mul(HARD_LIMIT_FACTOR).saturating_add(data);
        // RLIMIT_DATA, not RLIMIT_AS, which also counts shared memory and the program's code. A lower limit
        // that is set already stays in force.
        if let Ok((soft, max)) = getrlimit(Resource::RLIMIT_DATA) {
            // If this fails, the check after each batch remains.
            let _ = setrlimit(Resource::RLIMIT_DATA, hard.min(soft), hard.min(max));
        }
        Self { limit, before: process::private_memory(this).unwrap_or(0) }
    }

    /// Returns the bytes that this process has allocated since the limit was set.
    pub(crate) fn allocated(self) -> u64 {
        process::private_memory(std::process::id()).unwrap_or(0).saturating_sub(self.before)
    }

    /// True if `bytes` exceeds the limit.
    pub(crate) fn is_exceeded_by(self, bytes: u64) -> bool {
        bytes > self.limit
    }
}
