//! Measures and limits the memory of this process.

use std::fs;

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Ratio of the hard limit to the limit at which main replaces a worker. The worker checks the lower limit
/// only after a batch, so that a single batch may exceed it.
const HARD_LIMIT_FACTOR: u64 = 2;

/// Returns the private memory of this process in bytes. It includes neither shared memory, such as slots, nor
/// code.
pub(crate) fn own_memory() -> Option<u64> {
    // The file has numbers of pages: in total (skipped), resident, and resident and shared with files or
    // other processes.
    let pages = fs::read_to_string("/proc/self/statm").ok()?;
    let mut pages = pages.split_whitespace().skip(1).map(str::parse::<u64>);
    let (resident, shared) = (pages.next()?.ok()?, pages.next()?.ok()?);
    resident.saturating_sub(shared).checked_mul(rustix::param::page_size() as u64)
}

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
