//! Limits the memory of this process.

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Ratio of the hard limit to the limit at which main replaces a worker. The worker checks the lower limit
/// only after a batch, so that a single batch may exceed it.
const HARD_LIMIT_FACTOR: u64 = 2;

/// Limits the memory of this process to a multiple of `limit`: an allocation beyond it fails and ends this
/// process, before the machine runs out of memory.
pub(crate) fn limit_memory(limit: u64) {
    let hard = limit.saturating_mul(HARD_LIMIT_FACTOR);
    // RLIMIT_DATA, not RLIMIT_AS, which also counts shared memory and the program's code. A lower limit
    // that is set already stays in force.
    if let Ok((soft, max)) = getrlimit(Resource::RLIMIT_DATA) {
        // If this fails, the check after each batch remains.
        let _ = setrlimit(Resource::RLIMIT_DATA, hard.min(soft), hard.min(max));
    }
}
