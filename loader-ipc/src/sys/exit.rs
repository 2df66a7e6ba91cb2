//! Ending the process, and telling the allocator that it will be busy.

use nix::libc;

/// Ends the process at once: no destructors, no exit handlers, no flushing. For a watchdog whose other threads may be stuck
/// anywhere.
pub fn exit_now(status: i32) -> ! {
    // SAFETY: `_exit` has no preconditions and does not return.
    unsafe { libc::_exit(status) }
}

/// Tells glibc's allocator to keep freed memory instead of giving it back. A loop that frees and allocates a sample's worth of
/// memory again and again would otherwise fault every page of it in again.
pub fn keep_freed_memory() {
    #[cfg(target_env = "gnu")]
    {
        const LARGEST_KEPT: libc::c_int = 32 << 20; // glibc's own upper bound for the threshold
        // SAFETY: `mallopt` may be called at any time; it only changes when memory goes back to the system.
        unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, LARGEST_KEPT) };
        // SAFETY: as above.
        unsafe { libc::mallopt(libc::M_TRIM_THRESHOLD, 2 * LARGEST_KEPT) };
    }
}
