//! What crosses a process boundary in the loader: frames, the two kinds of queue, shared memory, worker processes, the
//! handshake. Programs use `loader-core` and `loader-worker`; this crate is their common ground, and the only one with `unsafe`
//! code (in `src/sys/` and `src/entry.rs`). Its interface is internal: it may change in any release, and its types keep their promises
//! only when used as the two crates use them.
//!
//! A batch's way: a [`frame::Task`] goes down a worker's task [`queue`], under a [`frame::Lease`] on a slot of
//! [`slots::SlotPool`]; the worker puts the batch together in an [`arena::Arena`] over that slot and answers
//! [`frame::Event::Done`]; main reads it as a [`lent`] slot, whose tensors are [`buffer::Buffer`]s that keep it until the last
//! one is dropped.
//!
//! Linux only: memfd, pidfd, `/proc/self/exe`.

mod advice;
pub mod arena;
mod atomic;
pub mod attach;
pub mod buffer;
pub mod build_id;
pub mod channel;
pub mod codec;
pub mod control;
pub mod entry;
pub mod fault;
pub mod frame;
pub mod function;
pub mod handshake;
pub mod heap;
mod held;
pub mod lent;
pub mod lifeline;
pub mod meeting;
pub mod memory;
pub mod oom;
pub mod pin;
pub mod process;
pub mod queue;
mod ring;
pub mod slots;
pub mod socket_file;
mod sys;

pub use advice::advice;
pub use held::ignore_sigpipe;
pub use sys::{
    Chunk, ChunkError, LoadedObject, Loan, SealedMap, SharedWords, SlotMemory, SlotRegion, default_sigchld,
    end_if_forked, exit_now, guard_against_forks, keep_freed_memory,
};
