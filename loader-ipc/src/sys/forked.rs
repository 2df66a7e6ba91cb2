//! Ends forked children of a worker.
//!
//! User code may call `fork`, and C libraries call `daemon`: the child then returns from user code into the
//! worker's loop, where it would take the worker's tasks, write to its slots and answer as if it were the
//! worker.
//! Two measures prevent that:
//!
//! - Shared memory that a guarded process maps for writing is not mapped in its forked children (`MADV_DONTFORK`, in
//!   `mapping.rs`). SIGSEGV ends a child that accesses it, unless the child has mapped other memory there. Where a
//!   sandbox forbids `madvise`, the children have the memory.
//! - The worker calls [`end_if_forked`] after each call of user code, which ends a child before it reaches
//!   the loop.
//!
//! Neither measure affects a child that ends by itself or executes another program. Alternative considered:
//! `pthread_atfork`. Rejected because a direct system call does not run its handlers.

use std::{
    num::NonZeroUsize,
    process,
    sync::{OnceLock, atomic::Ordering},
};

use nix::{
    libc::STDERR_FILENO,
    sys::mman::{MmapAdvise, madvise},
};

use super::{Mapping, SharedWords, exit_now};

static GUARD: OnceLock<Guard> = OnceLock::new();

struct Guard {
    /// The guarded process.
    owner: u32,
    /// A word that is 1 in the guarded process and 0 in its forked children; `None` before Linux 4.14.
    mark: Option<SharedWords>,
}

/// After this call, forked children of this process do not get shared memory that it maps for writing, and
/// [`end_if_forked`] ends them. A worker calls this once, before it maps anything.
pub fn guard_against_forks() {
    GUARD.get_or_init(|| Guard { owner: process::id(), mark: mark() });
}

/// Ends this process if it is a forked child of a guarded one. A worker calls this after user code has run,
/// before it writes anything that other processes read.
#[inline]
pub fn end_if_forked() {
    if is_forked() {
        end();
    }
}

/// True in a process that has called [`guard_against_forks`], and in its forked children.
pub(super) fn is_guarded() -> bool {
    GUARD.get().is_some()
}

#[inline]
fn is_forked() -> bool {
    match GUARD.get() {
        None => false,
        // Relaxed: the word is private to this process, and the kernel clears it before a child begins to
        // run.
        Some(Guard { mark: Some(mark), .. }) => mark.words()[0].load(Ordering::Relaxed) == 0,
        Some(Guard { owner, mark: None }) => process::id() != *owner,
    }
}

fn mark() -> Option<SharedWords> {
    // The system rounds the length up to a page. `page_size` of rustix is not used, because it reads memory
    // that valgrind does not map.
    let mapping = Mapping::anonymous(NonZeroUsize::new(size_of::<u64>())?).ok()?;
    // SAFETY: the range is exactly that of the mapping, which is private and anonymous. Its content in this
    // process does not change.
    unsafe { madvise(mapping.start().cast(), mapping.len(), MmapAdvise::MADV_WIPEONFORK) }.ok()?;
    let words = SharedWords::over(mapping);
    words.words()[0].store(1, Ordering::Relaxed);
    Some(words)
}

#[cold]
fn end() -> ! {
    const MESSAGE: &[u8] = b"loader: a forked child of this worker returned from user code and was ended; \
        it must end by itself or execute another program\n";
    // `eprintln` could wait for ever: if another thread held its lock during the fork, the child has a copy
    // of the lock that no thread releases. SAFETY: the number is not -1. If standard error is not open, the
    // call fails.
    let stderr = unsafe { std::os::fd::BorrowedFd::borrow_raw(STDERR_FILENO) };
    let _ = nix::unistd::write(stderr, MESSAGE);
    exit_now(1);
}
