//! What a user can do when the system refuses a request because a limit is reached.

use std::io;

use nix::libc;

/// Returns advice to append to the message of `error`; empty if there is none.
pub fn advice(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        // The last: descriptors that are sent and not yet received count against the same limit.
        Some(libc::EMFILE | libc::ENFILE | libc::ETOOMANYREFS) => {
            "; raise the limit on open files (`ulimit -n`), use fewer workers, or hold fewer batches"
        }
        // glibc also returns this error when there is no memory for a thread's stack.
        Some(libc::EAGAIN) => {
            "; raise the limit on processes and threads (`ulimit -u`) or on memory (`ulimit -v`), or use fewer workers"
        }
        Some(libc::ENOMEM) => {
            "; use smaller batches or fewer workers, or raise the limit on memory (`ulimit -v`)"
        }
        Some(libc::EFBIG) => {
            "; raise the limit on the size of files (`ulimit -f`), which also applies to shared memory"
        }
        _ => "",
    }
}
