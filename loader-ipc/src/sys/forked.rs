//! Ends forked copies of a worker.
//!
//! User code may call `fork`, and C libraries call `daemon`: the child then returns from user code into the worker's loop, where it
//! would take the worker's tasks, write its slots and answer for it. Two things prevent that:
//!
//! - The shared memory that a guarded process maps for writing is not mapped in its children (`MADV_DONTFORK`, in `mapping.rs`). A
//!   child that touches it is ended by SIGSEGV.
//! - [`end_if_forked`] follows each call of user code, and ends a child before it gets there.
//!
//! Neither affects a child that ends by itself or executes another program. Alternative considered:
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
    /// The process that is guarded.
    owner: u32,
    /// A word that is 1 there and 0 in its forked children; `None` where the system cannot do that (Linux before 4.14).
    mark: Option<SharedWords>,
}

/// From now on, a forked child of this process does not get the shared memory that this process maps for writing, and
/// [`end_if_forked`] ends it. For workers; once, before anything is mapped.
pub fn guard_against_forks() {
    GUARD.get_or_init(|| Guard { owner: process::id(), mark: mark() });
}

/// Ends this process if it is a forked child of a guarded one. Call it after user code has run, and before
/// writing anything that other processes read.
#[inline]
pub fn end_if_forked() {
    if is_forked() {
        end();
    }
}

/// True in a process that [`guard_against_forks`] was called in, and in its children.
pub(super) fn is_guarded() -> bool {
    GUARD.get().is_some()
}

#[inline]
fn is_forked() -> bool {
    match GUARD.get() {
        None => false,
        // Relaxed: only this process has the word, and the kernel clears it before a child begins to run.
        Some(Guard { mark: Some(mark), .. }) => mark.words()[0].load(Ordering::Relaxed) == 0,
        Some(Guard { owner, mark: None }) => process::id() != *owner,
    }
}

fn mark() -> Option<SharedWords> {
    // The system rounds the length up to a page. It is not asked for: rustix's `page_size` reads memory that valgrind does not map.
    let mapping = Mapping::anonymous(NonZeroUsize::new(size_of::<u64>())?).ok()?;
    // SAFETY: exactly the range of the mapping, which is private and anonymous; what it holds in this process does not change.
    unsafe { madvise(mapping.start().cast(), mapping.len(), MmapAdvise::MADV_WIPEONFORK) }.ok()?;
    let words = SharedWords::over(mapping);
    words.words()[0].store(1, Ordering::Relaxed);
    Some(words)
}

#[cold]
fn end() -> ! {
    const WHY: &[u8] = b"loader: a forked child of this worker came back from user code and was ended; \
        it must end by itself or execute another program\n";
    // Not `eprintln`: a thread that does not exist here may have held its lock.
    // SAFETY: the descriptor is standard error's by definition, and if it is not open the call fails.
    let stderr = unsafe { std::os::fd::BorrowedFd::borrow_raw(STDERR_FILENO) };
    let _ = nix::unistd::write(stderr, WHY);
    exit_now(1);
}
