//! What main and its workers share: frames, the two kinds of queue, shared memory, worker processes and the
//! handshake.
//!
//! Programs use `loader-core` and `loader-worker`, which are built on this crate. Its `unsafe` code is in
//! `src/sys/` and `src/entry.rs`; the only other library of the loader with `unsafe` code is
//! `loader-pinning`. The interface is internal. It may change in any release, and some guarantees hold only
//! if a caller follows rules that `loader-core` and `loader-worker` follow.
//!
//! How a batch travels: main leases a slot of [`slots::SlotPool`] and sends a [`frame::Task`] with the
//! [`frame::Lease`] on a worker's index [`queue`]. The worker builds the batch in an [`arena::Arena`] over
//! that slot and answers [`frame::Event::Done`]. Main [lends](lent) the slot to the user: the batch's tensors
//! are [`buffer::Buffer`]s in the slot, which is free again when the last of them is dropped.
//!
//! The crate needs Linux: it uses memfd, pidfd and `/proc/self/exe`. The processor must be little-endian.

#[cfg(target_endian = "big")]
compile_error!(
    "the loader needs a little-endian processor, because an encoded tensor is the bytes that it has in memory"
);

mod advice;
pub mod arena;
mod atomic;
pub mod attach;
pub mod buffer;
pub mod build_id;
pub mod channel;
pub mod codec;
pub mod control;
pub mod cpu_set;
pub mod entry;
pub mod fault;
pub mod frame;
pub mod function;
pub mod handshake;
pub mod heap;
pub mod held_fd;
pub mod lent;
pub mod lifeline;
mod limits;
pub mod memory;
mod observed;
pub mod oom;
pub mod own_files;
pub mod patience;
pub mod process;
pub mod profile;
pub mod queue;
mod ring;
pub mod schema;
pub mod sent_file;
mod signals;
pub mod slots;
pub mod socket_file;
pub mod socket_folder;
mod standard_streams;
mod sys;
pub mod template;
pub mod violation;
pub mod whole_file;

pub use advice::advice;
pub use signals::ignore_sigpipe;
pub use standard_streams::open_closed_streams;
pub use sys::{
    Chunk, ChunkError, LoadedObject, Loan, SealedMap, SharedWords, SlotMemory, SlotRegion, WakeSocket,
    WokenSocket, default_sigchld, end_if_forked, end_ignoring, exit_now, guard_against_forks,
    ignore_by_default, is_close_on_exec, keep_freed_memory, open_descriptors, wake_on_sigchld, wake_sockets,
};
