//! All `unsafe` code of this crate except that of `entry.rs`. Each file wraps one mechanism in a safe
//! interface.
//!
//! `mapping`, `forked` and `words` import each other: a mapping asks `forked` whether children may inherit
//! it, `forked` keeps a mark in shared words, and shared words are in a mapping.
//!
//! | file | safe interface | invariant |
//! |---|---|---|
//! | `mapping.rs` | `Mapping` | the range stays mapped while the value exists, and while the range is registered |
//! | `sealed.rs` | [`SealedMap`] | no process can write to the bytes any more, so `&[u8]` is sound |
//! | `slot_memory.rs` | [`SlotRegion`], [`SlotMemory`], [`Loan`], [`Chunk`] | in one process, each byte of a slot has one owner |
//! | `words.rs` | [`SharedWords`] | shared words are accessed only as atomics |
//! | `objects.rs` | [`LoadedObject`] | the list of loaded objects is read only while the dynamic loader holds its lock |
//! | `line.rs` | `Line` | every bit pattern is valid, and there is no padding |
//! | `pages.rs` | `Pages` | the memory has one owner |
//! | `signals.rs` | [`default_sigchld`], [`ignore_by_default`], [`end_ignoring`], `ignore_sigpipe`, `signal_set`, `take_pending`, [`wake_on_sigchld`] | a handler makes only calls that are safe in a handler |
//! | `descriptors.rs` | [`open_descriptors`], [`is_close_on_exec`], `duplicate`, `duplicate_sockets` | a number is borrowed as a descriptor only during one system call |
//! | `environment.rs` | `with_variable` | the environment changes only while no other thread exists |
//! | `exit.rs` | [`exit_now`], [`keep_freed_memory`] | the calls take only numbers |
//! | `forked.rs` | [`guard_against_forks`], [`end_if_forked`] | `madvise` is called only for one whole mapping |
#![allow(unsafe_code)]

mod descriptors;
mod environment;
mod exit;
mod forked;
mod line;
mod mapping;
mod objects;
mod pages;
mod sealed;
mod signals;
mod slot_memory;
mod words;

pub(crate) use descriptors::{duplicate, duplicate_sockets};
pub use descriptors::{is_close_on_exec, open_descriptors};
pub(crate) use environment::with_variable;
pub use exit::{exit_now, keep_freed_memory};
pub use forked::{end_if_forked, guard_against_forks};
pub use objects::LoadedObject;
pub use sealed::SealedMap;
pub use signals::{
    WakeSocket, WokenSocket, default_sigchld, end_ignoring, ignore_by_default, wake_on_sigchld, wake_sockets,
};
pub(crate) use signals::{ignore_sigpipe, signal_set, take_pending};
pub use slot_memory::{Chunk, ChunkError, Loan, SlotMemory, SlotRegion};
pub(crate) use slot_memory::{KeptLoan, WeakLoan};
pub use words::SharedWords;

pub(crate) use line::Line;
use mapping::{Access, Mapping};
pub(crate) use pages::Pages;
use sealed::require_fixed_size;
