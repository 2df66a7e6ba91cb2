//! Limits the memory of this process.

use loader_ipc::process;
use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Ratio of the hard limit to the limit at which main replaces a worker. The worker checks the lower limit
/// only after a batch, so that a single batch may exceed it.
const HARD_LIMIT_FACTOR: u64 = 2;

/// The limit of the memory that this process allocates from now on. A worker that a template has forked shares the
/// template's memory with it, and did not allocate that.
#[derive(Debug)]
pub(crate) struct MemoryLimit {
    limit: u64,
    /// The least private memory, in bytes, that was measured since the limit was set. It falls when the process frees
    /// memory that it had before, or the system swaps such memory out.
    before: u64,
}

impl MemoryLimit {
    /// Limits what this process allocates from now on to a multiple of `limit`: an allocation beyond it fails and ends
    /// this process, before the machine runs out of memory.
    pub(crate) fn set(limit: u64) -> Self {
        let data = process::data_memory().unwrap_or(0);
        let hard = limit.saturating_mul(HARD_LIMIT_FACTOR).saturating_add(data);
        // RLIMIT_DATA, not RLIMIT_AS, which also counts shared memory and the program's code. A lower limit
        // that is set already stays in force.
        if let Ok((soft, max)) = getrlimit(Resource::RLIMIT_DATA) {
            // If this fails, the check after each batch remains.
            let _ = setrlimit(Resource::RLIMIT_DATA, hard.min(soft), hard.min(max));
        }
        Self::beside_present(limit)
    }

    /// Returns the limit without a hard limit. The present private memory does not count towards it.
    fn beside_present(limit: u64) -> Self {
        Self { limit, before: process::private_memory().unwrap_or(0) }
    }

    /// Returns the bytes that this process has allocated since the limit was set.
    pub(crate) fn allocated(&mut self) -> u64 {
        let Some(now) = process::private_memory() else { return 0 };
        self.before = self.before.min(now);
        now - self.before
    }

    /// True if `bytes` exceeds the limit.
    pub(crate) fn is_exceeded_by(&self, bytes: u64) -> bool {
        bytes > self.limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An allocation of this size has pages of its own, which go back to the system when it is freed.
    const LARGE: usize = 64 << 20;

    #[test]
    fn memory_that_was_freed_does_not_count_for_what_is_allocated_later() {
        let present = vec![1_u8; LARGE];
        let mut limit = MemoryLimit::beside_present(LARGE as u64 / 2);
        // Other tests may use a few megabytes meanwhile.
        let before = limit.allocated();
        assert!(!limit.is_exceeded_by(before), "{before} bytes");
        drop(present);
        let freed = limit.allocated();
        assert!(!limit.is_exceeded_by(freed), "{freed} bytes");
        let later = vec![1_u8; LARGE];
        let allocated = limit.allocated();
        assert!(limit.is_exceeded_by(allocated), "{allocated} of {} bytes", later.len());
    }
}
