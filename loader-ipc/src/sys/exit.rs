//! Ends the process at once, and configures the allocator.

use nix::libc;

/// Ends the process at once, without destructors, exit handlers or flushing. The watchdog needs this, because
/// other threads may be stuck anywhere.
pub fn exit_now(status: i32) -> ! {
    // SAFETY: `_exit` has no preconditions and does not return.
    unsafe { libc::_exit(status) }
}

/// Tells glibc's allocator to keep freed memory. Otherwise, a loop that allocates and frees the memory of one
/// sample would cause a page fault for each of its pages, each time.
pub fn keep_freed_memory() {
    #[cfg(target_env = "gnu")]
    {
        /// Maximum size of a block that is kept, in bytes: glibc's upper bound for this threshold.
        const MAX_KEPT: libc::c_int = 32 << 20;
        // SAFETY: `mallopt` may be called at any time; it only changes when memory goes back to the system.
        unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, MAX_KEPT) };
        // SAFETY: as above.
        unsafe { libc::mallopt(libc::M_TRIM_THRESHOLD, 2 * MAX_KEPT) };
    }
}
