//! The only place with `unsafe` in the loader (beside `entry.rs`). One mechanism per file; each gives a safe type.
//!
//! | file | safe type | the invariant it keeps |
//! |---|---|---|
//! | `mapping.rs` | `Mapping` | the range stays mapped while the value lives, and while it is registered |
//! | `sealed.rs` | [`SealedMap`] | nobody can write the bytes any more, so `&[u8]` is true |
//! | `slot_memory.rs` | [`SlotRegion`], [`SlotMemory`], [`Loan`], [`Chunk`] | in one process, every byte of a slot has one owner |
//! | `words.rs` | [`SharedWords`] | shared counters are only reached as atomics |
//! | `objects.rs` | [`LoadedObject`] | what the dynamic loader lists is read while it holds its lock |
//! | `line.rs` | `Line` | plain bytes without padding |
//! | `pinner.rs` | [`Pinner`] | the driver is called in the process that opened it, and outlives its registrations |
//! | `driver.rs` | `Driver` | calls have the types of cuda.h, and leave the thread's context as it was |
//! | `pages.rs` | `Pages` | one owner |
//! | `signals.rs` | [`default_sigchld`], `ignore_sigpipe`, `take_pending` | no code is installed |
//! | `descriptors.rs` | `duplicate_sockets` | a number is believed to be a descriptor for one call, which duplicates it |
//! | `environment.rs` | `with_variable` | the environment changes only where no other thread exists |
//! | `exit.rs` | [`exit_now`] | |
//! | `forked.rs` | [`end_if_forked`] | what is advised is one mapping, whole |
#![allow(unsafe_code)]

mod descriptors;
#[cfg(feature = "cuda")]
mod driver;
#[cfg(not(feature = "cuda"))]
#[path = "no_driver.rs"]
mod driver;
mod environment;
mod exit;
mod forked;
mod line;
mod mapping;
mod objects;
mod pages;
mod pinner;
mod sealed;
mod signals;
mod slot_memory;
mod words;

pub(crate) use descriptors::duplicate_sockets;
pub(crate) use environment::with_variable;
pub use exit::{exit_now, keep_freed_memory};
pub use forked::{end_if_forked, guard_against_forks};
pub use objects::LoadedObject;
pub use pinner::Pinner;
pub use sealed::SealedMap;
pub use signals::default_sigchld;
pub(crate) use signals::{ignore_sigpipe, take_pending};
pub use slot_memory::{Chunk, ChunkError, Loan, SlotMemory, SlotRegion};
pub use words::SharedWords;

pub(crate) use line::Line;
use mapping::{Access, Mapping};
pub(crate) use pages::Pages;
use sealed::require_fixed_size;
