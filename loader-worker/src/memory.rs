//! How much memory this process has, and may have.

use std::fs;

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// A hard limit is this many times the one at which a worker is replaced: a single batch may need more than what is left.
const HARD: u64 = 2;

/// Bytes in memory that are this process's alone: without what it shares, as slots and the code that others run too.
pub(crate) fn own_memory() -> Option<u64> {
    // In pages: all, in memory, of those shared with files and other processes.
    let pages = fs::read_to_string("/proc/self/statm").ok()?;
    let mut pages = pages.split_whitespace().skip(1).map(str::parse::<u64>);
    let (resident, shared) = (pages.next()?.ok()?, pages.next()?.ok()?);
    resident.saturating_sub(shared).checked_mul(rustix::param::page_size() as u64)
}

/// Lets the system refuse memory far above `limit`: an allocation then fails and ends this process, before the whole machine is short.
pub(crate) fn limit_memory(limit: u64) {
    let hard = limit.saturating_mul(HARD);
    // Data, not address space: shared memory and the program itself are no part of it. A lower limit that is there already stays.
    if let Ok((_, most)) = getrlimit(Resource::RLIMIT_DATA) {
        // Without it there is still the look after each batch.
        let _ = setrlimit(Resource::RLIMIT_DATA, hard.min(most), hard.min(most));
    }
}
