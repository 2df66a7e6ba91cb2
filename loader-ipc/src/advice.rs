//! What a user can do when the system refuses something because a limit is reached.

use std::io;

use nix::libc;

/// What to do, as the end of a message; empty where nothing helps.
pub fn advice(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EMFILE | libc::ENFILE) => {
            "; raise the limit on open files (`ulimit -n`), use fewer workers, or hold fewer batches"
        }
        // What glibc says too when there is no memory for a thread's stack.
        Some(libc::EAGAIN) => {
            "; raise the limit on processes and threads (`ulimit -u`) or on memory (`ulimit -v`), or use fewer workers"
        }
        Some(libc::ENOMEM) => {
            "; use smaller batches or fewer workers, or raise the limit on memory (`ulimit -v`)"
        }
        Some(libc::EFBIG) => {
            "; raise the limit on the size of files (`ulimit -f`), which holds for memory too"
        }
        _ => "",
    }
}
