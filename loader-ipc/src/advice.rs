//! What a user can do when the system refuses a request because a limit is reached.

use std::io;

use nix::libc;

/// The system forbids a system call that the loader needs.
#[derive(Debug, thiserror::Error)]
#[error(
    "a sandbox (seccomp) forbids the system call {call}: {source}; allow the call there, or load without workers \
     (num_workers = 0), where only tensors and `SharedVec` of a Rust dataset may need the call"
)]
pub(crate) struct ForbiddenCall {
    /// Name of the call.
    pub(crate) call: &'static str,
    /// What it has returned.
    pub(crate) source: io::Error,
}

/// Names a system call in its error, if the system forbids the call as a seccomp filter does.
///
/// # Errors
/// That of `result`, with [`ForbiddenCall`] as the inner error if the system forbids the call.
pub(crate) fn permitted<T>(call: &'static str, result: Result<T, impl Into<io::Error>>) -> io::Result<T> {
    result.map_err(|error| {
        let source = error.into();
        match source.raw_os_error() {
            Some(libc::EPERM | libc::ENOSYS) => io::Error::new(source.kind(), ForbiddenCall { call, source }),
            _ => source,
        }
    })
}

/// Returns advice to append to the message of `error`; empty if there is none.
pub fn advice(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        // The last: descriptors that are sent and not yet received count against the same limit.
        Some(libc::EMFILE | libc::ENFILE | libc::ETOOMANYREFS) => {
            "; raise the limit on open files (`ulimit -n`), use fewer workers, or hold fewer batches"
        }
        // glibc also returns this error when there is no memory for a thread's stack.
        Some(libc::EAGAIN) => {
            "; raise the limit on processes and threads (`ulimit -u`, or pids.max of the control group) or on memory \
             (`ulimit -v`, `ulimit -d`), or use fewer workers"
        }
        Some(libc::ENOMEM) => {
            "; use smaller batches or fewer workers, or raise the limit on memory (`ulimit -v`, `ulimit -d`)"
        }
        Some(libc::EFBIG) => {
            "; raise the limit on the size of files (`ulimit -f`), which also applies to shared memory"
        }
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use nix::errno::Errno;

    use super::*;

    #[test]
    fn a_call_that_the_system_forbids_is_named() {
        let error = permitted::<()>("memfd_create", Err(Errno::ENOSYS)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::Unsupported);
        assert!(error.to_string().contains("forbids the system call memfd_create: Function"), "{error}");
        let error = permitted::<()>("memfd_create", Err(Errno::EMFILE)).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EMFILE), "the advice about limits needs the number");
    }
}
